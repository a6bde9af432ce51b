//! A log in front of a disk that is a storage of its own: a qcow2 image, which has no log itself.
//!
//! The log's file has superblocks and records and nothing else, so that the disk stays what every tool reads. As long as the log may
//! hold what the disk has not, the disk says so ([`super::pair`]).

use super::blocking::StorageBlocks;
use super::epoch::next_epoch;
use super::error::VolumeError;
use super::memory::{self, Home, Memory};
use super::open::{Opening, VolumeOptions, check_dirty_bytes, on_the_spot, way};
use super::{LoggedOptions, LoggedStorage, pair};
use crate::format::{FormatError, Superblock, close, read_superblock};
use crate::recover::Recovered;
use crate::{Blocks, Progress};
use engine::Solo;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{
    Access, Action, FileOptions, FileStorage, GoBeforeError, Handed, Marked, Need, OpenError, Opened, Storage,
    StorageError,
};
use values::LogFile;

/// How long a log is opened in front of another disk again and again, where that fails for what runs short.
const MOVE_PATIENCE: Duration = Duration::from_millis(500);
const MOVE_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Puts the log in front of the disk that `lower` opens. The log is opened now, before paths go out of sight, and written back when it
/// starts. `lock`: whether the log is locked.
///
/// # Errors
/// It is no such log, or its memory file cannot be used.
pub fn open_apart(log: &LogFile, lock: bool, lower: Opened) -> Result<Opened, OpenError> {
    let opened = OpenedLog::new(log, lock)?;
    let about = format!("{log:?} before {lower:?}");
    Ok(Opened::new(about, move || {
        let (storage, ..) = opened.start(lower.start()?, Leniency::default(), &mut |_| {})?;
        Ok(Arc::new(storage))
    }))
}

/// Goes on with what another program has handed over; `lower` goes on with the disk.
///
/// # Errors
/// Something is missing, and as [`open_apart`].
pub fn adopt_apart(
    log: &LogFile,
    lock: bool,
    mut handed: Handed,
    lower: impl FnOnce(Handed) -> Result<Arc<dyn Storage>, OpenError>,
) -> Result<Arc<dyn Storage>, OpenError> {
    let (Some(below), Some(fd)) = (handed.log.take(), handed.memory.take()) else {
        return Err(OpenError::NothingHanded);
    };
    let file = Arc::new(FileStorage::adopt(&file_options(log, lock), handed)?);
    let superblock = superblock(&log.path, &file)?;
    let path = memory::found(&log.memory_file, &superblock.volume);
    let memory = Memory { fd, path, found: true, handed: true, home: None };
    let (storage, ..) =
        OpenedLog { log: log.clone(), file, memory }.start(lower(*below)?, Leniency::default(), &mut |_| {})?;
    Ok(Arc::new(storage))
}

/// What a sandbox has to let through for the log.
pub fn needs_of_log(log: &LogFile) -> Vec<Need> {
    let mut needs = vec![Need { field: "storage.log.path", path: log.path.clone(), access: Access::Write }];
    // A memory file is removed when its log is closed.
    needs.extend(memory::directory(&log.memory_file).map(|path| Need {
        field: "storage.log.memory_file",
        path,
        access: Access::Make,
    }));
    needs
}

/// The log as a volume, for what is the same of both.
pub(super) fn at(log: &LogFile) -> VolumeOptions {
    VolumeOptions { memory_file: log.memory_file.clone(), direct: log.direct, ..VolumeOptions::new(&log.path) }
}

/// Refuses a disk that does not belong to the log, whatever a memory file holds. Changes nothing.
///
/// # Errors
/// See [`pair`].
pub(super) fn check_pair(log: &LogFile, disk: &Arc<dyn Storage>, unmarked: bool) -> Result<(), VolumeError> {
    let file = Arc::new(FileStorage::open(&file_options(log, true))?);
    let superblock = superblock(&log.path, &file)?;
    let records = pair::begins(&superblock, &mut way(&log.path, file)?);
    pair::of(disk, &log.path, &superblock, records, records && !unmarked).map(|_| ())
}

fn file_options(log: &LogFile, lock: bool) -> FileOptions {
    on_the_spot(FileOptions { direct: log.direct, lock, ..FileOptions::new(&log.path) })
}

pub(super) fn superblock(path: &Path, file: &Arc<FileStorage>) -> Result<Superblock, VolumeError> {
    let superblock = read_superblock(&mut way(path, file.clone())?).map_err(VolumeError::format(path))?;
    if !superblock.apart {
        return Err(VolumeError::format(path)(FormatError::Whole));
    }
    Ok(superblock)
}

