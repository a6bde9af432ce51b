//! From files to a running volume.
//!
//! What may be lost is looked at in the order in which it came about: the log is written back first, and then the memory of a
//! killed process, which is newer, is laid over it and not written anywhere yet. A memory file belongs to one *opening* of
//! its volume. Its number is the epoch: recovery counts that up by one, and an opening that serves guests by a step that
//! nobody else takes ([`next_epoch`]). So the file of an opening that was the last to serve is told from one that somebody has
//! gone on without:
//!
//! | step | superblock | memory file |
//! |---|---|---|
//! | before | e | of e |
//! | the log is written back | e + 1 | of e |
//! | the next opening is announced | e + 1 | of e, next n |
//! | the superblock says it | n | of e, next n |
//! | it is settled | n | of n |
//!
//! The superblock says as well that there is a memory file, and in which boot of the machine: as long as that lasts, the volume is not
//! opened without the file. Closing takes the word back. So does giving the file up (`tools::replay`), before that is removed.
//!
//! A process that is killed between any two of these leaves a pair that the next one recognises.

use super::blocking::StorageBlocks;
use super::error::VolumeError;
use super::memory::{Contents, Home, MemoryFile, MemoryPlace};
use super::shared::{Layout, Parts, Shared};
use super::writeback::WriteBack;
use super::{LoggedOptions, LoggedStorage, SyncMode};
use crate::{Execution, FileOptions, FileStorage, Handed, OpenError, Storage};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use volume::cache::Cache;
use volume::format::{Superblock, Uuid, read_superblock, write_superblock};
use volume::log::End;
use volume::recover::{Recovered, recover, salvage};
use volume::{Blocks, Progress};

/// Recovery counts the epoch up by one, and may do so this often before the volume is opened for guests. A step of an
/// opening is larger.
pub(super) const EPOCH_STEP_MIN: u64 = 1 << 16;

/// The epoch of an opening behind one of `epoch`: by a random step, so that two who go on from the same state do not arrive at
/// the same one.
fn next_epoch(epoch: u64) -> u64 {
    let (random, _) = Uuid::new_v4().as_u64_pair();
    epoch.saturating_add(EPOCH_STEP_MIN + (random >> 32))
}

/// A volume in a file or on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOptions {
    /// The volume.
    pub path: PathBuf,
    /// Its log, where that has a file or device of its own.
    pub log_path: Option<PathBuf>,
    /// Where what is not written back is kept.
    pub memory: MemoryPlace,
    /// Bypass the page cache (O_DIRECT): what is written back would only be kept twice.
    pub direct: bool,
    /// Where the system calls run.
    pub execution: Execution,
    /// Take image locks on the volume and its log.
    pub lock: bool,
    /// Memory for data that is not written back, in bytes: 1 MiB to 64 GiB.
    pub dirty_bytes: u64,
    /// When writes have to be stable.
    pub sync: SyncMode,
}

impl VolumeOptions {
    /// `path`, with its log inside, past the page cache, locked, and with [`LoggedOptions::default`].
    pub fn new(path: impl Into<PathBuf>) -> VolumeOptions {
        let LoggedOptions { dirty_bytes, sync, .. } = LoggedOptions::default();
        VolumeOptions {
            path: path.into(),
            log_path: None,
            memory: MemoryPlace::Default,
            direct: true,
            execution: Execution::Auto,
            lock: true,
            dirty_bytes,
            sync,
        }
    }

    pub(super) fn file(&self, path: &Path) -> FileOptions {
        FileOptions {
            path: path.to_owned(),
            direct: self.direct,
            read_only: false,
            execution: Execution::Auto,
            lock: self.lock,
        }
    }

    fn logged(&self) -> LoggedOptions {
        LoggedOptions { dirty_bytes: self.dirty_bytes, sync: self.sync, ..LoggedOptions::default() }
    }

    /// Goes on with what another program has opened.
    pub(crate) fn adopt(&self, mut handed: Handed) -> Result<LoggedStorage, OpenError> {
        let (log, memory) = (handed.log.take(), handed.memory.take());
        let data = Arc::new(FileStorage::adopt(&self.file(&self.path), handed)?);
        let log = match (&self.log_path, log) {
            (Some(path), Some(log)) => Some(Arc::new(FileStorage::adopt(&self.file(path), *log)?)),
            (None, None) => None,
            _ => return Err(OpenError::NothingHanded),
        };
        let fd = memory.ok_or(OpenError::NothingHanded)?;
        let superblock = OpenedVolume::superblock(&self.path, &data)?;
        let path = self.memory.found(&superblock.volume);
        let memory = MemoryFile { fd, path, found: true, handed: true, home: None };
        Ok(OpenedVolume { options: self.clone(), data, log, memory }.start()?)
    }
}

/// A volume whose files are open, and that is neither replayed nor served.
pub(crate) struct OpenedVolume {
    options: VolumeOptions,
    data: Arc<FileStorage>,
    log: Option<Arc<FileStorage>>,
    memory: MemoryFile,
}

