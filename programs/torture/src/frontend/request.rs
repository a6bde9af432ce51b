//! What a load asks of a disk, whatever is spoken.

use std::fmt;

use super::pattern::SECTOR_BYTES;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// Must read as zeroes from then on.
    Zeroes,
    /// Contents no longer matter.
    Discard,
    /// A write that is made if the disk holds what it must.
    Swap,
    Flush,
    Ask(Question),
    /// Another key for the reservation.
    Reserve,
}

/// What a disk is asked about itself, whose answer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Serial,
    /// Whether it is ready.
    Ready,
    Capacity,
    /// Who is registered.
    Keys,
    Reservation,
    /// Whether the other logical unit is ready, which has no reservation.
    OtherReady,
    /// Who is registered there: nobody.
    OtherKeys,
}

/// A request in flight, or one that is to be made again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) first: u64,
    pub(super) count: u64,
    /// Of what it writes.
    pub(super) generation: u64,
    /// How many servers had been lost when it was made.
    pub(super) lost_before: u64,
    /// When it was made, as the language counts (`Language::moment`).
    pub(super) moment: usize,
}

impl Request {
    /// Bytes of its sectors.
    pub(super) fn sector_bytes(&self) -> u32 {
        self.count as u32 * SECTOR_BYTES as u32
    }

    /// Whether the device delivers data.
    pub(super) fn reads(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Ask(_))
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serial => "the serial number",
            Self::Ready => "whether it is ready",
            Self::Capacity => "the capacity",
            Self::Keys => "the registered keys",
            Self::Reservation => "the reservation",
            Self::OtherReady => "whether the other unit is ready",
            Self::OtherKeys => "the registered keys of the other unit",
        })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, count) = (self.first, self.count);
        match self.kind {
            Kind::Read => write!(f, "read of {count} sectors from {first} on"),
            Kind::Write => write!(f, "write of {count} sectors from {first} on"),
            Kind::Zeroes => write!(f, "zeroing of {count} sectors from {first} on"),
            Kind::Discard => write!(f, "discard of {count} sectors from {first} on"),
            Kind::Swap => write!(f, "comparison and write of {count} sectors from {first} on"),
            Kind::Flush => f.write_str("flush"),
            Kind::Ask(question) => write!(f, "question for {question}"),
            Kind::Reserve => f.write_str("change of the reservation's key"),
        }
    }
}
