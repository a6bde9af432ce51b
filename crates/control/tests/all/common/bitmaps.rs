//! Bitmaps that record nothing: one that is named `torn` comes as a killed daemon leaves it.

use control::ApiError;
use control::model::{Bitmap, CopyDisk, Disk, NewBitmap, NewJob};

/// The bitmaps of all disks, each with its disk.
pub(super) type Bitmaps = Vec<(String, Bitmap)>;

pub(super) fn of(bitmaps: &Bitmaps, disk: &str) -> Vec<Bitmap> {
    bitmaps.iter().filter(|(of, _)| of == disk).map(|(_, bitmap)| bitmap.clone()).collect()
}

pub(super) fn add(bitmaps: &mut Bitmaps, disk: &Disk, new: &NewBitmap) -> Result<Bitmap, ApiError> {
    let unsupported = |message: String| Err(ApiError::DiskUnsupported { disk: disk.name.clone(), message });
    if disk.storage.kind != "qcow2" {
        return unsupported(format!("its storage is {}, and only qcow2 images have bitmaps", disk.storage.kind));
    }
    if of(bitmaps, &disk.name).iter().any(|bitmap| bitmap.name == new.name) {
        return unsupported(format!("it has a bitmap `{}` already", new.name));
    }
    let consistent = new.name != "torn";
    let bitmap = Bitmap {
        name: new.name.clone(),
        granularity_bytes: new.granularity_bytes(),
        enabled: consistent,
        consistent,
        dirty_bytes: if consistent { 512 << 20 } else { 0 },
    };
    bitmaps.push((disk.name.clone(), bitmap.clone()));
    Ok(bitmap)
}

pub(super) fn remove(bitmaps: &mut Bitmaps, disk: &str, name: &str) -> Result<(), ApiError> {
    let place = bitmaps.iter().position(|(of, bitmap)| of == disk && bitmap.name == name);
    let missing = || ApiError::NoSuchBitmap { disk: disk.into(), bitmap: name.into() };
    bitmaps.remove(place.ok_or_else(missing)?);
    Ok(())
}

/// How much there is to copy of a disk, and whether that is only what was written.
pub(super) fn to_copy(
    bitmaps: &mut Bitmaps,
    new: &NewJob,
    index: usize,
    copy: &CopyDisk,
    disk: &Disk,
) -> Result<(u64, bool), ApiError> {
    let Some(name) = &copy.bitmap else { return Ok((disk.storage.capacity_bytes, false)) };
    let refused = |field, message: &str| {
        Err(ApiError::InvalidField { field: new.copy_field(index, field), message: message.to_owned() })
    };
    match of(bitmaps, &disk.name).into_iter().find(|bitmap| bitmap.name == *name) {
        Some(bitmap) if bitmap.consistent => Ok((bitmap.dirty_bytes, true)),
        Some(_) => refused("bitmap", "is not consistent: remove it and begin again with a full backup"),
        None if copy.backing.is_some() => {
            refused("backing", "is for what was written since, and this is a full backup")
        }
        None => {
            add(bitmaps, disk, &NewBitmap { name: name.clone(), granularity: None })?;
            Ok((disk.storage.capacity_bytes, false))
        }
    }
}
