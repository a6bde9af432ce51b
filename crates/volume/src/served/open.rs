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

use super::apart::Both;
use super::blocking::StorageBlocks;
use super::boot::{awaited, boot_id};
use super::epoch::next_epoch;
use super::error::VolumeError;
use super::left;
use super::memory::{Contents, Home, Memory};
use super::pair::PairError;
use super::shared::{Layout, Parts, Shared};
use super::writeback::WriteBack;
use super::{LoggedOptions, LoggedStorage, described, memory, pair};
use crate::cache::Cache;
use crate::format::{Superblock, close, read_superblock, write_superblock};
use crate::log::End;
use crate::recover::{RecoverError, Recovered, recover, salvage};
use crate::{Blocks, Progress};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use storage::{
    Access, Description, Execution, FileOptions, FileStorage, Handed, KEY_FILE, Kind, LUKS, LogMark, Look, NO_LOCK,
    Need, OpenError, Opened, Storage, VolumeFigures, VolumeStatus, check_migratable,
};
use utoipa::ToSchema;
use values::{ByteSize, FieldError, IntentLog, Luks, MemoryFile, SyncMode};

/// A volume: a file or block device that `vringd volume create` has made, which has an intent log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = VolumeStorage)]
pub struct VolumeOptions {
    /// Path of the volume.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Path of its log, for a volume whose log is in a file or on a device of its own; left out where the log lies in the
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub log: Option<PathBuf>,
    /// When writes are on stable storage.
    #[serde(default)]
    pub sync: SyncMode,
    /// Memory for data that is not written back yet, 1M to 64G; when left out, a 64th of the host's memory, but 64M to 256M.
    #[serde(default = "IntentLog::dirty_memory_default")]
    pub dirty_memory: ByteSize,
    /// Where that memory is: `auto`, `none` or a path on tmpfs. In a file it outlives a killed daemon.
    #[serde(default)]
    pub memory_file: MemoryFile,
    /// Bypass the page cache (O_DIRECT); true when left out.
    #[serde(default = "VolumeOptions::yes")]
    pub direct: bool,
    /// Where the calls of the storage below run.
    #[serde(default)]
    pub execution: Execution,
    /// Lock volume and log, so that no two writers open them; true when left out.
    #[serde(default = "VolumeOptions::yes")]
    pub lock: bool,
    /// Open and lock volume and log only while a guest runs, so that another daemon can take them over when the guest migrates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migratable: bool,
    /// The disk is what is encrypted in the LUKS container that is the volume's disk, so that its log has nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luks: Option<Luks>,
}

impl VolumeOptions {
    /// The volume at `path` with every other field at its default.
    pub fn new(path: impl Into<PathBuf>) -> VolumeOptions {
        VolumeOptions {
            path: path.into(),
            log: None,
            sync: SyncMode::default(),
            dirty_memory: IntentLog::dirty_memory_default(),
            memory_file: MemoryFile::default(),
            direct: true,
            execution: Execution::default(),
            lock: true,
            migratable: false,
            luks: None,
        }
    }

    fn yes() -> bool {
        true
    }

    pub(super) fn file(&self, path: &Path, read_only: bool) -> FileOptions {
        FileOptions { direct: self.direct, read_only, lock: self.lock, ..FileOptions::new(path) }
    }

    pub(super) fn reader(&self, path: &Path) -> Result<Arc<FileStorage>, OpenError> {
        let file = FileOptions { lock: false, ..self.file(path, true) };
        FileStorage::open_without_threads(&on_the_spot(file)).map(Arc::new)
    }

    fn logged(&self) -> LoggedOptions {
        LoggedOptions { dirty_bytes: self.dirty_memory.0, sync: self.sync, ..LoggedOptions::default() }
    }
}

