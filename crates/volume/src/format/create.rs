//! A new volume.

use super::error::FormatError;
use super::header::LogHeader;
use super::slots::write_superblock;
use super::superblock::{LogPlace, Region, Superblock, Tail};
use super::{
    CAPACITY_BYTES_MAX, DATA_ALIGN_BYTES, EXTERNAL_LOG_OFFSET, INTERNAL_LOG_OFFSET, LOG_BYTES_MAX, LOG_BYTES_MIN,
    round_up,
};
use crate::blocks::{Blocks, Progress, write_zeroes};
use crate::units::{BLOCK_BYTES, SECTOR_BYTES};
use uuid::Uuid;

/// What a new volume is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Bytes of the guest's disk: 512 to 2^60, a multiple of 512.
    pub capacity_bytes: u64,
    /// Bytes of the log inside the volume, rounded up to 4096: 64 KiB to 1 TiB. With a log on a storage of its own this is the
    /// room that is kept for the day when that is removed; as a hole it costs nothing until then.
    pub log_bytes: u64,
    /// Names the volume: random.
    pub volume: Uuid,
    /// Names the log: random, and another one.
    pub log: Uuid,
    /// Where the log's own storage is, in words for people.
    pub log_path: Option<String>,
    /// A log alone, for a disk that is a storage of its own.
    pub apart: bool,
    /// The program that makes the volume; 96 bytes at most are kept.
    pub created_by: String,
}

impl CreateOptions {
    /// What the superblock of such a volume says, with its log inside.
    fn superblock(&self) -> Result<Superblock, FormatError> {
        let option = |field, value, rule| Err(FormatError::Option { field, value, rule });
        let sector = SECTOR_BYTES as u64;
        if !(sector..=CAPACITY_BYTES_MAX).contains(&self.capacity_bytes) || !self.capacity_bytes.is_multiple_of(sector)
        {
            return option("size", self.capacity_bytes, "512 bytes to 2^60, a multiple of 512");
        }
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log_bytes) {
            return option("log size", self.log_bytes, "64 KiB to 1 TiB");
        }
        let room = Region { offset: INTERNAL_LOG_OFFSET, len: round_up(self.log_bytes, BLOCK_BYTES as u64) };
        Ok(Superblock {
            volume: self.volume,
            capacity_bytes: self.capacity_bytes,
            data_offset: round_up(room.offset + room.len, DATA_ALIGN_BYTES),
            room,
            log: LogPlace { uuid: self.log, offset: room.offset, len: room.len, external: None },
            tail: Tail { position: 0, sequence: 1, chain: 0 },
            epoch: 0,
            clean: true,
            generation: 0,
            apart: self.apart,
            memory: None,
            compatible: 0,
            created_by: self.created_by.clone(),
        })
    }

    /// Bytes that the volume's storage must have.
    ///
    /// # Errors
    /// [`FormatError::Option`].
    pub fn storage_bytes(&self) -> Result<u64, FormatError> {
        Ok(self.superblock()?.storage_bytes())
    }
}

/// Makes a volume on `data`, with its log there or on `log`, and shows how much of the log is laid out.
///
/// What the storage held before goes with the first write; the region of the disk's blocks is left as it is, so that a fresh
/// file stays sparse. The volume is there when this returns, not before.
///
/// # Errors
/// [`FormatError::Option`], [`FormatError::TooShort`], [`FormatError::Io`].
pub fn create(
    data: &mut dyn Blocks,
    log: Option<&mut dyn Blocks>,
    options: &CreateOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Superblock, FormatError> {
    let mut superblock = options.superblock()?;
    superblock.check_length(data.len())?;
    let place = log.as_ref().map(|log| new_log(log.len(), options.log, options.log_path.clone())).transpose()?;
    // What was here before must not be found again when power goes before the new one is whole.
    data.zero_at(0, INTERNAL_LOG_OFFSET).map_err(FormatError::io("clear the superblocks", 0))?;
    data.flush().map_err(FormatError::io("flush", 0))?;
    match (log, place) {
        (Some(log), Some(place)) => {
            lay_out_log(log, &superblock.volume, &place, progress)?;
            superblock.log = place;
        }
        _ => lay_out_room(data, superblock.room, progress)?,
    }
    // Twice: both slots are whole from the beginning.
    write_superblock(data, &mut superblock)?;
    write_superblock(data, &mut superblock)?;
    Ok(superblock)
}

/// Where a new log lies on a storage of its own that has `len` bytes.
pub(super) fn new_log(len: u64, uuid: Uuid, path: Option<String>) -> Result<LogPlace, FormatError> {
    let region = LogHeader::region(len);
    if region.len < LOG_BYTES_MIN {
        let needed_bytes = EXTERNAL_LOG_OFFSET + LOG_BYTES_MIN;
        return Err(FormatError::TooShort { what: "log", present_bytes: len, needed_bytes });
    }
    Ok(LogPlace { uuid, offset: region.offset, len: region.len, external: Some(path.unwrap_or_default()) })
}

/// Writes zeroes over a new log and then its header.
pub(super) fn lay_out_log(
    log: &mut dyn Blocks,
    volume: &Uuid,
    place: &LogPlace,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FormatError> {
    write_zeroes(log, 0, place.offset + place.len, progress).map_err(FormatError::io("lay out the log", 0))?;
    log.flush().map_err(FormatError::io("flush the log", 0))?;
    let region = Region { offset: place.offset, len: place.len };
    LogHeader { log: place.uuid, volume: *volume, region }.write(log)
}

/// Writes zeroes over the room for a log inside the volume.
pub(super) fn lay_out_room(
    data: &mut dyn Blocks,
    room: Region,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), FormatError> {
    write_zeroes(data, room.offset, room.len, progress).map_err(FormatError::io("lay out the log", room.offset))?;
    data.flush().map_err(FormatError::io("flush the log", room.offset))
}
