//! From a path to an open, locked, measured image.

use super::FileStorage;
use super::gate::Gate;
use super::holes::Known;
use super::issue::Executor;
use super::looks;
use super::measure::{self, Measures};
use super::space::Abilities;
use crate::jobs::WORK;
use crate::kind::{LUKS, NO_LOCK, READ_ONLY};
use crate::lock::ImageLock;
use crate::{
    Access, Description, Execution, Handed, KEY_FILE, Kind, Links, Look, Need, OpenError, Opened, Storage,
    check_migratable, late,
};
use engine::SharedFile;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use utoipa::ToSchema;
use values::{FieldError, Luks};

/// A regular file or a block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FileStorage)]
pub struct FileOptions {
    /// Path of the image or device.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Bypass the page cache (O_DIRECT).
    #[serde(default)]
    pub direct: bool,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Where its calls run.
    #[serde(default)]
    pub execution: Execution,
    /// Lock the image, so that no two writers open it; true when left out.
    #[serde(default = "FileOptions::lock_default")]
    pub lock: bool,
    /// Open and lock the image only while a guest runs, so that another daemon can take it over when the guest migrates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migratable: bool,
    /// The disk is what is encrypted in the LUKS container that lies here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luks: Option<Luks>,
}

impl FileOptions {
    /// `path`, through the page cache, for reading and writing, locked, executed where it fits best.
    pub fn new(path: impl Into<PathBuf>) -> FileOptions {
        FileOptions {
            path: path.into(),
            direct: false,
            read_only: false,
            execution: Execution::Auto,
            lock: true,
            migratable: false,
            luks: None,
        }
    }

    fn lock_default() -> bool {
        true
    }
}

impl Kind for FileOptions {
    fn check(&self, _block_size_bytes: u32) -> Result<(), FieldError> {
        if self.path.as_os_str().is_empty() {
            return Err(FieldError::new("storage.path", "is empty: give the path of an image or block device"));
        }
        let obstacles = [(self.read_only, READ_ONLY), (!self.lock, NO_LOCK), (self.luks.is_some(), LUKS)];
        check_migratable(self, &obstacles)?;
        self.luks.as_ref().map_or(Ok(()), Luks::check)
    }

    fn migratable(&self) -> Option<&dyn Look> {
        self.migratable.then_some(self)
    }

    fn open(&self) -> Result<Opened, OpenError> {
        let execution = self.execution;
        let storage = FileStorage::open_without_threads(&FileOptions { execution: Execution::Auto, ..self.clone() })?;
        if self.luks.is_none() {
            looks::warn_of_format(&self.path);
        }
        Ok(Opened::new(storage.describe(), move || {
            storage.start_threads(execution)?;
            Ok(Arc::new(storage))
        }))
    }

    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        Ok(Arc::new(FileStorage::adopt(self, handed)?))
    }

    fn needs(&self) -> Vec<Need> {
        let image = Need { field: "storage.path", path: self.path.clone(), access: Access::file(self.read_only) };
        std::iter::once(image).chain(self.luks.as_ref().map(Need::key_file)).collect()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        let key_file = self.luks.as_mut().map(|luks| (KEY_FILE, &mut luks.key_file));
        std::iter::once(("storage.path", &mut self.path)).chain(key_file).collect()
    }

    fn luks(&self) -> Option<&Luks> {
        self.luks.as_ref()
    }

    fn set_execution(&mut self, execution: Execution) {
        self.execution = execution;
    }
}

impl Look for FileOptions {
    /// As a reader: whether a file takes discards is found out by punching a hole behind its end, where the one who has it may be writing
    /// by then.
    fn look(&self) -> Result<(Description, u64), OpenError> {
        let reader = FileOptions { read_only: true, lock: false, execution: Execution::Auto, ..self.clone() };
        let storage = FileStorage::open_without_threads(&reader)?;
        let (about, discard) = (storage.describe().executed(self.execution), storage.abilities.discard());
        Ok((Description { read_only: false, discard, write_zeroes: true, ..about }, storage.capacity_bytes()))
    }
}

