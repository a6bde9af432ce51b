//! A volume over a storage that ends with the process: for experiments with the log, on a device that is modelled.

use super::error::VolumeError;
use super::memory::MemoryFile;
use super::open::{Opening, check_dirty_bytes, way};
use super::{LoggedOptions, LoggedStorage, SyncMode};
use crate::error::check_size;
use crate::{
    Handed, MemoryOptions, MemoryStorage, NullOptions, NullStorage, OpenError, SimOptions, SimStorage, Storage,
    StorageSpec,
};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use volume::Blocks;
use volume::format::{self, CreateOptions, FormatError, Superblock, Uuid};

/// A model of a device may let operations fail; the volume is there all the same.
const ATTEMPTS: u32 = 100;

/// A volume that is made when it is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedSpec {
    /// What is below: memory without a path, null or sim. Its size is that of the guest's disk; what the volume needs besides is
    /// added to it.
    pub lower: StorageSpec,
    /// Size of the log, in bytes: 64 KiB to 1 TiB.
    pub log_bytes: u64,
    /// Memory for data that is not written back, in bytes: 1 MiB to 64 GiB.
    pub dirty_bytes: u64,
    /// When writes have to be stable.
    pub sync: SyncMode,
}

impl LoggedSpec {
    pub(crate) fn open(&self) -> Result<LoggedStorage, OpenError> {
        let size_bytes = self.size_bytes()?;
        let superblock = self.superblock(size_bytes)?;
        let lower: Arc<dyn Storage> = match self.below(superblock.storage_bytes())? {
            StorageSpec::Memory(options) => Arc::new(MemoryStorage::open(&options)?),
            StorageSpec::Null(options) => Arc::new(NullStorage::open(&options)?),
            StorageSpec::Sim(options) => Arc::new(SimStorage::open(&options)?),
            other => return Err(cannot(&other)),
        };
        Ok(self.start(lower, superblock)?)
    }

    pub(crate) fn adopt(&self, mut handed: Handed) -> Result<LoggedStorage, OpenError> {
        let fd = handed.memory.take().ok_or(OpenError::NothingHanded)?;
        let log_bytes = self.superblock(self.size_bytes()?)?.data_offset;
        let capacity_bytes = handed.capacity_bytes;
        let lower: Arc<dyn Storage> = match self.below(capacity_bytes)? {
            StorageSpec::Memory(options) => Arc::new(MemoryStorage::adopt(&options, handed)?),
            StorageSpec::Sim(options) => Arc::new(SimStorage::adopt(&options, handed)?),
            // Nothing holds nothing, a superblock neither.
            StorageSpec::Null(options) => {
                let lower = NullStorage::adopt(&options, &handed)?;
                let superblock = self.superblock(capacity_bytes.saturating_sub(log_bytes))?;
                return Ok(self.start(Arc::new(lower), superblock)?);
            }
            other => return Err(cannot(&other)),
        };
        let memory = MemoryFile { fd, path: None, found: true, handed: true, home: None };
        Ok(self.opening(lower, memory).replay(&mut |_| {}).map(|(storage, ..)| storage)?)
    }

    /// Begins with empty contents; the superblock is the only thing there.
    fn start(&self, lower: Arc<dyn Storage>, superblock: Superblock) -> Result<LoggedStorage, VolumeError> {
        let opening = self.opening(lower.clone(), MemoryFile::anonymous()?);
        let mut way = way(&opening.path, lower)?;
        way.try_often(ATTEMPTS);
        way.flush_often(ATTEMPTS);
        let blank = opening.memory.contents(&superblock)?;
        let cache = opening.memory.cache(&blank, &superblock, self.dirty_bytes)?;
        opening.start(superblock, cache, &mut way)
    }

    fn opening(&self, data: Arc<dyn Storage>, memory: MemoryFile) -> Opening {
        let path = PathBuf::from(data.describe().target);
        let options = LoggedOptions { dirty_bytes: self.dirty_bytes, sync: self.sync, ..LoggedOptions::default() };
        Opening { data, log: None, memory, options, path, log_path: None, attempts: ATTEMPTS, salvage: false }
    }

    /// Size of the guest's disk.
    fn size_bytes(&self) -> Result<u64, OpenError> {
        check_dirty_bytes(self.dirty_bytes)?;
        let size_bytes = match &self.lower {
            StorageSpec::Memory(MemoryOptions { path: None, size_bytes, .. }) => *size_bytes,
            StorageSpec::Null(options) => options.size_bytes,
            StorageSpec::Sim(options) => options.size_bytes,
            other => return Err(cannot(other)),
        };
        check_size(size_bytes)?;
        Ok(size_bytes)
    }

    /// What is below, with `size_bytes`.
    fn below(&self, size_bytes: u64) -> Result<StorageSpec, OpenError> {
        Ok(match self.lower.clone() {
            StorageSpec::Memory(options) => StorageSpec::Memory(MemoryOptions { size_bytes, ..options }),
            StorageSpec::Null(options) => StorageSpec::Null(NullOptions { size_bytes, ..options }),
            StorageSpec::Sim(options) => StorageSpec::Sim(SimOptions { size_bytes, ..options }),
            other => return Err(cannot(&other)),
        })
    }

    /// The superblock of such a volume. Nothing is written: what is below begins as zeroes, as a new log does.
    fn superblock(&self, capacity_bytes: u64) -> Result<Superblock, VolumeError> {
        let options = CreateOptions {
            capacity_bytes,
            log_bytes: self.log_bytes,
            volume: Uuid::new_v4(),
            log: Uuid::new_v4(),
            log_path: None,
            created_by: String::new(),
        };
        superblock_of(&options).map_err(VolumeError::format("intent_log".as_ref()))
    }
}

/// The superblock that a volume would have.
pub(super) fn superblock_of(options: &CreateOptions) -> Result<Superblock, FormatError> {
    let bytes = options.storage_bytes()?;
    format::create(&mut Nowhere(bytes), None, options, &mut |_| {})
}

fn cannot(lower: &StorageSpec) -> OpenError {
    let value = match lower {
        StorageSpec::File(_) => "of storage `file`",
        StorageSpec::Memory(_) => "of storage `memory` with a path",
        StorageSpec::Null(_) => "of storage `null`",
        StorageSpec::Sim(_) => "of storage `sim`",
        StorageSpec::Volume(_) | StorageSpec::Logged(_) => "of a volume",
    };
    let range = "it for memory without a path, null or sim, and `vringd volume create` for what lasts";
    VolumeError::Field { field: "intent_log", value: value.to_owned(), range }.into()
}

/// A storage that takes everything and keeps nothing.
struct Nowhere(u64);

impl Blocks for Nowhere {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&mut self, _offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn write_at(&mut self, _offset: u64, _buf: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn zero_at(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
