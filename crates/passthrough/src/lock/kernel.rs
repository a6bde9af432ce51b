//! The system calls: `fcntl` with the locks of open file descriptions, and `flock`.

use super::LockKind;
use crate::Result;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A range of bytes that the kernel accepts: `start..=end`, up to [`super::Lock::END`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Span {
    /// Every byte that a file can have.
    pub(super) const ALL: Span = Span { start: 0, end: super::Lock::END };

    /// # Errors
    /// `EINVAL` for a range that ends before it starts, or starts where no byte can be.
    pub(super) fn new(start: u64, end: u64) -> Result<Span> {
        let end = end.min(super::Lock::END);
        if start > end { Err(Errno::INVAL) } else { Ok(Span { start, end }) }
    }

    fn to_flock(self, kind: LockKind) -> Result<libc::flock> {
        let kind = match kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        // A length of 0 reaches to the end of the file, however it grows.
        let length = if self.end == super::Lock::END { 0 } else { self.end - self.start + 1 };
        // SAFETY: a structure of integers, for which zero is a value.
        let mut flock: libc::flock = unsafe { std::mem::zeroed() };
        flock.l_type = libc::c_short::try_from(kind).map_err(|_| Errno::INVAL)?;
        flock.l_whence = libc::SEEK_SET as libc::c_short;
        flock.l_start = libc::off_t::try_from(self.start).map_err(|_| Errno::INVAL)?;
        flock.l_len = libc::off_t::try_from(length).map_err(|_| Errno::INVAL)?;
        Ok(flock)
    }
}

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, flock: &mut libc::flock) -> Result<()> {
    // SAFETY: the three commands used here read, and one of them writes, this one structure.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(flock)) } == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Takes or drops a lock of the file's open description.
///
/// # Errors
/// `EAGAIN` when another lock is in the way; `EBADF` when the description may not do what the lock is for.
pub(super) fn set(file: BorrowedFd<'_>, kind: LockKind, span: Span) -> Result<()> {
    match fcntl(file, libc::F_OFD_SETLK, &mut span.to_flock(kind)?) {
        // POSIX allows both; some network file systems answer the second.
        Err(Errno::ACCESS) => Err(Errno::AGAIN),
        answer => answer,
    }
}

/// Takes a lock, however long that takes.
///
/// # Errors
/// `EINTR` when a signal came.
pub(super) fn set_waiting(file: BorrowedFd<'_>, kind: LockKind, span: Span) -> Result<()> {
    fcntl(file, libc::F_OFD_SETLKW, &mut span.to_flock(kind)?)
}

/// The first lock of another description or process that would be in the way, if any.
pub(super) fn get(file: BorrowedFd<'_>, kind: LockKind, span: Span) -> Result<Option<(LockKind, Span)>> {
    let mut flock = span.to_flock(kind)?;
    fcntl(file, libc::F_OFD_GETLK, &mut flock)?;
    let kind = match libc::c_int::from(flock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => LockKind::Read,
        _ => LockKind::Write,
    };
    let start = u64::try_from(flock.l_start).map_err(|_| Errno::IO)?;
    let length = u64::try_from(flock.l_len).map_err(|_| Errno::IO)?;
    let end = if length == 0 { super::Lock::END } else { start.saturating_add(length - 1) };
    Ok(Some((kind, Span::new(start, end)?)))
}

/// `flock` on an open file, without waiting.
///
/// # Errors
/// `EAGAIN` when another open file holds a lock that is in the way.
pub(crate) fn flock(file: BorrowedFd<'_>, kind: LockKind) -> Result<()> {
    let operation = match kind {
        LockKind::Read => FlockOperation::NonBlockingLockShared,
        LockKind::Write => FlockOperation::NonBlockingLockExclusive,
        LockKind::Unlock => FlockOperation::Unlock,
    };
    rustix::fs::flock(file, operation)
}

/// The same, however long that takes.
///
/// # Errors
/// `EINTR` when a signal came.
pub(super) fn flock_waiting(file: BorrowedFd<'_>, kind: LockKind) -> Result<()> {
    let operation = match kind {
        LockKind::Read => FlockOperation::LockShared,
        LockKind::Write => FlockOperation::LockExclusive,
        LockKind::Unlock => FlockOperation::Unlock,
    };
    rustix::fs::flock(file, operation)
}
