//! Reading and writing files straight to and from the client's memory, on the calling thread.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use vring::Segment;

/// Segments of one call: UIO_MAXIOV (linux/uio.h).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// Reads from `offset` (bytes) on until the segments are full or the file ends; returns how much.
///
/// # Errors
/// The kernel's answer, where nothing was read before it.
pub(crate) fn read(file: BorrowedFd<'_>, segments: &[Segment], offset: u64) -> Result<usize, Errno> {
    let fd = file.as_raw_fd();
    transfer(segments, offset, |list, at| {
        // By their numbers: the C library's functions are points of cancellation, which costs them two atomic operations.
        match list {
            // SAFETY: segments lie in memory that the request keeps mapped, which has other writers than us anyway.
            [one] => unsafe { libc::syscall(libc::SYS_pread64, fd, one.iov_base, one.iov_len, at) },
            // SAFETY: as for one.
            many => unsafe { libc::syscall(libc::SYS_preadv, fd, many.as_ptr(), many.len(), at, 0) },
        }
    })
}

/// Writes the segments at `offset` (bytes); returns how much.
///
/// # Errors
/// The kernel's answer, where nothing was written before it.
pub(crate) fn write(file: BorrowedFd<'_>, segments: &[Segment], offset: u64) -> Result<usize, Errno> {
    let fd = file.as_raw_fd();
    transfer(segments, offset, |list, at| {
        match list {
            // SAFETY: as for reading; the kernel copies whatever bytes are there at that moment.
            [one] => unsafe { libc::syscall(libc::SYS_pwrite64, fd, one.iov_base, one.iov_len, at) },
            // SAFETY: as for one.
            many => unsafe { libc::syscall(libc::SYS_pwritev, fd, many.as_ptr(), many.len(), at, 0) },
        }
    })
}

/// Takes the file data of a message, which is behind its first `head` bytes: at most `bytes` of it, in a request's readable
/// segments or an answer's writable ones. Returns how many there are.
pub(crate) fn payload(segments: &[Segment], head: usize, bytes: usize, out: &mut Vec<Segment>) -> usize {
    out.clear();
    out.extend_from_slice(segments);
    vring::copy::trim_front(out, head as u64);
    vring::copy::truncate(out, bytes as u64);
    room(out)
}

/// Bytes in these segments.
pub(crate) fn room(segments: &[Segment]) -> usize {
    segments.iter().map(Segment::len).sum()
}

/// Copies a request's own bytes, without the data of a write: the first `front`, and as many in all as `wanted` says by these.
///
/// # Errors
/// Those of `wanted`.
pub(crate) fn fetch<E>(
    readable: &[Segment],
    front: usize,
    wanted: impl FnOnce(&[u8]) -> Result<usize, E>,
    bytes: &mut Vec<u8>,
) -> Result<(), E> {
    bytes.resize(front, 0);
    let there = vring::copy::read_at(readable, 0, bytes);
    bytes.truncate(there);
    let wanted = wanted(bytes)?;
    if wanted > there {
        bytes.resize(wanted, 0);
        let more = vring::copy::read_at(readable, there as u64, &mut bytes[there..]);
        bytes.truncate(there + more);
    }
    Ok(())
}

/// One call for each piece of at most [`SEGMENTS_MAX`] segments, until one comes back short.
fn transfer(
    segments: &[Segment],
    offset: u64,
    call: impl Fn(&[libc::iovec], i64) -> libc::c_long,
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
            // Less than wanted is the end of the file, or a disk that is full.
            Ok(moved) => return Ok(done + moved),
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
        }
    }
    Ok(done)
}