impl FileStorage {
    /// Opens an image. The file's contents and size are not changed.
    ///
    /// # Errors
    /// One line that names the path and the fix.
    pub fn open(options: &FileOptions) -> Result<FileStorage, OpenError> {
        let storage = Self::open_without_threads(options)?;
        WORK.prepare();
        Ok(storage)
    }

    /// Starts the threads of an image that was opened without.
    ///
    /// # Errors
    /// As for [`Storage::set_execution`].
    pub fn start_threads(&self, execution: Execution) -> Result<(), OpenError> {
        WORK.prepare();
        Ok(self.set_execution(execution)?)
    }

    /// As [`FileStorage::open`], and starts no thread unless the execution is a pool.
    ///
    /// # Errors
    /// As [`FileStorage::open`].
    pub fn open_without_threads(options: &FileOptions) -> Result<FileStorage, OpenError> {
        FileStorage::open_within(options, late::PATIENCE)
    }

    /// As above, with the last sector also where the file ends inside it: its missing bytes read as zeroes. For images whose format
    /// says where they end.
    ///
    /// # Errors
    /// As [`FileStorage::open`]; a symbolic link on the way where none may be.
    pub fn open_to_the_last_byte(options: &FileOptions, links: Links) -> Result<FileStorage, OpenError> {
        let mut storage = FileStorage::open_by(options, links, late::PATIENCE)?;
        let failed = |source| OpenError::Path { path: options.path.clone(), what: "measure", source, hint: "" };
        let size_bytes = measure::size_bytes(&*storage.file).map_err(failed)?;
        *storage.capacity_bytes.get_mut() = size_bytes.next_multiple_of(512);
        Ok(storage)
    }

    /// As it is, by the name that it is about to have.
    #[must_use]
    pub fn renamed(mut self, path: &Path) -> FileStorage {
        path.clone_into(&mut self.path);
        self
    }

    /// As above, for those who wait that long for the I/O of the dead.
    ///
    /// # Errors
    /// As [`FileStorage::open`].
    pub fn open_within(options: &FileOptions, patience: Duration) -> Result<FileStorage, OpenError> {
        FileStorage::open_by(options, Links::Follow, patience)
    }

    fn open_by(options: &FileOptions, links: Links, patience: Duration) -> Result<FileStorage, OpenError> {
        let path = &options.path;
        let fd = open_image(options, links)?;
        let hold = match options.lock {
            true => Hold::Locks(ImageLock::take_by(links, path, &fd, !options.read_only)?),
            false => Hold::Life(Arc::new(open_again(path, &fd, links)?)),
        };
        let alone = options.lock && !options.read_only;
        let guarded = late::wait(path, &fd, alone, patience).and_then(|()| {
            let failed = |source| OpenError::Lock { path: path.clone(), source };
            late::mark(&fd, hold.fd(), alone).map_err(failed)
        });
        match guarded {
            // Who does without locks does so where there are none, too.
            Err(OpenError::Lock { source, .. }) if !options.lock => {
                let path = path.display();
                tracing::warn!(%path, %source, "nobody can tell whether a killed server still has I/O under way: no locks here");
            }
            other => other?,
        }
        FileStorage::new(options, Arc::new(fd), Some(hold), None)
    }