impl fmt::Debug for OpenedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenedVolume({:?})", self.data.describe())
    }
}

impl OpenedVolume {
    /// Opens and locks the files. Changes nothing but that there is a memory file.
    pub(crate) fn new(options: &VolumeOptions) -> Result<OpenedVolume, VolumeError> {
        check_dirty_bytes(options.dirty_bytes)?;
        let open = |path: &Path| FileStorage::open_without_threads(&options.file(path)).map(Arc::new);
        let data = open(&options.path)?;
        let log = options.log_path.as_deref().map(open).transpose()?;
        let superblock = OpenedVolume::superblock(&options.path, &data)?;
        // Before anything is made.
        let failed = VolumeError::format(&options.path);
        superblock.check_length(data.capacity_bytes()).map_err(&failed)?;
        let mut way = log.as_ref().map(|log| way(&options.path, log.clone())).transpose()?;
        superblock.check_log(way.as_mut().map(|way| way as &mut dyn Blocks)).map_err(&failed)?;
        let memory = MemoryFile::open(&options.memory, &superblock, Home::of(&options.path))?;
        if let Err(error) = memory.contents(&superblock) {
            memory.remove_if_new();
            return Err(error);
        }
        Ok(OpenedVolume { options: options.clone(), data, log, memory })
    }

    fn superblock(path: &Path, data: &Arc<FileStorage>) -> Result<Superblock, VolumeError> {
        read_superblock(&mut way(path, data.clone())?).map_err(VolumeError::format(path))
    }

    /// Writes the log back, and starts the threads.
    pub(crate) fn start(self) -> Result<LoggedStorage, VolumeError> {
        self.replay(false, &mut |_| {}).map(|(storage, ..)| storage)
    }

    /// As [`OpenedVolume::start`], and says what was found: in the log, and how many blocks in the memory file. With `salvage` a
    /// log ends where it cannot be read.
    pub(super) fn replay(
        self,
        salvage: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(LoggedStorage, Recovered, u64), VolumeError> {
        let OpenedVolume { options, data, log, memory } = self;
        for file in std::iter::once(&data).chain(&log) {
            file.prepare_threads();
            if options.execution != Execution::Auto {
                file.set_execution(options.execution).map_err(OpenError::from)?;
            }
        }
        let opening = Opening {
            data,
            log: log.map(|log| log as Arc<dyn Storage>),
            memory,
            options: options.logged(),
            path: options.path.clone(),
            log_path: options.log_path.as_ref().map(|path| path.display().to_string()),
            attempts: 1,
            salvage,
        };
        opening.replay(progress)
    }
}

pub(super) fn check_dirty_bytes(bytes: u64) -> Result<(), VolumeError> {
    if !(LoggedOptions::DIRTY_BYTES_MIN..=LoggedOptions::DIRTY_BYTES_MAX).contains(&bytes) {
        let range = "1 MiB to 64 GiB";
        return Err(VolumeError::Field { field: "dirty_memory", value: bytes.to_string(), range });
    }
    Ok(())
}

pub(super) fn way(path: &Path, storage: Arc<dyn Storage>) -> Result<StorageBlocks, VolumeError> {
    StorageBlocks::new(storage).map_err(VolumeError::io(path, "set up an io_uring for"))
}

/// What a volume is opened from.
pub(super) struct Opening {
    pub(super) data: Arc<dyn Storage>,
    pub(super) log: Option<Arc<dyn Storage>>,
    pub(super) memory: MemoryFile,
    pub(super) options: LoggedOptions,
    /// The volume's name.
    pub(super) path: PathBuf,
    pub(super) log_path: Option<String>,
    /// How often an operation is tried until the volume is open: more than once where errors are part of the model.
    pub(super) attempts: u32,
    /// A log ends where it cannot be read: otherwise that is an error.
    pub(super) salvage: bool,
}

impl Opening {
    fn way(&self, storage: &Arc<dyn Storage>) -> Result<StorageBlocks, VolumeError> {
        let mut way = way(&self.path, storage.clone())?;
        way.try_often(self.attempts);
        way.flush_often(self.attempts);
        Ok(way)
    }

