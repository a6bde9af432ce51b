//! Intent logs in front of disks that are storages of their own: made, and replayed into their disks.

use super::{Discard, Info, Replayed, discard_memory, info};
use crate::format::{self, FormatError, Superblock, Uuid};
use crate::served::apart::{Leniency, OpenedLog, at, check_pair};
use crate::served::error::VolumeError;
use crate::served::open::way;
use crate::{BLOCK_BYTES, Progress, Ram};
use std::path::Path;
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
    let mut target = Target::make(&log.path, plan.storage_bytes().map_err(&failed)?, force)?;
    if !lost {
        admit_log(&log.path, superblock_at(&target)?)?;
    }
    at.check_opens(&log.path)?;
    target.clear()?;
    {
        let mut way = way(&log.path, at.open_file(&log.path, false)?)?;
        format::create(&mut way, None, &plan, progress).map_err(&failed)?;
    }
    target.keep()?;
    info(&at)
}

/// What begins at a target that is locked and still as it was. Nothing is opened for it: whatever is short now, a log is seen.
fn superblock_at(target: &Target) -> Result<Result<Superblock, FormatError>, VolumeError> {
    Ok(format::read_superblock(&mut Ram(target.begins(2 * BLOCK_BYTES)?)))
}

/// Refuses to write a log over one that was not closed, and over what may be one: only what begins otherwise is none.
fn admit_log(path: &Path, there: Result<Superblock, FormatError>) -> Result<(), VolumeError> {
    match there {
        Ok(superblock) if superblock.apart && !superblock.clean => {
            Err(VolumeError::LogNotClosed { path: path.to_owned() })
        }
        Ok(_) | Err(FormatError::NotAVolume) => Ok(()),
        Err(source) => Err(VolumeError::LogUnknown { path: path.to_owned(), source }),
    }
}

/// Refuses to write something else over a log that was not closed.
pub(super) fn admit_other(path: &Path, target: &Target) -> Result<(), VolumeError> {
    let there = superblock_at(target)?;
    if there.is_ok() { admit_log(path, there) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn log(clean: bool, apart: bool) -> Superblock {
        let options = format::CreateOptions {
            capacity_bytes: 1 << 20,
            log_bytes: format::LOG_BYTES_MIN,
            volume: Uuid::from_u128(7),
            log: Uuid::from_u128(8),
            log_path: None,
            apart,
            created_by: String::new(),
        };
        Superblock { clean, ..crate::served::ephemeral::superblock_of(&options).unwrap() }
    }

    #[test]
    fn only_what_is_known_to_be_none_is_no_open_log() {
        let admit = |there| admit_log(Path::new("log"), there);
        for there in [Ok(log(true, true)), Ok(log(false, false)), Err(FormatError::NotAVolume)] {
            admit(there).unwrap();
        }
        assert!(matches!(admit(Ok(log(false, true))), Err(VolumeError::LogNotClosed { .. })));
        let io = FormatError::Io { what: "read", offset: 0, source: io::Error::from_raw_os_error(libc::EIO) };
        for there in [FormatError::Newer { unknown: 4 }, FormatError::Damaged, io] {
            let error = admit(Err(there)).unwrap_err().to_string();
            assert!(error.starts_with("log: ") && error.contains("`--lost`"), "{error}");
        }
    }
}
