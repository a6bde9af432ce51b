//! What an image that is served has itself, written into its backing file, which takes its name: the opposite of an external snapshot. So
//! whoever opens the image by its name, now or after a restart, has the disk.
//!
//! | a cut behind | leaves |
//! |---|---|
//! | any write into the backing file | the image, which hides what has changed behind it: only that is written there |
//! | the rename | the backing file by the image's name, of which every byte is on stable storage, and a second name of the image beside it |

use super::FromTo;
use super::access::Access;
use super::external::{DirectoryOf, beside, stays_together};
use super::file::{Image, ToolError, refuse_bitmaps};
use crate::served::{OverlayError, Parted};
use crate::{Behind, Qcow2Options, Qcow2Storage, features};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use storage::extent::DataRanges;
use storage::{Storage, StorageError};

/// What failed, where the backing file cannot be whose the image is.
const GIVE: &str = "give the image's owner and mode to";

/// An image on its way into its backing file.
pub struct Committing {
    options: Qcow2Options,
    served: Arc<dyn Storage>,
    /// Where the image really is, and its backing file.
    image: PathBuf,
    behind: PathBuf,
    /// By descriptors: a directory may be somebody's who would have others' files given to him.
    handed: Option<Handed>,
    /// Those of both, in which names change in the end.
    directories: OnceLock<[DirectoryOf; 2]>,
    parted: Option<Parted>,
}

/// What has the image's name in the end.
enum Renamed {
    /// Its backing file, on stable storage.
    Backing,
    /// The image, as before.
    Image(ToolError),
    /// Its backing file, unless a power cut undoes that. The image cannot have it back.
    Unsure(ToolError),
}

/// Whoever may read the image may read what gets its data, and nobody else.
struct Handed {
    image: File,
    behind: File,
    /// Whose the backing file was.
    had: Access,
}

impl Handed {
    /// As long as the backing file has another name than the image, nobody more than before may read it either.
    fn begin(served: &Qcow2Storage) -> std::io::Result<Option<Handed>> {
        let (Some(image), Some(behind)) = (served.file_of(0)?, served.file_of(1)?) else { return Ok(None) };
        let had = Access::of(&behind)?;
        Access::of(&image)?.narrowed_by(&had).give(&behind)?;
        Ok(Some(Handed { image, behind, had }))
    }

    fn finish(&self) -> std::io::Result<()> {
        Access::of(&self.image)?.give(&self.behind)
    }

    fn undo(&self) -> std::io::Result<()> {
        self.had.give(&self.behind)
    }
}

impl Committing {
    /// Of an image, which `served` has opened by these options.
    ///
    /// # Errors
    /// What cannot be committed, with the reason: nothing has changed.
    pub fn prepare(options: &Qcow2Options, served: Arc<dyn Storage>) -> Result<Committing, ToolError> {
        let path = &options.path;
        let refused = |reason: &str| Err(ToolError::refused(path, reason));
        let Some(storage) = Qcow2Storage::of(&served) else {
            return refused(Qcow2Storage::why_not(&served));
        };
        if options.read_only {
            return refused("is served read-only, and has nothing to commit");
        }
        let behind = match storage.behind(options)? {
            Behind::Qcow2(behind) => behind,
            Behind::Nothing => return refused("has no backing file into which it could be committed"),
            Behind::Raw(behind) => {
                let reason = format!(
                    "its backing file {} is raw, and cannot take the place of a qcow2 image: mirror the disk, or use \
                     `vringd image commit` when nobody serves it",
                    behind.display()
                );
                return refused(&reason);
            }
        };
        let image = fs::canonicalize(path).map_err(ToolError::io(path, "find"))?;
        let header = Image::open(&image, false)?.header()?;
        if header.snapshots > 0 {
            return refused(
                "has internal snapshots, which would be lost: delete them first with `vringd image snapshot delete`, \
                 of a disk that nobody serves",
            );
        }
        if header.has(features::DATA_FILE) {
            return refused("has an external data file, which the backing file has no place for");
        }
        refuse_bitmaps(path, &header, "`vringd ctl disk bitmap remove` removes them")?;
        let (about, there) = (measure(&image)?, measure(&behind)?);
        if !about.is_file() || !there.is_file() {
            return refused("or its backing file is a device, which keeps its name: both need to be regular files");
        }
        if about.dev() != there.dev() {
            let reason = format!("lies on another file system than its backing file {}", behind.display());
            return refused(&reason);
        }
        let below = Image::open(&behind, false)?.header()?;
        let below_refused = |reason: &str| Err(ToolError::refused(&behind, reason));
        if header.backing_file.is_none() {
            return refused("names no backing file any more: it stands alone when its disk is opened again");
        }
        if below.has(features::DATA_FILE) {
            return below_refused("is a backing file with an external data file, and is not written while it is used");
        }
        if below.has(features::CORRUPT) || below.has(features::DIRTY) {
            return below_refused("is a backing file that has to be repaired first: `vringd image check --repair`");
        }
        if below.size_bytes > served.capacity_bytes() {
            return below_refused(
                "is a backing file with a larger disk than the image's, which would grow: stream the disk instead, or \
                 `vringd image resize` the image when nobody serves it",
            );
        }
        if below.size_bytes < served.capacity_bytes() && below.backing_file.is_some() {
            return below_refused(
                "is a backing file with a smaller disk, which cannot grow over its own backing file while it is used: \
                 stream the disk instead, or `vringd image resize` the backing file when nobody serves it",
            );
        }
        stays_together(&behind, &image, &below, "stream the disk instead, or commit it when nobody serves it")?;
        let (options, directories) = (options.clone(), OnceLock::new());
        Ok(Committing { options, served, image, behind, handed: None, directories, parted: None })
    }

