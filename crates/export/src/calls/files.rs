//! File data of one request: from an open file to where the client wants it, and the other way.

use super::{Moved, data};
use engine::monotonic_ns;
use passthrough::{OpenFile, Tree};
use rustix::io::Errno;
use std::os::fd::AsFd;
use vring::Segment;

/// Reads `segments` full from `offset` (bytes) on, or up to the end of the file; returns how much. `began_ns` is when the
/// request began, of [`monotonic_ns`]: what it took is noted in `moved`.
///
/// # Errors
/// The kernel's answer, where nothing was read before it.
#[inline]
pub(crate) fn read(
    file: &OpenFile,
    segments: &[Segment],
    offset: u64,
    began_ns: u64,
    moved: &mut Moved,
) -> Result<usize, Errno> {
    // SAFETY: the segments lie in memory that nobody here refers to, and which the request keeps mapped.
    let mapped = unsafe { file.read_mapped(Segment::as_iovecs(segments), offset, began_ns) };
    let outcome = mapped.map_or_else(|| data::read(file.as_fd(), segments, offset), Ok);
    moved.took_ns = monotonic_ns().saturating_sub(began_ns);
    let bytes = outcome?;
    if mapped.is_some() {
        file.mapped_read_took(moved.took_ns, bytes, began_ns);
    }
    moved.read = bytes as u64;
    Ok(bytes)
}

/// Writes `segments` at `offset` (bytes); returns how much. With `kill_privileges`, set-id bits and file capabilities go, as
/// by the write of a user who may not have them. `began_ns` is as for [`read`].
///
/// # Errors
/// The kernel's answer, where nothing was written before it.
#[inline]
pub(crate) fn write(
    (tree, file): (&Tree, &OpenFile),
    segments: &[Segment],
    offset: u64,
    kill_privileges: bool,
    began_ns: u64,
    moved: &mut Moved,
) -> Result<usize, Errno> {
    tree.before_write(file)?;
    let call = || data::write(file.as_fd(), segments, offset);
    let outcome = if kill_privileges { tree.killing_privileges(file, call) } else { call() };
    moved.took_ns = monotonic_ns().saturating_sub(began_ns);
    let bytes = outcome?;
    moved.written = bytes as u64;
    Ok(bytes)
}
