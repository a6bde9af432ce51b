//! A disk of another size.

use super::convert::From;
use super::file::{BITMAPS_OFFLINE, Image, ToolError, refuse_bitmaps, zeroes};
use crate::uses::Source;
use crate::{Qcow2Options, Qcow2Storage, features};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use storage::copy::{Route, Zeroes, copy};
use storage::extent::DataRanges;
use storage::kit::{ImageLock, begins_like, settled};
use storage::{Links, Storage};

/// The size that a disk is to have. One that ends inside a sector of 512 bytes gets all of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// Bytes.
    To(u64),
    /// Bytes more than it has.
    By(u64),
}

/// What became of a disk. Its JSON is what `vringd image resize --json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resized {
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// What it was before.
    pub size_bytes_before: u64,
}

/// Gives the disk of an image that nobody has another size. What is new reads as zeroes, whatever is behind the image.
/// A disk loses its end only with `shrink`.
///
/// # Errors
/// Somebody has the image, it cannot have that size, or it cannot be written. A disk that is to grow has the old size
/// then, or the new one.
pub fn resize(
    image: &From,
    size: NewSize,
    shrink: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Resized, ToolError> {
    resize_by(image, Links::Follow, (size, shrink), progress)
}

pub(super) fn resize_by(
    image: &From,
    links: Links,
    asked: (NewSize, bool),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Resized, ToolError> {
    match image {
        From::Raw(path) => raw(path, links, asked),
        From::Qcow2(options) => qcow2(options, links, asked, progress),
        From::Foreign(foreign) => Err(foreign.refuse_writing()),
    }
}

/// The new size of a disk of `before` bytes, if it may have it.
fn admit(path: &Path, before: u64, size: NewSize, shrink: bool) -> Result<Resized, ToolError> {
    let asked = match size {
        NewSize::To(bytes) => Some(bytes),
        NewSize::By(more) => before.checked_add(more),
    };
    let size_bytes = asked.and_then(|bytes| bytes.checked_next_multiple_of(512));
    let Some(size_bytes) = size_bytes.filter(|bytes| (512..1 << 63).contains(bytes)) else {
        return Err(ToolError::refused(path, "a disk has one sector of 512 bytes at least, and less than 8 EiB"));
    };
    if size_bytes < before && !shrink {
        let reason = format!("has {before} bytes, and would lose those behind {size_bytes}: --shrink does that");
        return Err(ToolError::refused(path, reason));
    }
    Ok(Resized { size_bytes, size_bytes_before: before })
}

fn raw(path: &Path, links: Links, (size, shrink): (NewSize, bool)) -> Result<Resized, ToolError> {
    let mut image = Image::open_by(path, true, links)?;
    let _lock = ImageLock::take(path, &image.file, true)?;
    settled(path, &image.file, true)?;
    if !image.file.metadata().map_err(ToolError::io(path, "measure"))?.is_file() {
        return Err(ToolError::refused(path, "is a device, whose size is not the image's: grow or shrink the device"));
    }
    if let Some(looks) = begins_like(path) {
        let path = path.display();
        tracing::warn!(%path, "begins like {looks} and is resized as raw bytes, which such a format knows nothing of (`--format qcow2` if it is one of these)");
    }
    image.measure()?;
    let resized = admit(path, image.len_bytes(), size, shrink)?;
    image.file.set_len(resized.size_bytes).map_err(ToolError::io(path, "resize"))?;
    image.file.sync_all().map_err(ToolError::io(path, "flush"))?;
    Ok(resized)
}

fn qcow2(
    options: &Qcow2Options,
    links: Links,
    (size, shrink): (NewSize, bool),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Resized, ToolError> {
    let path = &options.path;
    let failed = ToolError::storage(path);
    let mut storage = Qcow2Storage::open_alone_by(options, links)?;
    let header = Image::open_by(path, false, links)?.header()?;
    let resized = admit(path, header.size_bytes, size, shrink)?;
    let Resized { size_bytes, size_bytes_before: before } = resized;
    if size_bytes == before {
        return Ok(resized);
    }
    refuse_bitmaps(path, &header, BITMAPS_OFFLINE)?;
    if header.snapshots > 0 && header.version < 3 {
        let reason =
            "has snapshots that do not say their size: `qemu-img amend -o compat=1.1` makes it an image of version 3";
        return Err(ToolError::refused(path, reason));
    }
    if size_bytes < before {
        if let Some(what) = [
            (header.snapshots > 0, "snapshots"),
            (header.has(features::DATA_FILE), "an external data file"),
            (header.version < 3 && header.backing_file.is_some(), "a backing file, and is of version 2"),
        ]
        .into_iter()
        .find_map(|(has, what)| has.then_some(what))
        {
            let reason = format!("has {what}, with which it does not shrink: copy it with `vringd image convert`");
            return Err(ToolError::refused(path, reason));
        }
        clear(path, &storage, size_bytes..storage.capacity_bytes(), progress)?;
        storage.settle_size(size_bytes).map_err(&failed)?;
        return Ok(resized);
    }
    if size_bytes > storage.reach_bytes() {
        storage.lengthen_l1(size_bytes).map_err(&failed)?;
        storage = Qcow2Storage::open_alone_by(options, links)?;
    }
    grow(path, &storage, size_bytes, progress)?;
    Ok(resized)
}

/// Grows a disk to a size that its L1 table reaches.
pub(crate) fn grow(
    path: &Path,
    disk: &Qcow2Storage,
    size_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ToolError> {
    let failed = ToolError::storage(path);
    let end = disk.capacity_bytes();
    disk.preview(size_bytes).map_err(&failed)?;
    for range in DataRanges::of(disk, end..size_bytes) {
        let range = range.map_err(&failed)?;
        clear(path, disk, range.start / 512 * 512..range.end.next_multiple_of(512), progress)?;
    }
    disk.settle_size(size_bytes).map_err(failed)
}

/// Lets part of a disk read as zeroes.
pub(super) fn clear(
    path: &Path,
    disk: &dyn Storage,
    range: Range<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ToolError> {
    let len = range.end - range.start;
    if len == 0 {
        return Ok(());
    }
    let nothing = zeroes(len)?;
    let route = Route { from: &nothing, from_offset: 0, to: disk, to_offset: range.start, len, zeroes: Zeroes::Write };
    copy(&route, progress).map_err(ToolError::storage(path))?;
    Ok(())
}
