//! An external snapshot of an image that is served: what it holds gets another name and is only read from then on, and a new image in
//! front of it, which is empty, takes its place. So whoever opens the image by its name, now or after a restart, has the disk.
//!
//! | a cut behind | leaves |
//! |---|---|
//! | the second name, the new image beside the old one | the image as it was, and two names that nobody needs |
//! | the rename | the new image and what is behind it, of which every byte is on stable storage |
//!
//! Nothing is written to the new image before its name is on stable storage.

use super::access::Access;
use super::create::{Backing, CreateOptions, directory, is_same, new};
use super::file::{Image, ToolError, hidden};
use crate::header::Header;
use crate::served::has_room_for_mark;
use crate::{Qcow2Options, Qcow2Storage, features, reference};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::{FileStorage, Storage};

/// A snapshot on its way. Dropped before it is [kept](Self::keep), it never was.
pub struct ExternalSnapshot {
    options: Qcow2Options,
    served: Arc<dyn Storage>,
    size_bytes: u64,
    /// Where the image really is.
    image: PathBuf,
    /// Its other name.
    to: PathBuf,
    /// Where the new image is until it has the image's name.
    beside: PathBuf,
    overlay: Option<FileStorage>,
    /// How far it came.
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Nothing,
    /// The image has its second name.
    Linked,
    /// There is a new image beside it.
    Made,
    /// It has the image's name.
    Renamed,
    Kept,
}

impl ExternalSnapshot {
    /// Makes all that can be made while the image is being written: its second name, `to`, and a new image beside it. `served`
    /// is what these options have opened, without the log in front of it.
    ///
    /// # Errors
    /// What cannot be, with the reason: nothing has changed.
    pub fn prepare(options: &Qcow2Options, served: Arc<dyn Storage>, to: &Path) -> Result<ExternalSnapshot, ToolError> {
        let path = &options.path;
        if Qcow2Storage::of(&served).is_none() {
            return Err(ToolError::refused(path, Qcow2Storage::why_not(&served)));
        }
        if options.read_only {
            return Err(ToolError::refused(path, "is served read-only, and has nothing to protect"));
        }
        let image = fs::canonicalize(path).map_err(ToolError::io(path, "find"))?;
        let mut file = Image::open(&image, false)?;
        let about = file.file.metadata().map_err(ToolError::io(path, "measure"))?;
        if !about.is_file() {
            return Err(ToolError::refused(path, "is a device, which keeps its name: a snapshot needs a regular file"));
        }
        let header = file.header_to_look()?;
        let is_directory = to.as_os_str().as_bytes().ends_with(b"/");
        let Some(name) = to.file_name().filter(|_| !is_directory) else {
            return Err(ToolError::refused(to, "is no name of a file"));
        };
        let to = directory(to)?.join(name);
        if to == image {
            return Err(ToolError::refused(&to, "is the image's own name: what the disk holds needs another one"));
        }
        let own = directory(&image)?;
        stays_together(path, &to, &header, &format!("choose a name in {}", own.display()))?;
        let beside = beside(&image)?;
        let size_bytes = served.capacity_bytes();
        let mut this = ExternalSnapshot {
            options: Qcow2Options { snapshot: None, ..options.clone() },
            served,
            size_bytes,
            image,
            to,
            beside,
            overlay: None,
            stage: Stage::Nothing,
        };
        this.link()?;
        let options = CreateOptions {
            size_bytes: Some(size_bytes),
            cluster_bytes: 1 << header.cluster_bits,
            subclusters: header.has(features::EXTENDED_L2),
            backing: Some(Backing::qcow2(path, &this.to)?),
            ..CreateOptions::default()
        };
        let access = Access::of(&file.file).map_err(ToolError::io(path, "measure"))?;
        let made = this.make(&options, &access)?;
        let overlay = this.options.open_overlay(&this.beside)?;
        if !is_at(&made, &this.beside) {
            return Err(ToolError::refused(&this.beside, "was replaced by somebody who may write to its directory"));
        }
        this.overlay = Some(overlay);
        Ok(this)
    }

