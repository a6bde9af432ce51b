//! An image that is served gets everything that is behind it, and names nothing behind it any more.

use super::file::{Image, ToolError};
use crate::served::Populated;
use crate::{Qcow2Options, Qcow2Storage};
use std::ops::Range;
use std::sync::Arc;
use storage::extent::DataRanges;
use storage::{Storage, StorageError};

/// What is copied where.
pub struct FromTo {
    /// The disk that guests use.
    pub from: Arc<dyn Storage>,
    /// What is written.
    pub to: Arc<dyn Storage>,
}

/// An image on its way to stand alone. Whenever it is dropped before it is [finished](Self::finish), the disk is what it was, and the image
/// has more of it itself.
pub struct Streaming {
    options: Qcow2Options,
    served: Arc<dyn Storage>,
}

impl Streaming {
    /// Of an image, which `served` has opened by these options.
    ///
    /// # Errors
    /// What cannot be streamed, with the reason.
    pub fn prepare(options: &Qcow2Options, served: Arc<dyn Storage>) -> Result<Streaming, ToolError> {
        let path = &options.path;
        if Qcow2Storage::of(&served).is_none() {
            return Err(ToolError::refused(path, Qcow2Storage::why_not(&served)));
        }
        if options.read_only {
            return Err(ToolError::refused(path, "is served read-only, and cannot be filled"));
        }
        let header = Image::open(path, false)?.header()?;
        if header.backing_file.is_none() {
            return Err(ToolError::refused(path, "has no backing file: it stands alone already"));
        }
        if header.snapshots > 0 {
            let reason = "has internal snapshots, which would lose what is behind them: \
                 delete them first with `vringd image snapshot delete`, of a disk that nobody serves";
            return Err(ToolError::refused(path, reason));
        }
        Ok(Streaming { options: options.clone(), served })
    }

    /// Shows `show` what the image does not have itself, in its order, until it answers with false. Blocks.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn gaps(&self, show: &mut dyn FnMut(Range<u64>) -> bool) -> Result<(), StorageError> {
        let Some(image) = Qcow2Storage::of(&self.served) else { return Ok(()) };
        let size_bytes = image.capacity_bytes();
        let mut at = 0;
        // What lies between two parts that the image has itself, and behind the last one.
        for part in DataRanges::exactly(&image.own(), 0..size_bytes).chain([Ok(size_bytes..size_bytes)]) {
            let part = part?;
            if !show(at..part.start) {
                break;
            }
            at = part.end;
        }
        Ok(())
    }

    /// From the disk to what fills its gaps.
    ///
    /// # Errors
    /// It is no image any more.
    pub fn route(&self) -> Result<FromTo, ToolError> {
        let lost = || ToolError::refused(&self.options.path, "is no image any more");
        let to = Populated::of(self.served.clone()).ok_or_else(lost)?;
        Ok(FromTo { from: self.served.clone(), to: Arc::new(to) })
    }

    /// Whether this is what it was prepared for.
    pub fn is_of(&self, served: &Arc<dyn Storage>) -> bool {
        Arc::ptr_eq(&self.served, served)
    }

    /// All gaps are filled: the image stands alone from now on, and this is what serves it, by options that may have changed. No request may
    /// be in flight. Blocks, for some flushes.
    ///
    /// # Errors
    /// It cannot be written: it is served as before.
    pub fn finish(&self, options: &Qcow2Options) -> Result<Arc<dyn Storage>, ToolError> {
        let refused = |reason: String| ToolError::refused(&self.options.path, reason);
        let image = Qcow2Storage::of(&self.served).ok_or_else(|| refused("is no image any more".to_owned()))?;
        let storage = image.without_backing(options).map_err(|error| refused(error.to_string()))?;
        Ok(Arc::new(storage))
    }
}
