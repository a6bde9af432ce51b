//! Requests that are answered at once, without touching the tree.

use super::header::Header;
use super::spec::errno;

/// A request that is no valid one, with what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    /// The request's header; `None` when there is not even that.
    pub header: Option<Header>,
    /// What is wrong.
    pub reason: Reason,
}

impl Malformed {
    /// The errno to answer with, positive.
    pub fn errno(&self) -> i32 {
        self.reason.errno()
    }

    /// The tag to answer to; `None` when the request cannot be answered.
    pub fn tag(&self) -> Option<u16> {
        self.header.map(|header| header.tag)
    }
}

/// Why a request was refused. After [`TooShort`](Self::TooShort) and [`TooLong`](Self::TooLong) from
/// [`bytes_wanted`](super::bytes_wanted), where the next message of a stream begins is not worth believing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, displaydoc::Display)]
pub enum Reason {
    /// the message is shorter than its header or its fields
    TooShort,
    /// the message's size reaches beyond what was sent
    BeyondChain,
    /// the message is longer than any that this server takes
    TooLong,
    /// the message goes on behind its last field
    TrailingBytes,
    /// no version has been agreed on
    NoVersion,
    /// a string contains a NUL
    NulInString,
    /// a name is longer than 255 bytes, or a path longer than 4095
    NameTooLong,
    /// the name of an extended attribute is longer than 255 bytes
    XattrNameTooLong,
    /// the value of an extended attribute is longer than 65536 bytes
    XattrValueTooLong,
    /// a walk has more than 16 names
    TooManyNames,
    /// a write's count is not the length of its data
    BadCount,
    /// an offset or a size lies beyond the largest that files have
    BadOffset,
    /// a time has a second or more of nanoseconds
    BadTime,
    /// a lock has an unknown type or ends beyond the largest offset
    BadLock,
    /// the sizes around attributes do not agree
    BadStat,
}

impl Reason {
    /// Every reason, for counters: `ALL[reason as usize] == reason`.
    pub const ALL: [Reason; 15] = [
        Reason::TooShort,
        Reason::BeyondChain,
        Reason::TooLong,
        Reason::TrailingBytes,
        Reason::NoVersion,
        Reason::NulInString,
        Reason::NameTooLong,
        Reason::XattrNameTooLong,
        Reason::XattrValueTooLong,
        Reason::TooManyNames,
        Reason::BadCount,
        Reason::BadOffset,
        Reason::BadTime,
        Reason::BadLock,
        Reason::BadStat,
    ];

    /// The errno to answer with, positive. Names and values that are too long get what the system calls would say.
    pub const fn errno(self) -> i32 {
        match self {
            Reason::TooLong | Reason::XattrValueTooLong => errno::E2BIG,
            Reason::NameTooLong => errno::ENAMETOOLONG,
            Reason::XattrNameTooLong => errno::ERANGE,
            Reason::NoVersion => errno::EPROTO,
            _ => errno::EINVAL,
        }
    }
}