    /// Goes on with an image that another program has opened.
    ///
    /// # Errors
    /// As [`Kind::adopt`].
    pub fn adopt(options: &FileOptions, mut handed: Handed) -> Result<FileStorage, OpenError> {
        let fd = handed.take_data()?;
        check_kind(&options.path, &fd)?;
        let device =
            rustix::fs::fstat(&fd).is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice);
        let hold = match (options.lock, handed.lock) {
            (true, Some(lock)) => Some(Hold::Locks(ImageLock::adopt(lock, !options.read_only, device))),
            (true, None) => return Err(OpenError::NothingHanded),
            // Older programs hand nothing over without locks, and have no marks either.
            (false, life) => life.map(Hold::Life),
        };
        if let Some(hold) = &hold {
            // Nothing is under way now, and what was marked before may have been so in an older way.
            if let Err(error) = late::mark(&fd, hold.fd(), options.lock && !options.read_only) {
                tracing::debug!(path = %options.path.display(), %error, "I/O is not marked as under way");
            }
        }
        let storage = FileStorage::new(options, fd, hold, Some(handed.capacity_bytes))?;
        WORK.prepare();
        Ok(storage)
    }

    /// Marks I/O as under way again, after another storage that was handed the same file is gone: it took the marks with it. So nobody
    /// takes this one's I/O for that of a process that was killed. Nothing may be under way.
    pub fn mark_again(&self) {
        let Some(hold) = &self.hold else { return };
        // Where there are no locks there is no mark.
        if let Err(error) = late::mark(&*self.file, hold.fd(), hold.locks().is_some() && !self.read_only) {
            tracing::debug!(path = %self.path.display(), %error, "I/O is not marked as under way");
        }
    }

    /// `capacity_bytes`: that of the image unless it is given.
    fn new(
        options: &FileOptions,
        fd: Arc<OwnedFd>,
        hold: Option<Hold>,
        capacity_bytes: Option<u64>,
    ) -> Result<FileStorage, OpenError> {
        let path = &options.path;
        let failed = |what| move |source| OpenError::Path { path: path.clone(), what, source, hint: "" };
        let measures = Measures::take(&fd, options.direct).map_err(failed("measure"))?;
        let size_bytes = measure::size_bytes(&fd).map_err(failed("measure"))?;
        if size_bytes < 512 {
            return Err(OpenError::Empty { path: path.clone(), size_bytes });
        }
        let abilities = Abilities::probe(&fd, &measures, options.read_only, size_bytes);
        let executor = Executor::new(options.execution, measures.memory)?;
        let tracked = options.direct && measures.offset_align > 512 && !options.read_only;
        Ok(FileStorage {
            path: path.clone(),
            file: Arc::new(SharedFile::new(fd)),
            hold,
            read_only: options.read_only,
            direct: options.direct,
            capacity_bytes: AtomicU64::new(capacity_bytes.unwrap_or(size_bytes / 512 * 512)),
            executor,
            gate: Gate::new(tracked),
            abilities: Arc::new(abilities),
            measures,
            known: Known::default(),
            resizing: Mutex::new(()),
        })
    }
}

/// What says that the storage of an open image is alive, on a file description without I/O.
#[derive(Debug)]
pub(super) enum Hold {
    /// The image's locks as well.
    Locks(ImageLock),
    /// No more than that.
    Life(Arc<OwnedFd>),
}

impl Hold {
    pub(super) fn fd(&self) -> &Arc<OwnedFd> {
        match self {
            Hold::Locks(lock) => lock.fd(),
            Hold::Life(fd) => fd,
        }
    }

    /// The image's locks, if they were taken.
    pub(super) fn locks(&self) -> Option<&ImageLock> {
        match self {
            Hold::Locks(lock) => Some(lock),
            Hold::Life(_) => None,
        }
    }
}

/// Another description of the image that is open as `fd`.
fn open_again(path: &Path, fd: &OwnedFd, links: Links) -> Result<OwnedFd, OpenError> {
    let failed = |errno: Errno| OpenError::Path { path: path.to_owned(), what: "open", source: errno.into(), hint: "" };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let again = links.open(path, flags).map_err(failed)?;
    let [ours, theirs] = [&again, fd].map(rustix::fs::fstat);
    let (ours, theirs) = (ours.map_err(failed)?, theirs.map_err(failed)?);
    if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino) {
        return Err(OpenError::Replaced { path: path.to_owned() });
    }
    Ok(again)
}

