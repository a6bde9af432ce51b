//! Intent logs in front of disks that are storages of their own: made, and replayed into their disks.

use super::{Discard, Info, Replayed, discard_memory, info};
use crate::Progress;
use crate::format::{self, Uuid};
use crate::served::apart::{Leniency, OpenedLog, at, check_pair};
use crate::served::error::VolumeError;
use crate::served::open::way;
use std::sync::Arc;
use storage::Storage;
use storage::target::Target;
use values::LogFile;

/// Makes a log with room for records of `log_bytes`, 64 KiB to 1 TiB, in a file that is made, or on a device. It goes in front of any disk.
///
/// # Errors
/// Something is there already and is not to be overwritten (`force`; a log that was not closed: also `lost`), or there is no room, or the
/// size is out of range.
pub fn create_log(
    log: &LogFile,
    log_bytes: u64,
    force: bool,
    lost: bool,
    created_by: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<Info, VolumeError> {
    let at = at(log);
    let plan = format::CreateOptions {
        // Of the first disk that it goes in front of it takes the size.
        capacity_bytes: crate::SECTOR_BYTES as u64,
        log_bytes,
        volume: Uuid::new_v4(),
        log: Uuid::new_v4(),
        log_path: None,
        apart: true,
        created_by: created_by.to_owned(),
    };
    let failed = VolumeError::format(&log.path);
    if force && !lost && is_open_log(log) {
        return Err(VolumeError::LogNotClosed { path: log.path.clone() });
    }
    let mut target = Target::make(&log.path, plan.storage_bytes().map_err(&failed)?, force)?;
    target.clear()?;
    {
        let mut way = way(&log.path, at.open_file(&log.path, false)?)?;
        format::create(&mut way, None, &plan, progress).map_err(&failed)?;
    }
    target.keep()?;
    info(&at)
}

/// Whether there is a log that was not closed in order. Where nothing can be read is none.
fn is_open_log(log: &LogFile) -> bool {
    // Whoever serves it writes it at this moment, and has it locked: `Target::make` refuses that.
    let Ok(file) = at(log).open_file(&log.path, true) else { return false };
    let superblock = way(&log.path, file)
        .and_then(|mut way| format::read_superblock(&mut way).map_err(VolumeError::format(&log.path)));
    superblock.is_ok_and(|superblock| superblock.apart && !superblock.clean)
}

/// Writes what the log and the memory file of a killed server hold into the disk, and closes both.
///
/// # Errors
/// They do not belong together (but for a disk that says nothing of any log, with `repaired`), or cannot be written; or what a person may give up is missing or cannot be read, unless `discard` says
/// that it does not matter.
pub fn replay_log(
    log: &LogFile,
    disk: Arc<dyn Storage>,
    discard: &Discard,
    repaired: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Replayed, VolumeError> {
    let mut given_up = (0, None);
    if discard.memory {
        check_pair(log, &disk, repaired)?;
        given_up = discard_memory(&at(log))?;
    }
    let leniency = Leniency { unreadable: discard.unreadable, unmarked: repaired };
    let (storage, log, memory_blocks) = OpenedLog::new(log, true)?.start(disk, leniency, progress)?;
    storage.close()?;
    let (discarded_blocks, missing_memory) = given_up;
    Ok(Replayed { log, memory_blocks, discarded_blocks, missing_memory })
}
