//! Changes of a volume that nobody serves. Each comes true with one superblock.

use super::CAPACITY_BYTES_MAX;
use super::create::{lay_out_log, lay_out_room, new_log};
use super::error::FormatError;
use super::slots::{read_superblock, write_superblock};
use super::superblock::{LogPlace, Superblock, Tail};
use crate::blocks::{Blocks, Progress};
use crate::units::{BLOCK_BYTES, SECTOR_BYTES};
use uuid::Uuid;

/// Marks a volume as closed in order: its log holds nothing that is not in its data.
///
/// `superblock.tail` must be the end of the log, and all before it be written back and flushed.
///
/// # Errors
/// [`FormatError::Io`].
pub fn close(data: &mut dyn Blocks, superblock: &mut Superblock) -> Result<(), FormatError> {
    let mut closed = superblock.clone();
    (closed.clean, closed.memory) = (true, None);
    write_superblock(data, &mut closed)?;
    *superblock = closed;
    Ok(())
}

/// Gives a volume that was closed in order a log on a storage of its own, all of it, named `uuid` (random).
///
/// # Errors
/// [`FormatError::NotClean`], [`FormatError::LogPresent`], [`FormatError::TooShort`], and those of [`read_superblock`].
pub fn log_add(
    data: &mut dyn Blocks,
    log: &mut dyn Blocks,
    uuid: Uuid,
    path: Option<String>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Superblock, FormatError> {
    let mut superblock = read_superblock(data)?;
    superblock.check_length(data.len())?;
    if superblock.log.external.is_some() {
        return Err(FormatError::LogPresent { hint: superblock.log_hint() });
    }
    if !superblock.clean {
        return Err(FormatError::NotClean);
    }
    let place = new_log(log.len(), uuid, path)?;
    // The new log is whole before a superblock speaks of it.
    lay_out_log(log, &superblock.volume, &place, progress)?;
    change_log(data, &mut superblock, place)?;
    Ok(superblock)
}

/// Takes the log back into the volume, named `uuid` (random) from now on.
///
/// `log` is the storage that it leaves; its header is wiped. Without it the log is lost: so is what [`Superblock::loss`] said
/// before, and the volume counts as closed in order with what its data holds.
///
/// # Errors
/// [`FormatError::LogInternal`], [`FormatError::LogForeign`]; [`FormatError::NotClean`] when a log that is there holds writes;
/// [`FormatError::Io`], and those of [`read_superblock`].
pub fn log_remove(
    data: &mut dyn Blocks,
    log: Option<&mut dyn Blocks>,
    uuid: Uuid,
    progress: &mut dyn FnMut(Progress),
) -> Result<Superblock, FormatError> {
    let mut superblock = read_superblock(data)?;
    superblock.check_length(data.len())?;
    if superblock.log.external.is_none() {
        return Err(FormatError::LogInternal);
    }
    let mut log = log;
    if let Some(log) = &mut log {
        superblock.check_log(Some(&mut **log))?;
        if !superblock.clean {
            return Err(FormatError::NotClean);
        }
    }
    let room = superblock.room;
    lay_out_room(data, room, progress)?;
    let place = LogPlace { uuid, offset: room.offset, len: room.len, external: None };
    change_log(data, &mut superblock, place)?;
    if let Some(log) = log {
        // It belongs to nobody now. Whether this succeeds matters to nobody either: no superblock names it.
        let _ = log.write_at(0, &[0; BLOCK_BYTES]).and_then(|()| log.flush());
    }
    Ok(superblock)
}

/// Lets another, empty log take over. The sequence goes on, positions and the chain begin again: they are the log's.
fn change_log(data: &mut dyn Blocks, superblock: &mut Superblock, place: LogPlace) -> Result<(), FormatError> {
    let mut changed = superblock.clone();
    changed.log = place;
    changed.tail = Tail { position: 0, sequence: superblock.tail.sequence, chain: 0 };
    changed.clean = true;
    write_superblock(data, &mut changed)?;
    *superblock = changed;
    Ok(())
}

/// Changes the size of a volume's disk, which was closed in order; the storage must be long enough already.
///
/// What is cut off is gone. What is new holds what the storage holds there, zeroes in a sparse file.
///
/// # Errors
/// [`FormatError::Option`], [`FormatError::NotClean`], [`FormatError::TooShort`], and those of [`read_superblock`].
pub fn resize(data: &mut dyn Blocks, capacity_bytes: u64) -> Result<Superblock, FormatError> {
    let sector = SECTOR_BYTES as u64;
    if !(sector..=CAPACITY_BYTES_MAX).contains(&capacity_bytes) || !capacity_bytes.is_multiple_of(sector) {
        let rule = "512 bytes to 2^60, a multiple of 512";
        return Err(FormatError::Option { field: "size", value: capacity_bytes, rule });
    }
    let mut superblock = read_superblock(data)?;
    if !superblock.clean {
        return Err(FormatError::NotClean);
    }
    let mut changed = superblock.clone();
    changed.capacity_bytes = capacity_bytes;
    changed.check_length(data.len())?;
    write_superblock(data, &mut changed)?;
    let (old_end, new_end) = (superblock.storage_bytes(), changed.data_offset + capacity_bytes);
    superblock = changed;
    // Contents that nobody sees any more must not come back if the disk grows again one day.
    if let Some(len) = old_end.min(data.len()).checked_sub(new_end).filter(|len| *len > 0) {
        data.zero_at(new_end, len).map_err(FormatError::io("clear what was cut off", new_end))?;
        data.flush().map_err(FormatError::io("flush", new_end))?;
    }
    Ok(superblock)
}