/// What a person has decided beforehand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leniency {
    /// The log ends where it cannot be read.
    pub(super) unreadable: bool,
    /// The disk is the log's although it does not say so.
    pub(super) unmarked: bool,
}

/// A log whose file is open, and that is neither replayed nor served.
pub(super) struct OpenedLog {
    log: LogFile,
    file: Arc<FileStorage>,
    memory: Memory,
}

impl OpenedLog {
    /// Changes nothing but that there is a memory file.
    pub(super) fn new(log: &LogFile, lock: bool) -> Result<OpenedLog, VolumeError> {
        check_dirty_bytes(log.dirty_memory.0)?;
        let file = Arc::new(FileStorage::open_without_threads(&file_options(log, lock))?);
        let superblock = superblock(&log.path, &file)?;
        superblock.check_length(file.capacity_bytes()).map_err(VolumeError::format(&log.path))?;
        let memory = Memory::open(&log.memory_file, &superblock, Home::of(&log.path))?;
        memory.contents(&superblock)?;
        Ok(OpenedLog { log: log.clone(), file, memory })
    }

    /// Writes the log back to `disk`, and starts the threads; see [`super::open::OpenedVolume::replay`].
    pub(super) fn start(
        self,
        disk: Arc<dyn Storage>,
        leniency: Leniency,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(LoggedStorage, Recovered, u64), VolumeError> {
        let OpenedLog { log, file, memory } = self;
        file.start_threads(disk.describe().execution)?;
        let options = LoggedOptions { dirty_bytes: log.dirty_memory.0, sync: log.sync, ..LoggedOptions::default() };
        open_over(file, disk, &log.path, memory, options, leniency, progress)
    }
}

/// Opens a log in `file`, whose name is `path`, before `disk`.
fn open_over(
    file: Arc<dyn Storage>,
    disk: Arc<dyn Storage>,
    path: &Path,
    memory: Memory,
    options: LoggedOptions,
    leniency: Leniency,
    progress: &mut dyn FnMut(Progress),
) -> Result<(LoggedStorage, Recovered, u64), VolumeError> {
    let opening = Opening {
        disk: Some(disk),
        log_path: Some(path.display().to_string()),
        salvage: leniency.unreadable,
        trusts: leniency.unmarked,
        ..Opening::of(file, path, memory, options)
    };
    opening.replay(progress)
}

impl LoggedStorage {
    /// Opens the log in `file` before `disk`. What is in memory ends with the process.
    ///
    /// # Errors
    /// It is no such log, does not belong to the disk, or cannot be replayed; or a field of the options is out of range.
    pub fn open_apart(
        file: Arc<dyn Storage>,
        disk: Arc<dyn Storage>,
        options: &LoggedOptions,
    ) -> Result<LoggedStorage, VolumeError> {
        check_dirty_bytes(options.dirty_bytes)?;
        let path = file.describe().target;
        open_over(file, disk, path.as_ref(), Memory::anonymous()?, options.clone(), Leniency::default(), &mut |_| {})
            .map(|(storage, ..)| storage)
    }
}

impl LoggedStorage {
    /// What the disk says of the log in front of it.
    pub(super) fn marked(&self) -> Result<&dyn Marked, StorageError> {
        self.shared.lower.marked().ok_or_else(|| StorageError::errno(Action::Write, libc::EOPNOTSUPP))
    }

    /// Takes what [`moved`](Self::moved) is going to need, for a moment: what this process has too little of keeps the log where it is.
    pub(super) fn check_moves(&self) -> Result<(), StorageError> {
        let refused = |error: io::Error| {
            let reason = format!("its log cannot be opened once more: {error} (check RLIMIT_NOFILE and RLIMIT_NPROC)");
            StorageError::Io { action: Action::Flush, source: io::Error::other(reason) }
        };
        // The rings are those of the log, of its part of both and of the disk. Write-back has as many before as behind.
        let rings = (0..3).map(|_| Solo::for_one()).collect::<io::Result<Vec<_>>>().map_err(refused)?;
        let memory = [self.write_back.memory(), self.write_back.memory()];
        for memory in memory {
            memory.map_err(|error| refused(io::Error::other(error)))?;
        }
        let thread = std::thread::Builder::new().name("volume".into()).spawn(|| {}).map_err(refused)?;
        // It has nothing to do that could fail.
        let _ = thread.join();
        drop(rings);
        Ok(())
    }

