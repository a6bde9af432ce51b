//! Internal snapshots: taken, applied and deleted.

use super::file::{Image, ToolError, refuse_damage};
use super::info::{SnapshotInfo, info};
use crate::served::{ONE_STATE, SnapshotChange, SnapshotError};
use crate::{Qcow2Options, Qcow2Storage, features};
use std::path::Path;

/// Changes the snapshots of an image that nobody uses; returns those that it has then.
///
/// # Errors
/// It is in use, damaged, or what is asked for cannot be: nothing has changed. It cannot be read or written: what has
/// changed is what a power cut leaves, an image as it was or as it is to be, with leaks.
pub fn change_snapshots(
    path: &Path,
    change: SnapshotChange<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<SnapshotInfo>, ToolError> {
    if Image::open(path, false)?.header()?.has(features::DATA_FILE) {
        return Err(ToolError::refused(path, ONE_STATE));
    }
    // What is behind it has no part in this.
    let storage = Qcow2Storage::open_in_front(&Qcow2Options::new(path))?;
    refuse_damage(path, progress)?;
    storage.change_snapshots(change).map_err(|error| match error {
        SnapshotError::Refused(reason) => ToolError::refused(path, reason),
        SnapshotError::Failed(source) => ToolError::storage(path)(source),
    })?;
    drop(storage);
    Ok(info(path)?.snapshots)
}
