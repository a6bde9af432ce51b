//! Requests that are answered at once, without touching the tree.

use super::header::InHeader;
use super::spec::{Opcode, errno};

/// A request that is no valid one, with what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    /// The request's header; `None` when there is not even that.
    pub header: Option<InHeader>,
    /// What is wrong.
    pub reason: Reason,
}

impl Malformed {
    /// The errno to answer with, positive.
    pub fn errno(&self) -> i32 {
        self.reason.errno()
    }

    /// The number to answer to; `None` when the request cannot be answered.
    pub fn unique(&self) -> Option<u64> {
        self.header.map(|header| header.unique)
    }

    /// Whether the guest waits for a reply: not without a header, nor for operations that never have one.
    pub fn wants_reply(&self) -> bool {
        self.header.is_some_and(|header| Opcode::from_raw(header.opcode).is_none_or(Opcode::has_reply))
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, displaydoc::Display)]
pub enum Reason {
    /// the request is shorter than its header or its operation's structures
    TooShort,
    /// the request's length reaches beyond what the driver gave
    BeyondChain,
    /// the request is longer than any that this server takes
    TooLong,
    /// the operation is not known
    UnknownOpcode,
    /// a string has no end
    Unterminated,
    /// a name is longer than 255 bytes, or a link's target longer than 4095
    NameTooLong,
    /// the name of an extended attribute is longer than 255 bytes
    XattrNameTooLong,
    /// the value of an extended attribute is longer than 65536 bytes
    XattrValueTooLong,
    /// a size or a count says more than the request holds
    BadSize,
    /// an offset lies beyond the largest that files have
    BadOffset,
    /// a time has a second or more of nanoseconds
    BadTime,
    /// a lock has an unknown type or ends before it starts
    BadLock,
    /// an extension is cut off, unknown, not negotiated or there twice
    BadExtension,
    /// there are more than 32 supplementary groups
    TooManyGroups,
}

impl Reason {
    /// Every reason, for counters: `ALL[reason as usize] == reason`.
    pub const ALL: [Reason; 14] = [
        Reason::TooShort,
        Reason::BeyondChain,
        Reason::TooLong,
        Reason::UnknownOpcode,
        Reason::Unterminated,
        Reason::NameTooLong,
        Reason::XattrNameTooLong,
        Reason::XattrValueTooLong,
        Reason::BadSize,
        Reason::BadOffset,
        Reason::BadTime,
        Reason::BadLock,
        Reason::BadExtension,
        Reason::TooManyGroups,
    ];

    /// The errno to answer with, positive. Names and values that are too long get what the system calls would say.
    pub const fn errno(self) -> i32 {
        match self {
            Reason::UnknownOpcode => errno::ENOSYS,
            Reason::TooLong | Reason::XattrValueTooLong => errno::E2BIG,
            Reason::NameTooLong => errno::ENAMETOOLONG,
            Reason::XattrNameTooLong => errno::ERANGE,
            _ => errno::EINVAL,
        }
    }
}
