//! Images to volumes, volumes to images.

use super::{CreateOptions, VolumeOptions, check_closed, lay_out, log_target, plan, storage_error, target};
use crate::format;
use crate::served::blocking::StorageBlocks;
use crate::served::error::VolumeError;
use crate::served::open::way;
use crate::{BLOCK_BYTES, Blocks, Progress};
use std::path::Path;
use storage::copy::{Copied, Route, Zeroes, copy};
use storage::target::Target;
use storage::{OpenError, Storage};

/// What a conversion has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Converted {
    /// Size of the disk, in bytes.
    pub capacity_bytes: u64,
    /// What was moved.
    pub copied: Copied,
}

/// Makes a volume of a raw image, or of a device. `options.size_bytes` may be larger than the image; 0 means as large.
///
/// The volume is one when everything is in it, not before.
///
/// # Errors
/// The image is in use or cannot be read, something is there, or there is no room.
pub fn to_volume(
    image: &Path,
    at: &VolumeOptions,
    options: &CreateOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Converted, VolumeError> {
    let from =
        VolumeOptions { direct: at.direct, lock: at.lock, ..VolumeOptions::new(image) }.open_file(image, true)?;
    let image_bytes = from.capacity_bytes();
    let size_bytes = if options.size_bytes == 0 { image_bytes } else { options.size_bytes };
    if size_bytes < image_bytes {
        let message = format!("must be the size of the image ({image_bytes} bytes) or more, not {size_bytes}");
        return Err(OpenError::Field { field: "size", message }.into());
    }
    let options = CreateOptions { size_bytes, ..options.clone() };
    let plan = plan(at, &options);
    let bytes = plan.storage_bytes().map_err(at.format())?;
    let mut data = target(at, &at.path, bytes, options.force)?;
    let mut log = log_target(at, options.log_bytes, options.force)?;
    data.clear()?;
    log.as_mut().map_or(Ok(()), Target::clear)?;
    let copied = {
        let to = at.open_file(&at.path, false)?;
        let mut data_way = way(&at.path, to.clone())?;
        // A superblock of before would speak of what is being overwritten.
        data_way
            .zero_at(0, format::INTERNAL_LOG_OFFSET)
            .and_then(|()| data_way.flush())
            .map_err(VolumeError::io(&at.path, "clear the beginning of"))?;
        let data_offset = bytes - size_bytes.next_multiple_of(BLOCK_BYTES as u64);
        let zeroes = if data.blank { Zeroes::Leave } else { Zeroes::Write };
        let route = Route { from: &*from, from_offset: 0, to: &*to, to_offset: data_offset, len: image_bytes, zeroes };
        let copied = copy(&route, &mut |done_bytes, total_bytes| progress(Progress { done_bytes, total_bytes }))
            .map_err(storage_error(&at.path))?;
        if zeroes == Zeroes::Write && size_bytes > image_bytes {
            let behind = (data_offset + image_bytes, bytes - data_offset - image_bytes);
            data_way.zero_at(behind.0, behind.1).map_err(VolumeError::io(&at.path, "clear the end of"))?;
        }
        data_way.flush().map_err(VolumeError::io(&at.path, "flush"))?;
        lay_out(at, &plan, &mut data_way, &mut |_| {})?;
        copied
    };
    data.keep()?;
    log.map_or(Ok(()), Target::keep)?;
    Ok(Converted { capacity_bytes: size_bytes, copied })
}

/// Makes a raw image of a volume that was closed in order: in a sparse file, or on a device.
///
/// # Errors
/// The volume is in use or has to be replayed, something is there, or there is no room.
pub fn to_raw(
    at: &VolumeOptions,
    image: &Path,
    force: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Converted, VolumeError> {
    let from = at.open_file(&at.path, true)?;
    let superblock = format::read_superblock(&mut way(&at.path, from.clone())?).map_err(at.format())?;
    superblock.check_length(from.capacity_bytes()).map_err(at.format())?;
    check_closed(at, &superblock)?;
    let (offset, len) = (superblock.data_offset, superblock.capacity_bytes);
    let mut target = target(at, image, len, force)?;
    target.clear()?;
    let copied = {
        let to = at.open_file(image, false)?;
        let zeroes = if target.blank { Zeroes::Leave } else { Zeroes::Write };
        let route = Route { from: &*from, from_offset: offset, to: &*to, to_offset: 0, len, zeroes };
        let copied = copy(&route, &mut |done_bytes, total_bytes| progress(Progress { done_bytes, total_bytes }))
            .map_err(storage_error(image))?;
        StorageBlocks::new(to).and_then(|mut way| way.flush()).map_err(VolumeError::io(image, "flush"))?;
        copied
    };
    target.keep()?;
    Ok(Converted { capacity_bytes: len, copied })
}
