//! A request that is refused.

use super::spec::errno;

/// A request that is answered at once, without touching the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// What the client is told; see [`errno`](super::spec::errno).
    pub errno: u32,
    /// What the counters and the log are told, and a person behind the client.
    pub reason: Reason,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, displaydoc::Display)]
pub enum Reason {
    /// the command is unknown
    UnknownCommand,
    /// the command is not offered by this export
    NotOffered,
    /// the request has flags that its command does not have
    UnknownFlags,
    /// the export is read-only
    ReadOnly,
    /// offset or length are no multiple of the block size
    Unaligned,
    /// the request reaches beyond the end of the export
    BeyondEnd,
    /// the write reaches beyond the end of the export
    NoSpace,
    /// the read is longer than the longest payload
    LongRead,
    /// the write is longer than the longest payload
    LongWrite,
    /// the flush has an offset or a length
    FlushRange,
    /// the block status asks of no bytes
    NoRange,
}

impl Reason {
    /// Every reason, for counters: `ALL[reason as usize] == reason`.
    pub const ALL: [Reason; 11] = [
        Reason::UnknownCommand,
        Reason::NotOffered,
        Reason::UnknownFlags,
        Reason::ReadOnly,
        Reason::Unaligned,
        Reason::BeyondEnd,
        Reason::NoSpace,
        Reason::LongRead,
        Reason::LongWrite,
        Reason::FlushRange,
        Reason::NoRange,
    ];

    /// The error that section "Error values" asks for. A read that is too long may be refused with `NBD_EOVERFLOW` (section
    /// "Request types", under `NBD_CMD_READ`), so that the client tries a shorter one; a write may not.
    pub const fn errno(self) -> u32 {
        match self {
            Reason::ReadOnly => errno::EPERM,
            Reason::NoSpace => errno::ENOSPC,
            Reason::LongRead => errno::EOVERFLOW,
            _ => errno::EINVAL,
        }
    }

    /// The refusal for this reason.
    pub(super) fn refuse(self) -> Refusal {
        Refusal { errno: self.errno(), reason: self }
    }
}
