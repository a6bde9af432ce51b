//! What an image says of an intent log that is gone.

use super::file::ToolError;
use crate::{Qcow2Options, Qcow2Storage};
use std::path::Path;
use storage::Marked;
use values::LogFile;

/// Has an image that nobody uses say no more that its intent log holds more than it has: what only that had is lost. Answers whether it said
/// so.
///
/// # Errors
/// It is in use, or cannot be read or written.
pub fn forget_log(path: &Path) -> Result<bool, ToolError> {
    // What is behind it has no part in this, nor has the log, which is not opened.
    let options = Qcow2Options { log: Some(LogFile::new("")), ..Qcow2Options::new(path) };
    let storage = Qcow2Storage::open_in_front(&options)?;
    let said = storage.log_mark().map_err(ToolError::storage(path))?.is_some();
    if said {
        storage.set_log_mark(None).map_err(ToolError::storage(path))?;
    }
    Ok(said)
}