impl Kind for VolumeOptions {
    fn check(&self, _block_size_bytes: u32) -> Result<(), FieldError> {
        if self.path.as_os_str().is_empty() {
            return Err(FieldError::new("storage.path", "is empty: give the path of a volume"));
        }
        if self.log.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err(FieldError::new("storage.log", "is empty: give the path of the log, or leave it out"));
        }
        let without_memory = (self.memory_file == MemoryFile::None, "`memory_file = \"none\"` (`--memory-file none`)");
        check_migratable(self, &[(!self.lock, NO_LOCK), (self.luks.is_some(), LUKS), without_memory])?;
        self.luks.as_ref().map_or(Ok(()), Luks::check)?;
        IntentLog::check_dirty_memory("storage.dirty_memory", self.dirty_memory)
    }

    fn migratable(&self) -> Option<&dyn Look> {
        self.migratable.then_some(self)
    }

    fn open(&self) -> Result<Opened, OpenError> {
        let volume = OpenedVolume::new(self)?;
        Ok(Opened::new(volume.data.describe(), move || Ok(Arc::new(volume.start()?))))
    }

    fn adopt(&self, mut handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        let (log, memory) = (handed.log.take(), handed.memory.take());
        let adopt = |path: &Path, handed| FileStorage::adopt(&self.file(path, false), handed).map(Arc::new);
        let data = adopt(&self.path, handed)?;
        let log = match (&self.log, log) {
            (Some(path), Some(log)) => Some(adopt(path, *log)?),
            (None, None) => None,
            _ => return Err(OpenError::NothingHanded),
        };
        let fd = memory.ok_or(OpenError::NothingHanded)?;
        let superblock = whole_superblock(&self.path, &data)?;
        let path = memory::found(&self.memory_file, &superblock.volume);
        let memory = Memory { fd, path, found: true, handed: true, home: None };
        Ok(Arc::new(OpenedVolume { options: self.clone(), data, log, memory }.start()?))
    }

    fn needs(&self) -> Vec<Need> {
        let file = |field, path: &PathBuf| Need { field, path: path.clone(), access: Access::Write };
        let mut needs = vec![file("storage.path", &self.path)];
        needs.extend(self.log.as_ref().map(|log| file("storage.log", log)));
        // A memory file is removed when its volume is closed, and made when that is opened.
        let access = if self.migratable { Access::MakeLater } else { Access::Make };
        let directory = memory::directory(&self.memory_file);
        needs.extend(directory.map(|path| Need { field: "storage.memory_file", path, access }));
        needs.extend(self.luks.as_ref().map(Need::key_file));
        needs
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        std::iter::once(("storage.path", &mut self.path))
            .chain(self.log.as_mut().map(|log| ("storage.log", log)))
            .chain(self.luks.as_mut().map(|luks| (KEY_FILE, &mut luks.key_file)))
            .collect()
    }

    fn luks(&self) -> Option<&Luks> {
        self.luks.as_ref()
    }

    fn set_execution(&mut self, execution: Execution) {
        self.execution = execution;
    }

    fn set_sync(&mut self, sync: SyncMode) {
        self.sync = sync;
    }
}

impl Look for VolumeOptions {
    /// As a reader: the log is not replayed, nor is what a killed server has left in memory looked for, as there may be a server that lives.
    fn look(&self) -> Result<(Description, u64), OpenError> {
        let reader = |path: &Path| self.reader(path);
        let data = reader(&self.path)?;
        memory::check_place(&self.memory_file)?;
        // Whose memory it is could not be told.
        boot_id().ok_or(VolumeError::NoBoot)?;
        let superblock = admit(self, &data, self.log.as_deref().map(reader).transpose()?.as_ref())?;
        let (below, _) = self.file(&self.path, false).look()?;
        let about = described(&below, self.path.display().to_string());
        Ok((about.executed(self.execution), superblock.capacity_bytes))
    }

    fn close_left(&self, opening: &AtomicU64) -> Result<(), OpenError> {
        left::close(self, opening)
    }

    fn volume(&self) -> Option<VolumeStatus> {
        let log_path = self.log.as_ref().map(|path| path.display().to_string());
        Some(VolumeStatus { sync: self.sync, log_path, failure: None, figures: VolumeFigures::default() })
    }
}

