//! A new image in front of one that is served.

use super::error::Trouble;
use super::{Qcow2Options, Qcow2Storage, confine::Confines, open};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use storage::kit::ImageLock;
use storage::{FileOptions, FileStorage, Links, OpenError, Storage, StorageError};

impl Qcow2Options {
    /// Opens the file of a new image that is going to be this one.
    ///
    /// # Errors
    /// As of the storage kind.
    pub(crate) fn open_overlay(&self, now_at: &Path) -> Result<FileStorage, OpenError> {
        let file = FileOptions { direct: self.direct, lock: self.lock, ..FileOptions::new(now_at) };
        Ok(FileStorage::open_to_the_last_byte(&file, Links::Refuse)?.renamed(&self.path))
    }

    /// Whether this image may lead to that file, which is there.
    ///
    /// # Errors
    /// Where it would have to lie, or what has to be allowed.
    pub(crate) fn admits(&self, file: &Path) -> Result<(), OpenError> {
        Ok(Confines::of(self).admit(file).map(|_| ())?)
    }
}

impl Qcow2Storage {
    /// What is served as an image, with nothing in front of it.
    pub fn of(storage: &Arc<dyn Storage>) -> Option<&Qcow2Storage> {
        storage.as_any()?.downcast_ref()
    }

    /// Why a storage is no image with nothing in front of it; see [`Self::of`].
    pub fn why_not(storage: &Arc<dyn Storage>) -> &'static str {
        match storage.describe().kind {
            // Whatever is below it.
            "luks" => "is served as what is encrypted in it, and this is for images without `luks` (`--luks-key-file`)",
            _ if storage.in_front().is_some() => {
                "is served with an intent log in front of it, and this is for images without one: leave `log` (`--log`) out"
            }
            _ => "is not served as a qcow2 image by itself",
        }
    }

    /// The same disk with a new image in front, which has been opened by [`open_overlay`](Qcow2Options::open_overlay) and names this one as
    /// its backing file: its contents are read through the files that are open here. Nothing may be in flight, and nothing is to be
    /// written here any more. Blocks.
    ///
    /// # Errors
    /// This image is not written any more, or cannot be brought to stable storage; what comes in front of it cannot be read.
    pub(crate) fn behind_overlay(
        &self,
        options: &Qcow2Options,
        overlay: FileStorage,
    ) -> Result<Qcow2Storage, OverlayError> {
        self.rest()?;
        let opened = open::in_front_of(options, overlay, &self.shared.chain)?;
        Ok(Qcow2Storage::start(options, opened)?)
    }

    /// Brings everything to stable storage, as if it were closed: the next change has bitmaps in use again. Nothing may be in flight.
    ///
    /// # Errors
    /// This image is not written any more, or cannot be brought to stable storage.
    pub(super) fn rest(&self) -> Result<(), OverlayError> {
        let written = self.shared.check_written().and_then(|()| self.shared.quiesce());
        let written = written.and_then(|()| self.shared.write_bitmaps_back());
        written.map_err(|trouble| self.not_written(&trouble))
    }

    pub(super) fn not_written(&self, trouble: &Trouble) -> OverlayError {
        match self.shared.broken() {
            Some(why) => OverlayError::Broken(why),
            None => OverlayError::Storage(self.failed(storage::Action::Flush, trouble)),
        }
    }

    /// Whether this is the file at a path.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn is_at(&self, path: &Path) -> std::io::Result<bool> {
        let Some(data) = self.file_of(0)? else { return Ok(false) };
        let (ours, there) = (rustix::fs::fstat(data)?, rustix::fs::lstat(path)?);
        Ok((ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino))
    }

    /// The file of an image of the chain, open once more; `None`: there is no such image.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn file_of(&self, image: usize) -> std::io::Result<Option<File>> {
        let chain = &self.shared.chain;
        let Some(image) = chain.images.get(image) else { return Ok(None) };
        let data = chain.file(image.file).hand_over()?.data;
        data.map(|fd| fd.try_clone().map(File::from)).transpose()
    }

    /// What was written up to now is only read: others may read it, too.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn give_up_writing(&self) -> std::io::Result<()> {
        let top = self.shared.chain.top();
        for file in [top.file, top.data] {
            if let Some(lock) = self.shared.chain.file(file).hand_over()?.lock {
                ImageLock::give_up_writing(lock)?;
            }
        }
        Ok(())
    }
}

/// Why the chain of an image that is served does not change.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub(crate) enum OverlayError {
    /// {0}
    Broken(&'static str),
    /// {0}
    Storage(StorageError),
    /// {0}
    Open(#[from] OpenError),
    /// {0}
    Io(#[from] std::io::Error),
}
