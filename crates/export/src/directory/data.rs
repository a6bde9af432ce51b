//! Reading and writing files straight from and to guest memory, on the calling thread.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use vring::Segment;

/// Segments of one call: UIO_MAXIOV (linux/uio.h).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// What a call may do about data that is not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Wait for it.
    Allowed,
    /// Give up with EAGAIN (RWF_NOWAIT), or with EOPNOTSUPP where the file system cannot tell.
    Refused,
}

impl Waiting {
    fn flags(self) -> i32 {
        match self {
            Waiting::Allowed => 0,
            Waiting::Refused => libc::RWF_NOWAIT,
        }
    }
}

/// Reads from `offset` (bytes) on until the segments are full or the file ends; returns how much.
///
/// # Errors
/// The kernel's answer, where nothing was read before it. With [`Waiting::Refused`], also when only a part is at hand.
pub(crate) fn read(file: BorrowedFd<'_>, segments: &[Segment], offset: u64, waiting: Waiting) -> Result<usize, Errno> {
    transfer(segments, offset, waiting, |list, at| {
        // SAFETY: segments lie in guest memory that the request keeps mapped, which has other writers than us anyway.
        unsafe { libc::preadv2(file.as_raw_fd(), list.as_ptr(), list.len() as i32, at, waiting.flags()) }
    })
}

/// Writes the segments at `offset` (bytes); returns how much.
///
/// # Errors
/// The kernel's answer, where nothing was written before it.
pub(crate) fn write(file: BorrowedFd<'_>, segments: &[Segment], offset: u64) -> Result<usize, Errno> {
    transfer(segments, offset, Waiting::Allowed, |list, at| {
        // SAFETY: as for reading; the kernel copies whatever bytes are there at that moment.
        unsafe { libc::pwritev2(file.as_raw_fd(), list.as_ptr(), list.len() as i32, at, 0) }
    })
}

/// Takes the first `bytes` of a WRITE's data, which is behind the request's own bytes.
pub(crate) fn payload(readable: &[Segment], bytes: usize, out: &mut Vec<Segment>) {
    out.clear();
    out.extend_from_slice(readable);
    vring::copy::trim_front(out, device::fs::WRITE_HEAD_BYTES as u64);
    vring::copy::truncate(out, bytes as u64);
}

/// One call for each piece of at most [`SEGMENTS_MAX`] segments, until one comes back short.
fn transfer(
    segments: &[Segment],
    offset: u64,
    waiting: Waiting,
    call: impl Fn(&[libc::iovec], i64) -> isize,
) -> Result<usize, Errno> {
    let mut done = 0;
    for piece in segments.chunks(SEGMENTS_MAX) {
        let at = i64::try_from(offset.saturating_add(done as u64)).map_err(|_| Errno::INVAL)?;
        let list = Segment::as_iovecs(piece);
        let moved = loop {
            let moved = call(list, at);
            if moved >= 0 {
                break Ok(moved as usize);
            }
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            if error != libc::EINTR {
                break Err(Errno::from_raw_os_error(error));
            }
        };
        let wanted: usize = piece.iter().map(Segment::len).sum();
        match moved {
            Ok(moved) if moved == wanted => done += moved,
            // Less than wanted is the end of the file, or the part that was at hand: without waiting they look alike.
            Ok(0) => return Ok(done),
            Ok(_) if waiting == Waiting::Refused => return Err(Errno::AGAIN),
            Ok(moved) => return Ok(done + moved),
            Err(error) if done == 0 || waiting == Waiting::Refused => return Err(error),
            Err(_) => return Ok(done),
        }
    }
    Ok(done)
}
