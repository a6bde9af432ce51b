//! A volume over a storage that ends with the process: for experiments with the log, on a device that is modelled.

use super::error::VolumeError;
use super::memory::Memory;
use super::open::{Opening, check_dirty_bytes, way};
use super::{LoggedOptions, LoggedStorage};
use crate::Blocks;
use crate::format::{self, CreateOptions, FormatError, Superblock, Uuid};
use std::io;
use std::ops::DerefMut;
use std::path::PathBuf;
use std::sync::Arc;
use storage::kit::check_size;
use storage::{Handed, Kind, OpenError, Storage};
use values::{ByteSize, IntentLog};

/// A model of a device may let operations fail; the volume is there all the same.
const ATTEMPTS: u32 = 100;

/// Makes a volume over `lower`, which is as large as the guest's disk is to be, and is made larger by what the volume needs besides.
///
/// # Errors
/// A storage that is found and not made, a size that is out of range, and those of `lower`.
pub fn open_made(log: &IntentLog, mut lower: impl DerefMut<Target = dyn Kind>) -> Result<Arc<dyn Storage>, OpenError> {
    check_dirty_bytes(log.dirty_memory.0)?;
    let size = made(&mut *lower)?;
    check_size(size.0)?;
    let superblock = superblock(log, size.0)?;
    *size = ByteSize(superblock.storage_bytes());
    let lower = storage::open(&*lower)?;
    Ok(Arc::new(start(log, lower, superblock)?))
}

/// Goes on with such a volume, which another program has handed over.
///
/// # Errors
/// Something is missing, and as [`open_made`].
pub fn adopt_made(
    log: &IntentLog,
    mut lower: impl DerefMut<Target = dyn Kind>,
    mut handed: Handed,
) -> Result<Arc<dyn Storage>, OpenError> {
    check_dirty_bytes(log.dirty_memory.0)?;
    let data_offset = superblock(log, made(&mut *lower)?.0)?.data_offset;
    let fd = handed.memory.take().ok_or(OpenError::NothingHanded)?;
    let (capacity_bytes, contents) = (handed.capacity_bytes, handed.data.is_some());
    let lower = lower.adopt(handed)?;
    if !contents {
        // Nothing holds nothing, a superblock neither.
        let superblock = superblock(log, capacity_bytes.saturating_sub(data_offset))?;
        return Ok(Arc::new(start(log, lower, superblock)?));
    }
    let memory = Memory { fd, path: None, found: true, handed: true, home: None };
    let (storage, ..) = opening(log, lower, memory).replay(&mut |_| {})?;
    Ok(Arc::new(storage))
}

/// The size of what is made.
fn made(lower: &mut dyn Kind) -> Result<&mut ByteSize, OpenError> {
    let message = "is for memory without a path, null and sim; `vringd volume create` makes what lasts".to_owned();
    Ok(lower.made().ok_or(OpenError::Field { field: "intent_log", message })?.size)
}

/// Begins with empty contents; the superblock is the only thing there.
fn start(log: &IntentLog, lower: Arc<dyn Storage>, superblock: Superblock) -> Result<LoggedStorage, VolumeError> {
    let opening = opening(log, lower.clone(), Memory::anonymous()?);
    let mut way = way(&opening.path, lower)?;
    way.try_often(ATTEMPTS);
    way.flush_often(ATTEMPTS);
    let blank = opening.memory.contents(&superblock)?;
    let cache = opening.memory.cache(&blank, &superblock, log.dirty_memory.0)?;
    opening.start(superblock, cache, &mut way)
}

fn opening(log: &IntentLog, data: Arc<dyn Storage>, memory: Memory) -> Opening {
    let path = PathBuf::from(data.describe().target);
    let options = LoggedOptions { dirty_bytes: log.dirty_memory.0, sync: log.sync, ..LoggedOptions::default() };
    Opening { attempts: ATTEMPTS, ..Opening::of(data, &path, memory, options) }
}

/// The superblock of such a volume. Nothing is written: what is below begins as zeroes, as a new log does.
fn superblock(log: &IntentLog, capacity_bytes: u64) -> Result<Superblock, VolumeError> {
    let options = CreateOptions {
        capacity_bytes,
        log_bytes: log.size.0,
        volume: Uuid::new_v4(),
        log: Uuid::new_v4(),
        log_path: None,
        apart: false,
        created_by: String::new(),
    };
    superblock_of(&options).map_err(VolumeError::format("intent_log".as_ref()))
}

/// The superblock that a volume would have.
pub(super) fn superblock_of(options: &CreateOptions) -> Result<Superblock, FormatError> {
    let bytes = options.storage_bytes()?;
    format::create(&mut Nowhere(bytes), None, options, &mut |_| {})
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
