//! Why a volume cannot be opened, made or changed.

use super::pair::PairError;
use crate::format::{FormatError, Uuid};
use crate::recover::RecoverError;
use std::io;
use std::path::{Path, PathBuf};
use storage::{OpenError, StorageError};

/// Why a volume cannot be opened, made or changed.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum VolumeError {
    /// {0}
    Open(#[from] OpenError),
    /// {path}: {source}
    Format {
        /// The volume.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// {path}: {source}
    Recover {
        /// The volume.
        path: PathBuf,
        /// Why its log could not be written back.
        source: RecoverError,
    },
    /// {disk}: cannot be written at byte {offset}, where its intent log {path} has something newer: {source}; the log keeps it until the disk can be written
    NotReplayed {
        /// The disk.
        disk: String,
        /// The log.
        path: PathBuf,
        /// Byte of the disk.
        offset: u64,
        /// The disk's answer.
        source: io::Error,
    },
    /// {path}: is the intent log of a disk, and was not closed: it may hold acknowledged writes that the disk lacks; `vringd image log replay` brings them there, and `vringd image log create --force --lost` gives them up
    LogNotClosed {
        /// The log.
        path: PathBuf,
    },
    /// {path}: may be the intent log of a disk, with acknowledged writes that the disk lacks: {source}; `--lost` overwrites it
    LogUnknown {
        /// What may be a log.
        path: PathBuf,
        /// Why nobody can say.
        source: FormatError,
    },
    /// {path}: cannot {what}: {source}
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: {source}
    Storage {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: StorageError,
    },
    /// {0}
    Target(#[from] storage::target::TargetError),
    /// {path}: the volume's log is inside it: name the file or device of the new log with `--log`
    NoLogNamed {
        /// The volume.
        path: PathBuf,
    },
    /// {path}: holds {versions} blocks that guests wrote before a server was killed, of another opening of volume {volume} than its last one: somebody opened the volume without this memory file since; `vringd volume replay --discard-memory` gives them up
    StaleMemory {
        /// The memory file.
        path: PathBuf,
        /// The volume.
        volume: Uuid,
        /// Blocks in it.
        versions: u64,
    },
    /// {path}: is the memory of volume {volume} in another file, of which {copy} is a copy: open the other one, or have the copy do without with `vringd volume replay --memory-file none --discard-memory`
    MemoryOfOriginal {
        /// The memory file.
        path: PathBuf,
        /// The volume's name, which both have.
        volume: Uuid,
        /// The file that was to be opened.
        copy: PathBuf,
    },
    /// {path}: holds {versions} blocks that guests wrote to volume {volume} when it was at generation {generation}, and what was to be opened is an older copy of it (generation {found}): put back what was there, or give the blocks up with `vringd volume replay --discard-memory`
    NewerMemory {
        /// The memory file.
        path: PathBuf,
        /// The volume.
        volume: Uuid,
        /// Blocks in it.
        versions: u64,
        /// The volume's generation, as the memory file says.
        generation: u64,
        /// And as the volume itself says.
        found: u64,
    },
    /// storage.migratable: needs to know which boot of the host this is, and /proc has no boot id of the kernel's (/proc/sys/kernel/random/boot_id): leave it out, or show that to the daemon
    NoBoot,
    /// {path}: was not given up by the daemon that had it last, of which no memory file is here: another host may still write to it, and what it has in memory would be lost; have that daemon give it up, or, if its host is gone or was restarted since, go on with what was flushed by `vringd volume replay`
    NotGivenUp {
        /// The volume.
        path: PathBuf,
    },
    /// {path}: is the memory file that volume {volume} had when its server was killed, with all that guests had not flushed, and {why}: name where it is with `memory_file` (`--memory-file`), or give it up with `vringd volume replay --discard-memory`
    MissingMemory {
        /// Where it was.
        path: PathBuf,
        /// The volume.
        volume: Uuid,
        /// Why it is not used.
        why: String,
    },
    /// {path}: is a memory file of volume {found} and not of {volume}: name another with `memory_file` (`--memory-file`)
    ForeignMemory {
        /// The memory file.
        path: PathBuf,
        /// The volume that it names.
        found: Uuid,
        /// The volume that is opened.
        volume: Uuid,
    },
    /// {path}: is no memory file of a volume, or a damaged one: remove it if nobody misses what guests wrote before a server was killed, or name another with `memory_file` (`--memory-file`)
    NoMemoryFile {
        /// The file.
        path: PathBuf,
    },
    /// {path}: is not on tmpfs, and would be written to a disk: name a memory file in /run or /dev/shm (`--memory-file`)
    NotTmpfs {
        /// The file.
        path: PathBuf,
    },
    /// {path}: is the memory of another volume that is being served and has the same name: is this one a copy of it? Give up what the copy lacks with `vringd volume replay --memory-file none --discard-memory`, and name another memory file for it (`--memory-file`)
    MemoryInUse {
        /// The file.
        path: PathBuf,
    },
    /// {path}: may hold what guests wrote before a server was killed, in a directory of another user: do this as that user, or as root; or name another memory file, or `none` (`--memory-file`), if that user has never served this volume
    HiddenMemory {
        /// Where the file would be.
        path: PathBuf,
    },
    /// {path}: belongs to another user and may hold what guests wrote before a server of that user was killed: replay the volume as that user, or name another memory file (`--memory-file`)
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// cannot have {bytes} bytes of memory for data that is not written back: {source}; choose a smaller `dirty_memory` (`--dirty-memory`), or make room on the tmpfs that holds the memory file
    Memory {
        /// What was asked for.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: {blocks} blocks could not be written back: {source}; they are still in its log or its memory file, and are written back when it is opened next
    NotWrittenBack {
        /// The volume.
        path: PathBuf,
        /// How many.
        blocks: u64,
        /// What the storage says.
        source: StorageError,
    },
    /// {disk}: cannot say that its intent log {path} holds more than it has: leave the log out, or use a qcow2 image of version 3 that is written
    NoPlaceForMark {
        /// The log.
        path: PathBuf,
        /// The disk.
        disk: String,
    },
    /// {disk} and its intent log {path} do not belong together: {source}
    Pair {
        /// The disk.
        disk: String,
        /// The log.
        path: PathBuf,
        /// Why.
        source: PairError,
    },
    /// {disk}: has {disk_bytes} bytes, and its log {path}, which holds writes to it, is of one with {log_bytes}: one of the two is another copy
    PairSize {
        /// The disk.
        disk: String,
        /// Its size.
        disk_bytes: u64,
        /// The log.
        path: PathBuf,
        /// What it says.
        log_bytes: u64,
    },
    /// {disk}: cannot mark the disk for its intent log: {source}
    Mark {
        /// The disk.
        disk: String,
        /// What failed.
        source: StorageError,
    },
    /// cannot start the write-back of {path}: {source}
    Thread {
        /// The volume.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl From<VolumeError> for OpenError {
    fn from(error: VolumeError) -> OpenError {
        match error {
            VolumeError::Open(error) => error,
            other => OpenError::Other(Box::new(other)),
        }
    }
}

impl VolumeError {
    pub(crate) fn format(path: &Path) -> impl Fn(FormatError) -> VolumeError {
        let path = path.to_owned();
        move |source| VolumeError::Format { path: path.clone(), source }
    }

    pub(crate) fn io(path: &Path, what: &'static str) -> impl Fn(io::Error) -> VolumeError {
        let path = path.to_owned();
        move |source| VolumeError::Io { path: path.clone(), what, source }
    }
}