/// A volume whose files are open, and that is neither replayed nor served.
pub(crate) struct OpenedVolume {
    options: VolumeOptions,
    data: Arc<FileStorage>,
    log: Option<Arc<FileStorage>>,
    memory: Memory,
}

impl fmt::Debug for OpenedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenedVolume({:?})", self.data.describe())
    }
}

impl OpenedVolume {
    /// Opens and locks the files. Changes nothing but that there is a memory file.
    pub(crate) fn new(options: &VolumeOptions) -> Result<OpenedVolume, VolumeError> {
        check_dirty_bytes(options.dirty_memory.0)?;
        let open =
            |path: &Path| FileStorage::open_without_threads(&on_the_spot(options.file(path, false))).map(Arc::new);
        let data = open(&options.path)?;
        let log = options.log.as_deref().map(open).transpose()?;
        // Before anything is made.
        let superblock = admit(options, &data, log.as_ref())?;
        if options.migratable && !is_given_up(options, &superblock)? {
            return Err(VolumeError::NotGivenUp { path: options.path.clone() });
        }
        let memory = Memory::open(&options.memory_file, &superblock, Home::of(&options.path))?;
        // Of one that is new nothing is refused: none is left behind.
        memory.contents(&superblock)?;
        Ok(OpenedVolume { options: options.clone(), data, log, memory })
    }

    /// Its files, which have the locks.
    pub(super) fn files(&self) -> (Arc<FileStorage>, Option<Arc<FileStorage>>) {
        (self.data.clone(), self.log.clone())
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
            file.start_threads(options.execution)?;
        }
        let opening = Opening {
            log: log.map(|log| log as Arc<dyn Storage>),
            log_path: options.log.as_ref().map(|path| path.display().to_string()),
            salvage,
            ..Opening::of(data, &options.path, memory, options.logged())
        };
        opening.replay(progress)
    }
}

/// The file as it is read before there are threads: io_uring starts some for a read that waits, and the kernel lets no process with threads
/// into a sandbox.
pub(super) fn on_the_spot(file: FileOptions) -> FileOptions {
    FileOptions { execution: Execution::Inline, ..file }
}

pub(super) fn whole_superblock(path: &Path, data: &Arc<FileStorage>) -> Result<Superblock, VolumeError> {
    let superblock = read_superblock(&mut way(path, data.clone())?);
    let whole = superblock.and_then(|superblock| superblock.check_whole().map(|()| superblock));
    whole.map_err(VolumeError::format(path))
}

/// Refuses files that are no volume, and not its log.
fn admit(
    options: &VolumeOptions,
    data: &Arc<FileStorage>,
    log: Option<&Arc<FileStorage>>,
) -> Result<Superblock, VolumeError> {
    let superblock = whole_superblock(&options.path, data)?;
    let failed = VolumeError::format(&options.path);
    superblock.check_length(data.capacity_bytes()).map_err(&failed)?;
    let mut way = log.map(|log| way(&options.path, log.clone())).transpose()?;
    superblock.check_log(way.as_mut().map(|way| way as &mut dyn Blocks)).map_err(&failed)?;
    Ok(superblock)
}

/// Whether nobody else may have it: who gives it up closes it in order. Locks need not tell of another host that opens it or has it, nor of what a
/// killed daemon has left in memory there. What was not closed is this host's where its memory is.
fn is_given_up(options: &VolumeOptions, superblock: &Superblock) -> Result<bool, VolumeError> {
    if superblock.clean || awaited(superblock).is_some() {
        return Ok(true);
    }
    Ok(superblock.memory.is_none() && Memory::was_here(&options.memory_file, superblock)?)
}

