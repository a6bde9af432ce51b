//! Whether io_uring can try a file's data without leaving the submission for a thread of the kernel's.
//!
//! Where it can, one system call carries many requests, and those that would wait are finished later. Where it cannot, every
//! request costs a hand-over to a kernel thread, and a call on the spot is several times as fast: reads of tmpfs, and buffered
//! writes of ext4.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use tree::OpenFile;

/// XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC (linux/magic.h): buffered writes that may be tried (FOP_BUFFER_WASYNC).
const TRIES_WRITES: [i64; 2] = [0x5846_5342, 0x9123_683e];

/// What was found out about an open file, in its notes: a bit that says so, and one that says what.
const READ_KNOWN: u8 = 1;
const READ_TRIES: u8 = 2;
const WRITE_KNOWN: u8 = 4;
const WRITE_TRIES: u8 = 8;

/// Whether reads may be tried. Asks the kernel once a file.
pub(crate) fn tries_reads(file: &OpenFile) -> bool {
    remembered(file, READ_KNOWN, READ_TRIES, || direct(file) || read_without_waiting(file.as_fd()))
}

/// Whether writes may be tried.
pub(crate) fn tries_writes(file: &OpenFile) -> bool {
    remembered(file, WRITE_KNOWN, WRITE_TRIES, || {
        // Appending writes have no place of their own: those that overtake each other would change it.
        let appends = file.flags() & OFlags::APPEND.bits() as i32 != 0;
        !appends && (direct(file) || rustix::fs::fstatfs(file).is_ok_and(|found| TRIES_WRITES.contains(&found.f_type)))
    })
}

#[inline]
fn remembered(file: &OpenFile, known: u8, yes: u8, find_out: impl FnOnce() -> bool) -> bool {
    let notes = file.notes().load(Ordering::Relaxed);
    if notes & known != 0 {
        return notes & yes != 0;
    }
    let found = find_out();
    file.notes().fetch_or(known | if found { yes } else { 0 }, Ordering::Relaxed);
    found
}

fn direct(file: &OpenFile) -> bool {
    file.flags() & OFlags::DIRECT.bits() as i32 != 0
}

/// One byte that is thrown away: EOPNOTSUPP says that the file system cannot tell what would wait.
fn read_without_waiting(file: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    let place = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: one byte of ours, for the time of the call.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const place, 1, 0, libc::RWF_NOWAIT) };
    read >= 0 || Errno::from_io_error(&std::io::Error::last_os_error()) == Some(Errno::AGAIN)
}