    /// Finds out whether files in both directories can be renamed, before anything is written, and keeps both open.
    ///
    /// # Errors
    /// The kernel's, with the file.
    pub fn try_names(&self) -> Result<(), ToolError> {
        for file in [&self.image, &self.behind] {
            let beside = beside(file)?;
            fs::hard_link(file, &beside).map_err(ToolError::io(&beside, "link an image as"))?;
            fs::remove_file(&beside).map_err(ToolError::io(&beside, "remove"))?;
        }
        self.directories().map(|_| ())
    }

    fn directories(&self) -> Result<&[DirectoryOf; 2], ToolError> {
        if let Some(open) = self.directories.get() {
            return Ok(open);
        }
        let opened = [DirectoryOf::open(&self.image)?, DirectoryOf::open(&self.behind)?];
        Ok(self.directories.get_or_init(|| opened))
    }

    /// Where the backing file is.
    pub fn behind(&self) -> &Path {
        &self.behind
    }

    /// Whether this is what it was prepared for.
    pub fn is_of(&self, served: &Arc<dyn Storage>) -> bool {
        Arc::ptr_eq(&self.served, served)
    }

    /// Opens the backing file for writing. Guests use what is copied *from* from now on. No request may be in flight. Blocks, for some
    /// flushes.
    ///
    /// # Errors
    /// Somebody else uses the backing file, or it cannot be opened: the image is served as before.
    pub fn begin(&mut self) -> Result<FromTo, ToolError> {
        let refused = |reason: String| ToolError::refused(&self.behind, reason);
        let lost = || refused("is behind no image any more".to_owned());
        let image = Qcow2Storage::of(&self.served).ok_or_else(lost)?;
        self.check_place(image)?;
        let handed = Handed::begin(image).map_err(ToolError::io(&self.behind, GIVE))?;
        let parted = image.part(&self.options, &self.behind).map_err(|error| match error {
            // It is known by the image's name already.
            OverlayError::Storage(StorageError::Grow { asked_bytes, reason, .. }) => {
                refused(format!("cannot grow to the {asked_bytes} bytes of the image: {reason}"))
            }
            error => refused(error.to_string()),
        });
        self.handed = handed;
        let parted = parted.inspect_err(|_| self.take_back())?;
        let route = FromTo { from: parted.image.clone(), to: parted.behind.clone() };
        self.parted = Some(parted);
        Ok(route)
    }

    /// Nobody uses what [`begin`](Self::begin) has answered with: the image is served as before.
    pub fn abandon(&mut self) {
        if let (Some(parted), Some(image)) = (self.parted.take(), Qcow2Storage::of(&self.served)) {
            parted.abandon(image, &self.options);
            self.take_back();
            // Whose descriptors have the locks, too.
            self.handed = None;
        }
    }

    /// The backing file is whose it was.
    fn take_back(&self) {
        if let Some(Err(error)) = self.handed.as_ref().map(Handed::undo) {
            tracing::warn!(path = %self.behind.display(), %error, "the owner and mode of the backing file are those of the image now");
        }
    }