pub(super) fn check_dirty_bytes(bytes: u64) -> Result<(), VolumeError> {
    if !(IntentLog::DIRTY_MEMORY_MIN..=IntentLog::DIRTY_MEMORY_MAX).contains(&bytes) {
        let message = format!("must be 1M to 64G, not {}", ByteSize(bytes));
        return Err(OpenError::Field { field: "dirty_memory", message }.into());
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
    /// The disk, where that is a storage of its own; then `data` is what the log and its superblocks are in.
    pub(super) disk: Option<Arc<dyn Storage>>,
    pub(super) memory: Memory,
    pub(super) options: LoggedOptions,
    /// The volume's name.
    pub(super) path: PathBuf,
    pub(super) log_path: Option<String>,
    /// How often an operation is tried until the volume is open: more than once where errors are part of the model.
    pub(super) attempts: u32,
    /// A log ends where it cannot be read: otherwise that is an error.
    pub(super) salvage: bool,
    /// A disk that says nothing of the log is its own all the same: a person says so.
    pub(super) trusts: bool,
}

impl Opening {
    /// Of the volume in `data`, whose name is `path`, with its log there.
    pub(super) fn of(data: Arc<dyn Storage>, path: &Path, memory: Memory, options: LoggedOptions) -> Opening {
        Opening {
            data,
            log: None,
            disk: None,
            memory,
            options,
            path: path.to_owned(),
            log_path: None,
            attempts: 1,
            salvage: false,
            trusts: false,
        }
    }

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
        let mut home = self.way(&self.data)?;
        let mut log = self.log.as_ref().map(|log| self.way(log)).transpose()?;
        let mut before = read_superblock(&mut home).map_err(VolumeError::format(path))?;
        // Before the log is touched: what is refused is left as it was.
        let contents = self.memory.contents(&before)?;
        let mut both = None;
        if let Some(disk) = &self.disk {
            if let Err(error) = self.admit(disk, &mut before, contents, &mut home) {
                self.memory.remove_if_new();
                return Err(error);
            }
            let (file, disk) = (self.way(&self.data)?, self.way(disk)?);
            both = Some(Both { file, disk, data_offset: before.data_offset });
        }
        let data: &mut dyn Blocks = match &mut both {
            Some(both) => both,
            None => &mut home,
        };
        let replay = if self.salvage { salvage } else { recover };
        let recovered = replay(data, log.as_mut().map(|log| log as &mut dyn Blocks), progress)
            .map_err(|source| self.not_replayed(source, before.data_offset))?;
        tell(path, &recovered);
        let mut superblock = recovered.superblock.clone();
        if contents == Contents::Blank && superblock.memory.take().is_some() {
            // The file is made anew: a process that is killed before the next superblock leaves none that anybody should miss.
            write_superblock(&mut home, &mut superblock).map_err(VolumeError::format(path))?;
        }
        let versions = contents.versions();
        if versions > 0 {
            let memory = self.memory.shown();
            tracing::info!(volume = %path.display(), memory = %memory.display(), blocks = versions,
                "goes on with what a killed server had in memory");
        }
        let is_new = contents == Contents::Blank && self.disk.is_none();
        let memory_path = self.memory.path.clone();
        let cache = self.memory.cache(&contents, &superblock, self.options.dirty_bytes);
        let cache = cache.inspect_err(|_| {
            if !is_new {
                self.memory.remove_if_new();
            }
        });
        let started = cache.and_then(|cache| self.start(superblock, cache, &mut home)).inspect_err(|_| {
            if !is_new {
                return;
            }
            // Nobody has written by it: who opens it next misses nothing, wherever that is.
            match read_superblock(&mut home).and_then(|mut found| close(&mut home, &mut found)) {
                // A name that cannot be removed stays, as at any closing.
                Ok(()) => drop(memory_path.map(std::fs::remove_file)),
                Err(error) => tracing::warn!(%error, "a volume that could not be opened is not closed in order"),
            }
        });
        Ok((started?, recovered, versions))
    }

    /// Recovery knows one storage, where a disk that is apart begins at `data_offset`.
    fn not_replayed(&self, error: RecoverError, data_offset: u64) -> VolumeError {
        let path = self.path.clone();
        match (&self.disk, error) {
            (Some(disk), RecoverError::Write { offset, source }) if offset >= data_offset => {
                let disk = disk.describe().target;
                VolumeError::NotReplayed { disk, path, offset: offset - data_offset, source }
            }
            (_, source) => VolumeError::Recover { path, source },
        }
    }

    /// Refuses a disk that is not the log's. A log that holds nothing takes the size of any.
    fn admit(
        &self,
        disk: &Arc<dyn Storage>,
        superblock: &mut Superblock,
        contents: Contents,
        home: &mut StorageBlocks,
    ) -> Result<(), VolumeError> {
        let records = pair::begins(superblock, home);
        let holds = records || contents.versions() > 0;
        let path = self.path.clone();
        let mark = match pair::of(disk, &path, superblock, records, holds) {
            Err(VolumeError::Pair { source: PairError::Unmarked, .. }) if self.trusts => None,
            mark => mark?,
        };
        let (disk_bytes, log_bytes) = (disk.capacity_bytes(), superblock.capacity_bytes);
        if disk_bytes == log_bytes {
            return Ok(());
        }
        if mark.is_none() && !holds {
            superblock.capacity_bytes = disk_bytes;
            return write_superblock(home, superblock).map_err(VolumeError::format(&path));
        }
        // It grew, and the log was about to hear of it.
        let grew = disk_bytes > log_bytes && mark.is_some();
        let disk = disk.describe().target;
        if grew { Ok(()) } else { Err(VolumeError::PairSize { disk, disk_bytes, path, log_bytes }) }
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
        let mark = LogMark { log: superblock.volume, from: superblock.epoch, epoch };
        if let Some(disk) = &self.disk
            && let Some(marked) = disk.marked()
        {
            let failed = |source| VolumeError::Mark { disk: disk.describe().target, source };
            marked.set_log_mark(Some(mark)).map_err(failed)?;
        }
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
            // A disk that is apart begins with its first byte.
            data_offset: if self.disk.is_some() { 0 } else { superblock.data_offset },
            log_offset: superblock.log.offset,
            log_bytes: superblock.log.len,
            log_uuid: superblock.log.uuid,
        };
        let parts = Parts {
            cache: Arc::new(cache),
            lower: self.disk.as_ref().unwrap_or(&self.data).clone(),
            home: self.data.clone(),
            log: self.log.unwrap_or(self.data),
            layout,
            capacity_bytes: superblock.capacity_bytes,
            epoch,
            tail: superblock.tail,
        };
        let shared = Arc::new(Shared::new(parts, &self.options));
        let write_back = WriteBack::start(shared.clone(), superblock, self.memory, &self.path)?;
        let shown = |disk: Description| format!("{} ({})", disk.target, disk.kind);
        let target = self.disk.map_or_else(|| self.path.display().to_string(), |disk| shown(disk.describe()));
        Ok(LoggedStorage { shared, write_back, target, log_path: self.log_path, mark })
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
        LoggedStorage::open_in(data, log, options, &MemoryFile::None)
    }

    /// As [`LoggedStorage::open`], with its memory in a place that outlives the process.
    ///
    /// # Errors
    /// As [`LoggedStorage::open`]; also a memory file that is another's.
    pub fn open_in(
        data: Arc<dyn Storage>,
        log: Option<Arc<dyn Storage>>,
        options: &LoggedOptions,
        memory: &MemoryFile,
    ) -> Result<LoggedStorage, VolumeError> {
        check_dirty_bytes(options.dirty_bytes)?;
        let path = PathBuf::from(data.describe().target);
        let superblock = read_superblock(&mut way(&path, data.clone())?).map_err(VolumeError::format(&path))?;
        let memory = Memory::open(memory, &superblock, Home::of(&path))?;
        let log_path = log.as_ref().map(|log| log.describe().target);
        let opening = Opening { log, log_path, ..Opening::of(data, &path, memory, options.clone()) };
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
#[path = "open_tests.rs"]
mod tests;