    /// As [`moved`](Self::moved); what runs short in the middle of it may be there again a moment later. Guests wait meanwhile.
    pub(super) fn moved_at_last(&self, disk: &Arc<dyn Storage>) -> Result<LoggedStorage, VolumeError> {
        let began = Instant::now();
        loop {
            match self.moved(disk.clone()) {
                Err(error) if is_lack(&error) && began.elapsed() < MOVE_PATIENCE => {
                    std::thread::sleep(MOVE_AGAIN_AFTER);
                }
                moved => return moved,
            }
        }
    }

    /// Ends this opening as a killed process would, and begins another one before `disk`.
    pub(super) fn moved(&self, disk: Arc<dyn Storage>) -> Result<LoggedStorage, VolumeError> {
        // Nothing is dirty, and the log is empty. The next opening has the memory.
        self.write_back.abandon();
        let options = LoggedOptions {
            dirty_bytes: self.shared.cache_bytes(),
            sync: self.shared.sync_mode(),
            barriers: self.shared.barriers,
        };
        let (home, memory) = (self.shared.home.clone(), self.write_back.memory()?);
        let opening = Opening {
            disk: Some(disk),
            log_path: self.log_path.clone(),
            ..Opening::of(home, self.write_back.path(), memory, options)
        };
        opening.replay(&mut |_| {}).map(|(storage, ..)| storage)
    }

    /// `disk`, which the log could not go before, goes on without: it does not say that it misses one, and nobody misses what was in
    /// memory. As far as that can be: a log that is not closed in order stays what that disk says, or is empty. A disk that cannot be told
    /// is not written any more; the log is left as it is then, and may still go before the disk that it was before. Answers which of the two
    /// `why` is about.
    pub(super) fn go_without(&self, disk: &Arc<dyn Storage>, why: OpenError) -> GoBeforeError {
        if let Some(Err(error)) = disk.marked().map(|disk| disk.set_log_mark(None)) {
            tracing::warn!(%error, "the disk still says that it misses its log");
            return GoBeforeError::Disk(why);
        }
        let path = self.write_back.path();
        let closed = way(path, self.shared.home.clone()).and_then(|mut home| {
            // The opening that failed may have written one.
            let mut superblock = read_superblock(&mut home).map_err(VolumeError::format(path))?;
            // As at every closing: beyond the marks that copies may have.
            superblock.epoch = next_epoch(superblock.epoch);
            close(&mut home, &mut superblock).map_err(VolumeError::format(path))
        });
        match closed {
            Err(error) if may_be_a_log(&error) => {
                tracing::warn!(%error, "the log that was left is not closed in order, and its memory file stays");
            }
            _ => self.write_back.forget_memory(),
        }
        GoBeforeError::Log(why)
    }
}

/// Whether a process, or all of them together, have too much of something now.
fn is_lack(error: &VolumeError) -> bool {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::EAGAIN, libc::ENOMEM].map(Some);
    let mut causes = std::iter::successors(Some(error as &dyn Error), |error| (*error).source());
    causes.any(|cause| cause.downcast_ref().is_some_and(|error: &io::Error| lacks.contains(&error.raw_os_error())))
}

/// Whether a log may be there although it cannot be read or written now: then its next opening asks for the memory.
fn may_be_a_log(error: &VolumeError) -> bool {
    !matches!(error, VolumeError::Format { source, .. } if !matches!(source, FormatError::Io { .. }))
}

/// A log's file and the disk that is apart as one storage, as recovery sees a volume: the disk begins behind the log.
pub(super) struct Both {
    pub(super) file: StorageBlocks,
    pub(super) disk: StorageBlocks,
    /// Byte of the superblock's data offset.
    pub(super) data_offset: u64,
}

impl Both {
    fn at(&mut self, offset: u64) -> (&mut StorageBlocks, u64) {
        match offset.checked_sub(self.data_offset) {
            Some(offset) => (&mut self.disk, offset),
            None => (&mut self.file, offset),
        }
    }
}

impl Blocks for Both {
    fn len(&self) -> u64 {
        self.data_offset.saturating_add(self.disk.len())
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (blocks, at) = self.at(offset);
        blocks.read_at(at, buf)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let (blocks, at) = self.at(offset);
        blocks.write_at(at, buf)
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let (blocks, at) = self.at(offset);
        blocks.zero_at(at, len)
    }

    /// The disk first: a superblock that speaks of it is flushed by this, too.
    fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()?;
        self.file.flush()
    }
}
