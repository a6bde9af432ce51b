//! Where a disk has data.

use super::convert::From;
use super::file::ToolError;
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use storage::Storage;
use storage::extent::{self, Extent};

/// Extents that a storage is asked for at once.
const BATCH: usize = 4096;

/// Part of a disk. Its JSON is that of `vringd image map --json`, with names of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mapped {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
    /// There is something.
    pub data: bool,
    /// It reads as zeroes, because there is nothing.
    pub zero: bool,
}

/// Where an image has data, or what is behind it: all of the disk, in its order.
///
/// # Errors
/// It is being written, or cannot be read.
pub fn map(from: &From, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Mapped>, ToolError> {
    let from = from.open()?;
    let size_bytes = from.storage.capacity_bytes();
    let mut all: Vec<Mapped> = Vec::new();
    each_extent(&from.path, &*from.storage, 0..size_bytes, &mut |start, extent| {
        progress(start, size_bytes);
        match all.last_mut() {
            Some(last) if last.data == extent.data => last.length += extent.bytes,
            _ => all.push(Mapped { start, length: extent.bytes, data: extent.data, zero: !extent.data }),
        }
    })?;
    progress(size_bytes, size_bytes);
    Ok(all)
}

/// Goes through part of an image: where each extent begins, and the extent.
pub(super) fn each_extent(
    path: &Path,
    storage: &dyn Storage,
    range: Range<u64>,
    each: &mut dyn FnMut(u64, Extent),
) -> Result<(), ToolError> {
    let mut start = range.start;
    while start < range.end {
        let extents = extent::ask(storage, start..range.end, BATCH).map_err(ToolError::storage(path))?;
        for extent in extents {
            each(start, extent);
            start += extent.bytes;
        }
    }
    Ok(())
}
