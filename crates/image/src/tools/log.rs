//! What an image says of an intent log that is gone.

use super::file::{Image, ToolError};
use crate::features;
use crate::served::marked;
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
    let steps = image.steps(&old, &marked(&old, None), "has a header in which there is no room to change it")?;
    image.take_steps(&steps)?;
    Ok(true)
}