fn open_image(options: &FileOptions, links: Links) -> Result<OwnedFd, OpenError> {
    let path = &options.path;
    // NONBLOCK: a FIFO must not keep us waiting before we have seen that it is one.
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    flags.set(OFlags::DIRECT, options.direct);
    let fd = links.open(path, flags).map_err(|errno| {
        let source = errno.into();
        OpenError::Path { path: path.clone(), what: "open", source, hint: open_hint(errno, options) }
    })?;
    check_kind(path, &fd)?;
    Ok(fd)
}

/// Forgets what this host's page cache has of an image and does not have to write: another host may have written it since.
///
/// # Errors
/// It cannot be opened.
pub fn forget_cached(path: &Path) -> Result<(), OpenError> {
    let file = open_to_look(path, OFlags::RDONLY)?;
    // Where there is no such advice there is no such cache.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    Ok(())
}

/// Finds out whether an image can be opened for writing, and changes nothing.
///
/// # Errors
/// It cannot.
pub fn check_writable(path: &Path) -> Result<(), OpenError> {
    open_to_look(path, OFlags::RDWR).map(drop)
}

/// Finds out whether the image may be opened as `options` say, by its permissions and those of its file system. It is not opened.
///
/// # Errors
/// It may not.
pub fn check_access(options: &FileOptions) -> Result<(), OpenError> {
    let read = rustix::fs::Access::READ_OK;
    let access = if options.read_only { read } else { read | rustix::fs::Access::WRITE_OK };
    rustix::fs::accessat(CWD, &options.path, access, AtFlags::EACCESS).map_err(|errno| OpenError::Path {
        path: options.path.clone(),
        what: "open",
        source: errno.into(),
        hint: open_hint(errno, options),
    })
}

/// Finds out whether files can be made in a directory, and leaves none there.
///
/// # Errors
/// They cannot.
pub fn check_makes_files(directory: &Path) -> Result<(), OpenError> {
    let path = directory.to_owned();
    let failed = |errno: Errno| OpenError::Path { path, what: "make a file in", source: errno.into(), hint: "" };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        // Nobody knows, then.
        Ok(_) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Opens a regular file or a block device for somebody who is not its user.
pub(crate) fn open_to_look(path: &Path, access: OFlags) -> Result<OwnedFd, OpenError> {
    let failed = |errno: Errno| OpenError::Path { path: path.to_owned(), what: "open", source: errno.into(), hint: "" };
    let file = Links::Follow.open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK).map_err(failed)?;
    check_kind(path, &file)?;
    Ok(file)
}

/// Refuses everything but regular files and block devices.
///
/// # Errors
/// One that names what it is.
pub fn check_kind(path: &Path, fd: impl AsFd) -> Result<(), OpenError> {
    let about = rustix::fs::fstat(fd).map_err(|errno| OpenError::Path {
        path: path.to_owned(),
        what: "inspect",
        source: errno.into(),
        hint: "",
    })?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile | FileType::BlockDevice => Ok(()),
        other => Err(OpenError::Kind { path: path.to_owned(), what: measure::kind_words(other) }),
    }
}

fn open_hint(errno: Errno, options: &FileOptions) -> &'static str {
    match errno {
        Errno::NOENT => "; create an image with `truncate -s SIZE`",
        Errno::ACCESS | Errno::PERM if !options.read_only => "; `read_only` needs less permission",
        Errno::ROFS => "; use `read_only`",
        Errno::INVAL if options.direct => {
            "; this file system has no O_DIRECT: leave `direct` out (`--no-direct` for a volume)"
        }
        Errno::BUSY => "; the device is mounted or part of a RAID or volume group",
        Errno::TXTBSY => "; it is in use as swap space or is being executed",
        Errno::ISDIR => "; a disk needs a regular file or a block device",
        _ => "",
    }
}
