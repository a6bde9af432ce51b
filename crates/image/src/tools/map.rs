//! Where a disk has data.

use super::convert::From;
use super::file::ToolError;
use serde::Serialize;
use std::ops::ControlFlow;
use storage::extent;

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

/// Where an image has data, or what is behind it: all of the disk, in its order, one part after the other until somebody
/// has had enough.
///
/// # Errors
/// It is being written, or cannot be read.
pub fn map(from: &From, each: &mut dyn FnMut(&Mapped) -> ControlFlow<()>) -> Result<(), ToolError> {
    let from = from.open()?;
    let size_bytes = from.storage.capacity_bytes();
    let mut part: Option<Mapped> = None;
    let mut start = 0;
    while start < size_bytes {
        let extents = extent::ask(&*from.storage, start..size_bytes, BATCH).map_err(ToolError::storage(&from.path))?;
        for extent in extents {
            match &mut part {
                Some(part) if part.data == extent.data => part.length += extent.bytes,
                _ => {
                    let next = Mapped { start, length: extent.bytes, data: extent.data, zero: !extent.data };
                    if part.replace(next).is_some_and(|done| each(&done).is_break()) {
                        return Ok(());
                    }
                }
            }
            start += extent.bytes;
        }
    }
    if let Some(part) = part {
        let _ = each(&part);
    }
    Ok(())
}
