//! An image whose chain changes while it is served. Nothing is in flight when it does, and another storage goes on with the files that are
//! open here, under the locks that are held.
//!
//! While an image is committed, what is behind it is an image that is written itself: not a part of the image's own chain, whose tables
//! would not hear of that, but a disk of its own, which takes the place of a raw file behind the image.

use super::heading::change_header;
use super::{OverlayError, Qcow2Options, Qcow2Storage, open};
use crate::{features, rewrite};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use storage::kit::ImageLock;
use storage::{FileOptions, FileStorage, Handed, Links, Storage};

/// An image and, apart from it, what is behind it, which is written as well.
pub(crate) struct Parted {
    pub(crate) image: Arc<dyn Storage>,
    pub(crate) behind: Arc<dyn Storage>,
}

impl Qcow2Storage {
    /// Has the image name nothing behind it any more, and goes on without: it has everything itself that reads as data. Blocks.
    ///
    /// # Errors
    /// The image cannot be written, and is as it was; or it cannot be opened again, and goes on as if it were as it was.
    pub(crate) fn without_backing(&self, options: &Qcow2Options) -> Result<Qcow2Storage, OverlayError> {
        self.rest()?;
        // Before anything changes: there may be no more descriptors.
        let files = self.hand_over()?;
        let changed = change_header(&self.shared.chain, |old, first| {
            let mut new = old.clone();
            new.backing_file = None;
            new.extensions.backing_format = None;
            // What is not known may depend on what is behind the image.
            new.autoclear &= features::BITMAPS | features::DATA_FILE_RAW;
            rewrite::steps(old, &new, first)
        });
        changed.map_err(|trouble| {
            self.shared.settle_trouble(&trouble);
            self.not_written(&trouble)
        })?;
        let storage = open::handed(options, files).and_then(|opened| Qcow2Storage::start(options, opened));
        let storage = storage.inspect_err(|_| self.goes_on())?;
        self.shared.give_away();
        Ok(storage)
    }

    /// Opens what is behind the image, at the path `behind`, for writing, and goes on with both: the disk is the same. What is behind grows
    /// to its size, and is described as if it had the image's name. Blocks.
    ///
    /// # Errors
    /// One of both cannot be used so, as when somebody else reads what is behind: the image goes on as it was.
    pub(crate) fn part(&self, options: &Qcow2Options, behind: &Path) -> Result<Parted, OverlayError> {
        self.rest()?;
        let mut image = self.hand_over()?;
        let mut below = image.log.take().ok_or_else(|| std::io::Error::other("nothing is behind the image"))?;
        let file = FileOptions { direct: options.direct, lock: false, ..FileOptions::new(behind) };
        let file = FileStorage::open_to_the_last_byte(&file, Links::Refuse)?.hand_over()?;
        let same = |one: &Handed, other: &Handed| match (&one.data, &other.data) {
            (Some(one), Some(other)) => {
                let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
                Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
            }
            _ => Ok::<_, std::io::Error>(false),
        };
        if !same(&file, &below)? {
            return Err(std::io::Error::other("it is not what is behind the image").into());
        }
        let lock = below.lock.as_ref().filter(|_| options.lock).cloned();
        if let Some(lock) = &lock {
            ImageLock::take_up_writing(behind, lock)?;
        }
        (below.data, below.capacity_bytes) = (file.data, file.capacity_bytes);
        let parted = (|| {
            let below = Qcow2Storage::start(options, open::handed(options, *below)?)?;
            below.shared.check_written().map_err(|trouble| below.not_written(&trouble))?;
            if below.capacity_bytes() < self.capacity_bytes() {
                below.resize(self.capacity_bytes()).map_err(OverlayError::Storage)?;
            }
            let below: Arc<dyn Storage> = Arc::new(below);
            let opened = open::handed_over(options, image, below.clone())?;
            Ok(Parted { image: Arc::new(Qcow2Storage::start(options, opened)?), behind: below })
        })();
        match &parted {
            Ok(_) => self.shared.give_away(),
            Err(_) => {
                self.goes_on();
                give_up(lock.as_ref());
            }
        }
        parted
    }

    /// Whoever was handed the files that are open here is gone, and has written nothing.
    fn goes_on(&self) {
        self.shared.take_back();
        self.shared.chain.mark_again();
    }
}

impl Parted {
    /// Goes on with the image, and what is behind it is only read again. Nothing may be in flight. Blocks.
    ///
    /// What is behind may not come to rest: the image hides all that was written there, so it is read as it is, and whatever it has reserved is
    /// leaked, and its bitmaps, which are in use, are inconsistent.
    ///
    /// # Errors
    /// The image cannot be brought to stable storage, or one of both cannot be opened again: both go on as they are.
    pub(crate) fn join(&self, options: &Qcow2Options) -> Result<Qcow2Storage, OverlayError> {
        let lost = || std::io::Error::other("it is no image");
        let (image, behind) = (Qcow2Storage::of(&self.image).ok_or_else(lost)?, Qcow2Storage::of(&self.behind));
        let behind = behind.ok_or_else(lost)?;
        image.rest()?;
        if let Err(error) = behind.rest() {
            let path = options.path.display();
            tracing::error!(%path, %error, "what is behind the image has leaks, and its dirty bitmaps are inconsistent: it could not be brought to rest");
        }
        let chain = &image.shared.chain;
        let below = behind.hand_files_over()?;
        let lock = below.lock.as_ref().filter(|_| options.lock).cloned();
        let mut files = chain.file(chain.top().file).hand_over()?;
        files.log = Some(Box::new(below));
        let storage = open::handed(options, files).and_then(|opened| Qcow2Storage::start(options, opened));
        let storage = storage.inspect_err(|_| [image, behind].iter().for_each(|one| one.goes_on()))?;
        give_up(lock.as_ref());
        image.shared.give_away();
        behind.shared.give_away();
        Ok(storage)
    }

    /// Nothing was written to the image: `before` goes on with it.
    pub(crate) fn abandon(self, before: &Qcow2Storage, options: &Qcow2Options) {
        let lock = self.behind.hand_over().ok().and_then(|below| below.lock).filter(|_| options.lock);
        drop(self);
        before.goes_on();
        give_up(lock.as_ref());
    }

    /// Goes on with what was behind the image, which has everything that the image had. The image is nobody's any more.
    pub(crate) fn leave(&self) {
        if let Some(image) = Qcow2Storage::of(&self.image) {
            image.shared.give_away();
        }
    }
}

/// What was written is only read from now on.
fn give_up(lock: Option<&Arc<OwnedFd>>) {
    if let Some(lock) = lock
        && let Err(error) = ImageLock::give_up_writing(lock)
    {
        tracing::warn!(%error, "others are kept from reading what is behind an image, until its disk is closed");
    }
}
