//! Locks that a client takes on files: POSIX byte ranges and `flock`.
//!
//! A client's owner of POSIX locks is a number. Each owner that holds some on a node has an open file description of its
//! own there, and its locks are that description's (`F_OFD_SETLK` of `fcntl`): so owners contend with each other, with
//! other daemons on the same files and with processes of the host by the kernel's rules and nobody else's. The description
//! closes when the last lock goes. `flock` belongs to the client's open file anyway, and so to its descriptor here.
//!
//! A deadlock between owners is not found, as the kernel finds none among locks of descriptions: such waits last until
//! one of them is cancelled.

mod crowd;
mod exclusive;
mod kernel;
mod owners;
mod ranges;
mod wait;

pub(crate) use crowd::{Crowds, Joined, Place};
pub(crate) use exclusive::Exclusive;
pub(crate) use kernel::flock;
pub(crate) use owners::{FILE_MAX, Holding, Limits, Locks};
pub(crate) use wait::Then;
pub use wait::Wait;

/// What a lock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared: excludes writers.
    Read,
    /// Exclusive.
    Write,
    /// No lock: asks for removal, or answers that nothing is in the way.
    Unlock,
}

impl LockKind {
    /// A lock that does or does not exclude readers.
    pub(crate) fn exclusive(exclusive: bool) -> LockKind {
        if exclusive { LockKind::Write } else { LockKind::Read }
    }

    pub(crate) fn is_exclusive(self) -> bool {
        self == LockKind::Write
    }
}

/// A POSIX lock on a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// What it does.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive. [`Lock::END`] and everything above means to the end of the file, however it grows.
    pub end: u64,
    /// The client's process. 0 in an answer when the holder is not known here.
    pub pid: u32,
}

impl Lock {
    /// The last byte that a file can have.
    pub const END: u64 = i64::MAX.cast_unsigned();
}

#[cfg(test)]
mod tests;
