//! Locks that a client takes on files: POSIX byte ranges and `flock`.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

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
    pub const END: u64 = i64::MAX as u64;
}

/// A lock that may still be waited for. Dropping this does not cancel the wait.
#[derive(Debug)]
pub struct Wait(());

impl Wait {
    /// Ends the wait: its `done` is called soon with `EINTR`, unless the lock was granted before. Never blocks.
    pub fn cancel(&self) {}
}

/// The locks of one tree's clients.
#[derive(Debug, Default)]
pub(crate) struct Locks {}

impl Locks {
    /// The lock of somebody else that stands in the way of `lock`, or `lock` with [`LockKind::Unlock`].
    ///
    /// `open` opens the node's file anew, with the access mode it is told.
    ///
    /// # Errors
    /// `EINVAL` for a range that is none; the kernel's.
    pub(crate) fn get(
        &self,
        _node: u64,
        _owner: u64,
        _lock: Lock,
        _open: impl FnMut(OFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<Lock, Errno> {
        Err(Errno::NOSYS)
    }

    /// Takes or drops a lock without waiting.
    ///
    /// # Errors
    /// `EAGAIN` when another lock is in the way; `EINVAL` for a range that is none; `ENOLCK` when the bounds are reached.
    pub(crate) fn set(
        &self,
        _node: u64,
        _owner: u64,
        _lock: Lock,
        _open: impl FnMut(OFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Takes a lock, waiting for it on a thread of its own when it is not free. `done` is called once, perhaps before this
    /// returns.
    pub(crate) fn wait(
        &self,
        _node: u64,
        _owner: u64,
        _lock: Lock,
        _open: impl FnMut(OFlags) -> Result<OwnedFd, Errno>,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Wait {
        done(Err(Errno::NOSYS));
        Wait(())
    }

    /// Drops all that `owner` holds on `node`: a file of the owner was closed. Costs no system call when there is nothing.
    pub(crate) fn drop_owner(&self, _node: u64, _owner: u64) {}

    /// Drops every lock and cancels every wait: the client is gone.
    pub(crate) fn clear(&self) {}

    /// `flock` on an open file, waiting on a thread of its own as [`Locks::wait`] does. The thread keeps `file` open.
    pub(crate) fn wait_flock<F: AsFd + Send + Sync + 'static>(
        &self,
        _file: &Arc<F>,
        _kind: LockKind,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Wait {
        done(Err(Errno::NOSYS));
        Wait(())
    }
}

/// `flock` on an open file, without waiting.
///
/// # Errors
/// `EAGAIN` when another open file holds a lock that is in the way.
pub(crate) fn flock(_file: BorrowedFd<'_>, _kind: LockKind) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}