    /// Writes the log back, finds what a killed process left in memory, and starts. See the module.
    pub(super) fn replay(
        self,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(LoggedStorage, Recovered, u64), VolumeError> {
        let path = &self.path;
        let mut data = self.way(&self.data)?;
        let mut log = self.log.as_ref().map(|log| self.way(log)).transpose()?;
        let before = read_superblock(&mut data).map_err(VolumeError::format(path))?;
        // Before the log is touched: what is refused is left as it was.
        let contents = self.memory.contents(&before)?;
        let replay = if self.salvage { salvage } else { recover };
        let recovered = replay(&mut data, log.as_mut().map(|log| log as &mut dyn Blocks), progress)
            .map_err(|source| VolumeError::Recover { path: path.clone(), source })?;
        tell(path, &recovered);
        let mut superblock = recovered.superblock.clone();
        if contents == Contents::Blank && superblock.memory.take().is_some() {
            // The file is made anew: a process that is killed before the next superblock leaves none that anybody should miss.
            write_superblock(&mut data, &mut superblock).map_err(VolumeError::format(path))?;
        }
        let cache = self.memory.cache(&contents, &superblock, self.options.dirty_bytes)?;
        let versions = contents.versions();
        if versions > 0 {
            let memory = self.memory.shown();
            tracing::info!(volume = %path.display(), memory = %memory.display(), blocks = versions,
                "goes on with what a killed server had in memory");
        }
        let storage = self.start(superblock, cache, &mut data)?;
        Ok((storage, recovered, versions))
    }

    /// Begins a new opening of a volume whose log is empty.
    pub(super) fn start(
        self,
        mut superblock: Superblock,
        cache: Cache,
        data: &mut StorageBlocks,
    ) -> Result<LoggedStorage, VolumeError> {
        let epoch = next_epoch(superblock.epoch);
        cache.announce(epoch);
        superblock.epoch = epoch;
        superblock.clean = false;
        superblock.memory = self.memory.record();
        write_superblock(data, &mut superblock).map_err(VolumeError::format(&self.path))?;
        cache.settle_epoch(epoch);
        cache.note_generation(superblock.generation);
        if let Some(home) = &self.memory.home {
            cache.belongs_to(home.identity);
        }
        let layout = Layout {
            data_offset: superblock.data_offset,
            log_offset: superblock.log.offset,
            log_bytes: superblock.log.len,
            log_uuid: superblock.log.uuid,
        };
        let parts = Parts {
            cache: Arc::new(cache),
            lower: self.data.clone(),
            log: self.log.unwrap_or(self.data),
            layout,
            capacity_bytes: superblock.capacity_bytes,
            epoch,
            tail: superblock.tail,
        };
        let shared = Arc::new(Shared::new(parts, &self.options));
        let write_back = WriteBack::start(shared.clone(), superblock, self.memory, &self.path)?;
        let target = self.path.display().to_string();
        Ok(LoggedStorage { shared, write_back, target, log_path: self.log_path })
    }
}

/// What a person has to know of a log that was not empty.
fn tell(path: &Path, recovered: &Recovered) {
    let Recovered { records, log_bytes, data_bytes, zeroed_bytes, .. } = *recovered;
    let volume = path.display();
    if records > 0 {
        tracing::info!(%volume, records, log_bytes, data_bytes, zeroed_bytes, "replayed the log");
    }
    if let End::Damaged { .. } | End::GivenUp { .. } = recovered.end {
        tracing::error!(%volume, records, end = ?recovered.end, "the log is damaged: what was flushed behind it is lost");
    }
}

impl LoggedStorage {
    /// Opens the volume in `data`, with its log there or in `log`. What is in memory ends with the process.
    ///
    /// # Errors
    /// It is no volume, or cannot be replayed; or a field of the options is out of range.
    pub fn open(
        data: Arc<dyn Storage>,
        log: Option<Arc<dyn Storage>>,
        options: &LoggedOptions,
    ) -> Result<LoggedStorage, VolumeError> {
        LoggedStorage::open_in(data, log, options, &MemoryPlace::Anonymous)
    }

    /// As [`LoggedStorage::open`], with its memory in a place that outlives the process.
    ///
    /// # Errors
    /// As [`LoggedStorage::open`]; also a memory file that is another's.
    pub fn open_in(
        data: Arc<dyn Storage>,
        log: Option<Arc<dyn Storage>>,
        options: &LoggedOptions,
        memory: &MemoryPlace,
    ) -> Result<LoggedStorage, VolumeError> {
        check_dirty_bytes(options.dirty_bytes)?;
        let path = PathBuf::from(data.describe().target);
        let superblock = read_superblock(&mut way(&path, data.clone())?).map_err(VolumeError::format(&path))?;
        let memory = MemoryFile::open(memory, &superblock, Home::of(&path))?;
        let log_path = log.as_ref().map(|log| log.describe().target);
        let opening =
            Opening { data, log, memory, options: options.clone(), path, log_path, attempts: 1, salvage: false };
        opening.replay(&mut |_| {}).map(|(storage, ..)| storage)
    }

    /// Writes everything back and marks the volume as closed, as dropping it does. There must be no operation in flight.
    ///
    /// # Errors
    /// What could not be written back.
    pub fn close(&self) -> Result<(), VolumeError> {
        self.write_back.close()
    }

    /// Leaves everything as a killed process would: the volume is not closed, and its memory file stays.
    #[doc(hidden)]
    pub fn abandon(self) {
        self.write_back.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_is_told_from_recoveries() {
        let mut epochs: Vec<_> = (0..100).map(|_| next_epoch(7)).collect();
        assert!(epochs.iter().all(|epoch| *epoch >= 7 + EPOCH_STEP_MIN && *epoch < 1 << 33));
        epochs.sort_unstable();
        epochs.dedup();
        assert!(epochs.len() > 90);
    }
}