    /// Makes the new image. Whoever may use the image may use it. All of it by the one descriptor: the directory may be somebody's who
    /// would have others' files written, or given to him.
    fn make(&mut self, options: &CreateOptions, access: &Access) -> Result<File, ToolError> {
        let bytes = new(&self.beside, options)?.image().map_err(|reason| ToolError::refused(&self.beside, reason))?;
        if self.options.log.is_some() {
            // Before the log has left the image.
            let first = bytes.get(..options.cluster_bytes as usize).unwrap_or(&bytes);
            let has_room =
                has_room_for_mark(first).map_err(|error| ToolError::refused(&self.beside, error.to_string()))?;
            if !has_room {
                let reason = "is too long a name: the header of an image that names it as its backing file has no room for the mark of an \
                              intent log; choose a shorter one, or one in the image's directory";
                return Err(ToolError::refused(&self.to, reason));
            }
        }
        let failed = |what| ToolError::io(&self.beside, what);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.beside, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|errno| failed("make")(errno.into()))?);
        self.stage = Stage::Made;
        let failed = |what| ToolError::io(&self.beside, what);
        file.write_all_at(&bytes, 0).map_err(failed("write"))?;
        access.give(&file).map_err(failed("give the image's owner and mode to"))?;
        file.sync_all().map_err(failed("flush"))?;
        Ok(file)
    }

    /// Gives the image its second name.
    fn link(&mut self) -> Result<(), ToolError> {
        let failed = |reason: &str| ToolError::refused(&self.to, reason);
        match rustix::fs::linkat(CWD, &self.image, CWD, &self.to, AtFlags::empty()) {
            Ok(()) => self.stage = Stage::Linked,
            Err(rustix::io::Errno::EXIST) if is_same(&self.to, &self.image) => {
                return Err(failed(
                    "is another name of the image already, as a snapshot that was cut off leaves it: choose another one",
                ));
            }
            Err(rustix::io::Errno::EXIST) => return Err(failed("exists: what the disk holds needs a new name")),
            Err(rustix::io::Errno::XDEV) => {
                let directory = self.image.parent().unwrap_or(Path::new("/")).display();
                return Err(failed(&format!(
                    "lies on another file system than the image: choose a name in {directory}"
                )));
            }
            Err(errno) => return Err(ToolError::io(&self.to, "link the image as")(errno.into())),
        }
        self.check_served(&self.to)?;
        self.options.admits(&self.to)?;
        sync_directory(&self.to)
    }

    /// Whether the file that is served is there: its name may be another one's by now.
    fn check_served(&self, path: &Path) -> Result<(), ToolError> {
        match Qcow2Storage::of(&self.served).map(|served| served.is_at(path)) {
            Some(Ok(true)) => Ok(()),
            Some(Err(error)) => Err(ToolError::io(path, "measure")(error)),
            Some(Ok(false)) | None => {
                let reason =
                    "was replaced by another file, and is not what is served: its snapshot would not be of the disk";
                Err(ToolError::refused(&self.options.path, reason))
            }
        }
    }

    /// Puts the new image into the image's place, and answers with what serves the disk from now on. No request may be in flight, and
    /// whatever is written goes to the new storage. Blocks, for two flushes and a rename.
    ///
    /// # Errors
    /// The image cannot be flushed or has not been written for a while because of what happened to it, or it cannot be renamed: it is
    /// served as before.
    pub fn put(&mut self) -> Result<Arc<dyn Storage>, ToolError> {
        let path = self.options.path.clone();
        let (Some(overlay), Some(served)) = (self.overlay.take(), Qcow2Storage::of(&self.served)) else {
            return Err(ToolError::refused(&path, "has its snapshot already"));
        };
        self.check_served(&self.to)?;
        self.check_served(&self.image)?;
        let behind = served.behind_overlay(&self.options, overlay);
        let storage = behind.map_err(|error| ToolError::refused(&path, error.to_string()))?;
        fs::rename(&self.beside, &self.image).map_err(ToolError::io(&path, "replace"))?;
        self.stage = Stage::Renamed;
        sync_directory(&self.image)?;
        Ok(Arc::new(storage))
    }

    /// Leaves it as it is now.
    pub fn keep(mut self) {
        if let Some(served) = Qcow2Storage::of(&self.served)
            && let Err(error) = served.give_up_writing()
        {
            let path = self.to.display();
            tracing::warn!(%path, %error, "others are kept from reading what is only read by now, until the disk is closed");
        }
        self.stage = Stage::Kept;
    }

    /// Whether this is what it was prepared for.
    pub fn is_of(&self, served: &Arc<dyn Storage>) -> bool {
        Arc::ptr_eq(&self.served, served)
    }

    /// The size of the new image.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Where the contents of the disk are, as of this moment.
    pub fn to(&self) -> &Path {
        &self.to
    }

    /// As it was before.
    fn undo(&self) -> Result<(), ToolError> {
        if self.stage == Stage::Renamed {
            fs::rename(&self.to, &self.image).map_err(|error| {
                let image = self.image.display();
                let reason =
                    format!("has the disk, and cannot be renamed to {image}: {error}; do so before the daemon ends");
                ToolError::refused(&self.to, reason)
            })?;
            return sync_directory(&self.image);
        }
        if self.stage == Stage::Made {
            fs::remove_file(&self.beside).map_err(ToolError::io(&self.beside, "remove"))?;
        }
        fs::remove_file(&self.to).map_err(ToolError::io(&self.to, "remove"))
    }
}