    /// Shows `show` what the image has itself, in its order, until it answers with false. Blocks.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn parts(&self, show: &mut dyn FnMut(Range<u64>) -> bool) -> Result<(), StorageError> {
        let image = self.parted.as_ref().and_then(|parted| Qcow2Storage::of(&parted.image));
        let Some(image) = image else { return Ok(()) };
        for part in DataRanges::exactly(&image.own(), 0..image.capacity_bytes()) {
            if !show(part?) {
                break;
            }
        }
        Ok(())
    }

    /// Everything of the image is in its backing file and stable there: that takes the image's name, and serves the disk. No request may
    /// be in flight. Blocks, for a rename.
    ///
    /// # Errors
    /// It cannot be renamed, and nothing has changed.
    pub fn finish(&self) -> Result<Arc<dyn Storage>, ToolError> {
        let directories = self.directories()?;
        self.finish_by(&mut || directories.iter().try_for_each(DirectoryOf::sync))
    }

    /// As above. `sync` brings the names in both directories to stable storage.
    pub(super) fn finish_by(
        &self,
        sync: &mut dyn FnMut() -> Result<(), ToolError>,
    ) -> Result<Arc<dyn Storage>, ToolError> {
        let lost = || ToolError::refused(&self.behind, "is not written");
        let parted = self.parted.as_ref().ok_or_else(lost)?;
        self.check_place(Qcow2Storage::of(&parted.image).ok_or_else(lost)?)?;
        if !Qcow2Storage::of(&parted.behind).ok_or_else(lost)?.is_at(&self.behind).unwrap_or(false) {
            return Err(ToolError::refused(&self.behind, "was replaced by another file: it is not what was written"));
        }
        let handed = self.handed.as_ref().map_or(Ok(()), Handed::finish);
        handed.map_err(ToolError::io(&self.behind, GIVE))?;
        let beside = beside(&self.image)?;
        fs::hard_link(&self.image, &beside).map_err(ToolError::io(&beside, "link the image as"))?;
        let remove = || {
            // It is there no more where it has been put back.
            if let Err(error) = fs::remove_file(&beside)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!(path = %beside.display(), %error, "it is left over from a commit, and nobody needs it: remove it");
            }
        };
        match self.rename(&beside, sync) {
            Renamed::Backing => remove(),
            Renamed::Image(error) => {
                remove();
                return Err(error);
            }
            // Everything is in the backing file, which whoever opens the image by its name finds from now on.
            Renamed::Unsure(error) => {
                let (path, image) = (self.image.display(), beside.display());
                tracing::error!(%path, %image, %error, "its backing file has its name, and a power cut may undo that: then what was written since is in the backing file alone; see to the file system, and remove the image");
            }
        }
        parted.leave();
        Ok(parted.behind.clone())
    }

    /// Gives the backing file the image's name, for good: what is written from now on is hidden by the image if a power cut brings that
    /// back.
    fn rename(&self, beside: &Path, sync: &mut dyn FnMut() -> Result<(), ToolError>) -> Renamed {
        if let Err(error) = fs::rename(&self.behind, &self.image) {
            return Renamed::Image(ToolError::io(&self.image, "replace")(error));
        }
        let Err(error) = sync() else { return Renamed::Backing };
        // Until it has its name again, the one beside it is the only one that the image has.
        if fs::hard_link(&self.image, &self.behind).is_err() {
            return Renamed::Unsure(error);
        }
        if fs::rename(beside, &self.image).is_err() {
            // It is what the image's name leads to.
            let _ = fs::remove_file(&self.behind);
            return Renamed::Unsure(error);
        }
        Renamed::Image(sync().err().unwrap_or(error))
    }

    /// It is not to be committed any more: what serves it from now on, by options that may have changed. No request may be in flight.
    /// Blocks, for some flushes.
    ///
    /// # Errors
    /// The image cannot be brought to stable storage: both files are served as they are.
    pub fn undo(&self, options: &Qcow2Options) -> Result<Arc<dyn Storage>, ToolError> {
        let Some(parted) = &self.parted else { return Ok(self.served.clone()) };
        let failed = |error: OverlayError| ToolError::refused(&self.options.path, error.to_string());
        let joined = parted.join(options).map_err(failed)?;
        self.take_back();
        Ok(Arc::new(joined))
    }

    /// Whether the image is where it is looked for: its name may be another one's by now.
    fn check_place(&self, image: &Qcow2Storage) -> Result<(), ToolError> {
        match image.is_at(&self.image) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(ToolError::refused(&self.image, "was replaced by another file, and is not what is served"))
            }
            Err(error) => Err(ToolError::io(&self.image, "measure")(error)),
        }
    }
}

fn measure(path: &Path) -> Result<fs::Metadata, ToolError> {
    fs::symlink_metadata(path).map_err(ToolError::io(path, "measure"))
}
