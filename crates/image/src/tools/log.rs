//! What an image says of an intent log that is gone.

use super::file::{Image, ToolError};
use crate::served::marked;
use crate::uses::Source;
use crate::{features, rewrite};
use std::os::unix::fs::FileExt;
use std::path::Path;
use storage::kit::{ImageLock, settled};

/// Has an image that nobody uses say no more that its intent log holds more than it has: what only that had is lost. Answers whether it said
/// so. Only the header is read and changed, so that an image that is damaged, or marked as corrupt, gets to those who repair it.
///
/// # Errors
/// It is in use, or its header cannot be read or written.
pub fn forget_log(path: &Path) -> Result<bool, ToolError> {
    let mut image = Image::open(path, true)?;
    let _lock = ImageLock::take(path, &image.file, true)?;
    settled(path, &image.file, true)?;
    let old = image.header_to_look()?;
    if !old.has(features::LOGGED) {
        return Ok(false);
    }
    let mut before = vec![0; (1u64 << old.cluster_bits) as usize];
    image.read(0, &mut before).map_err(ToolError::io(path, "read"))?;
    let steps = rewrite::steps(&old, &marked(&old, None), &before);
    if !rewrite::fits(&before, &steps) {
        return Err(ToolError::refused(path, "has a header in which there is no room to change it"));
    }
    for (at, bytes) in steps {
        image.file.write_all_at(&bytes, at as u64).map_err(ToolError::io(path, "write"))?;
        image.file.sync_all().map_err(ToolError::io(path, "flush"))?;
    }
    Ok(true)
}