impl Drop for ExternalSnapshot {
    fn drop(&mut self) {
        if matches!(self.stage, Stage::Nothing | Stage::Kept) {
            return;
        }
        if let Err(error) = self.undo() {
            tracing::error!(image = %self.image.display(), %error, "what a snapshot that failed has made cannot be undone");
        }
    }
}

/// A name beside an image, where nobody can have put anything before.
pub(super) fn beside(image: &Path) -> Result<PathBuf, ToolError> {
    Ok(hidden(&directory(image)?))
}

/// Refuses to move an image away from files that it names by where it is.
pub(super) fn stays_together(image: &Path, to: &Path, header: &Header, advice: &str) -> Result<(), ToolError> {
    let names = [&header.backing_file, &header.extensions.data_file];
    for name in names.into_iter().flatten() {
        let found = |image: &Path| reference::read(name, image).ok().map(|found| found.path);
        let real = |image: &Path| Some(directory(image).ok()?.join(image.file_name()?));
        if real(image).and_then(|image| found(&image)) != real(to).and_then(|to| found(&to)) {
            let name = String::from_utf8_lossy(name);
            let reason = format!(
                "the image that would have this name names `{name}`, which is found from its own directory alone: {advice}"
            );
            return Err(ToolError::refused(to, reason));
        }
    }
    Ok(())
}

/// Whether an open file has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |about: fs::Metadata| (about.dev(), about.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(there)) => identity(file) == identity(there),
        _ => false,
    }
}

fn sync_directory(of: &Path) -> Result<(), ToolError> {
    DirectoryOf::open(of)?.sync()
}

/// The directory of a file, open: whoever has changed a name there needs nothing more to bring that to stable storage.
pub(super) struct DirectoryOf {
    path: PathBuf,
    file: File,
}

impl DirectoryOf {
    pub(super) fn open(file: &Path) -> Result<DirectoryOf, ToolError> {
        let path = file.parent().unwrap_or(Path::new("/")).to_owned();
        let file = File::open(&path).map_err(ToolError::io(&path, "open"))?;
        Ok(DirectoryOf { path, file })
    }

    pub(super) fn sync(&self) -> Result<(), ToolError> {
        self.file.sync_all().map_err(ToolError::io(&self.path, "bring to stable storage"))
    }
}
