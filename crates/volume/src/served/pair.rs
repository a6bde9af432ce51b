//! Whether a disk and the log in front of it belong together: whether the disk has what the log says it has.
//!
//! A log that was closed in order holds nothing, and goes before any disk. From its opening to its closing the disk is marked with it:
//!
//! | step | mark of the disk | superblock of the log |
//! |---|---|---|
//! | before | none | e, closed in order |
//! | what the log holds is written back | none | e + 1, empty |
//! | the disk is marked | from e + 1 to n | e + 1, empty |
//! | the superblock says it | from e + 1 to n | n |
//! | guests write | from e + 1 to n | n |
//! | closing: all is written back, the log is empty | from e + 1 to n | n, empty |
//! | the mark is taken away | none | n, empty |
//! | the end | none | c, closed in order |
//!
//! `c` is beyond what recovery makes of `n`, so that no mark of `n` is taken for one of a log that was closed since, also when an opening
//! behind that was cut, or failed, and left the log empty and not closed.
//!
//! What is opened after a cut begins with the third line, from `n` instead of `e`. Every other pair is of a disk or of a log that was put
//! back from a copy, or of two that never were together.

use super::blocking::StorageBlocks;
use super::epoch::EPOCH_STEP_MIN;
use super::error::VolumeError;
use crate::format::{Superblock, Uuid};
use crate::log::Scan;
use std::path::Path;
use std::sync::Arc;
use storage::{LogMark, Storage};

/// Why a disk is not opened with this log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum PairError {
    /// the log holds writes that were acknowledged, and the disk does not say that they are of it: it is an older copy, or was closed with another log; give the disk that belongs to this log, or another log
    Unmarked,
    /// the disk needs its log {0}, which holds writes that were acknowledged, and this is another log: give that one; `vringd image log forget` goes on without those writes
    Foreign(Uuid),
    /// the log was closed in order with another copy of the disk, which has writes that this one lacks: give that disk; `vringd image log forget` goes on without those writes
    Closed,
    /// the disk was opened with its log at another time than this log was: one of the two is an older copy; give the two that belong together; `vringd image log forget` goes on without what only the log had
    Stale,
}

/// `holds`: the log has records, or a memory file has versions, that the disk need not have. `records`: of these, whether there are records.
///
/// # Errors
/// They do not belong together.
pub(super) fn check(
    mark: Option<LogMark>,
    superblock: &Superblock,
    records: bool,
    holds: bool,
) -> Result<(), PairError> {
    let Some(mark) = mark else {
        return if holds { Err(PairError::Unmarked) } else { Ok(()) };
    };
    if mark.log != superblock.volume {
        return Err(PairError::Foreign(mark.log));
    }
    if superblock.clean {
        return Err(PairError::Closed);
    }
    // Recovery counts up by one, each time that it is cut off.
    let of = |epoch: u64| (epoch..epoch.saturating_add(EPOCH_STEP_MIN)).contains(&superblock.epoch);
    if of(mark.epoch) || of(mark.from) && !records {
        return Ok(());
    }
    Err(PairError::Stale)
}

/// Whether a record, or something that may be one, lies where the log begins to count.
pub(super) fn begins(superblock: &Superblock, log: &mut StorageBlocks) -> bool {
    !superblock.clean && Scan::new(superblock).record(log).map_or(true, |record| record.is_some())
}

/// As [`check`], of this disk and the log at `path`; answers with the mark.
///
/// # Errors
/// They do not belong together, or no disk like this has a log.
pub(super) fn of(
    disk: &Arc<dyn Storage>,
    path: &Path,
    superblock: &Superblock,
    records: bool,
    holds: bool,
) -> Result<Option<LogMark>, VolumeError> {
    let (about, path) = (disk.describe(), path.to_owned());
    let target = about.target;
    let Some(marked) = disk.marked().filter(|_| !about.read_only) else {
        return Err(VolumeError::NoPlaceForMark { path, disk: target });
    };
    let failed = |source| VolumeError::Mark { disk: target.clone(), source };
    let mark = marked.log_mark().map_err(failed)?;
    if mark.is_none() {
        // Before recovery makes an open log of one that was closed.
        marked.check_log_mark().map_err(failed)?;
    }
    check(mark, superblock, records, holds).map_err(|source| VolumeError::Pair { disk: target, path, source })?;
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(epoch: u64, clean: bool) -> Superblock {
        let options = crate::format::CreateOptions {
            capacity_bytes: 1 << 20,
            log_bytes: crate::format::LOG_BYTES_MIN,
            volume: Uuid::from_u128(7),
            log: Uuid::from_u128(8),
            log_path: None,
            apart: true,
            created_by: String::new(),
        };
        let superblock = crate::served::ephemeral::superblock_of(&options).unwrap();
        Superblock { epoch, clean, ..superblock }
    }

    const E: u64 = 100;
    const N: u64 = E + 1 + EPOCH_STEP_MIN;
    const CLOSED: u64 = N + EPOCH_STEP_MIN;

    #[test]
    fn every_step_of_a_life_is_a_pair() {
        let mark = Some(LogMark { log: Uuid::from_u128(7), from: E + 1, epoch: N });
        for (mark, epoch, clean, records, holds) in [
            (None, E, true, false, false),
            (None, E + 1, false, false, false),
            (mark, E + 1, false, false, false),
            // Killed there: the memory file of the opening before is the one that counts.
            (mark, E + 1, false, false, true),
            (mark, N, false, true, true),
            (mark, N + 1, false, false, true),
            (None, N, false, false, false),
            (None, CLOSED, true, false, false),
            // An opening behind it that was cut.
            (None, CLOSED + 1, false, false, false),
        ] {
            assert_eq!(check(mark, &log(epoch, clean), records, holds), Ok(()), "{mark:?} {epoch} {clean} {records}");
        }
    }

    #[test]
    fn copies_are_no_pairs() {
        let mark = |log: u128, from, epoch| Some(LogMark { log: Uuid::from_u128(log), from, epoch });
        for (mark, epoch, clean, records, expected) in [
            // The disk was put back, as it was closed.
            (None, N, false, true, PairError::Unmarked),
            (mark(9, E + 1, N), N, false, false, PairError::Foreign(Uuid::from_u128(9))),
            // The disk was copied while it was served; the log went on, and was closed.
            (mark(7, E + 1, N), CLOSED, true, false, PairError::Closed),
            // And somebody tried the log with another disk.
            (mark(7, E + 1, N), CLOSED + 1, false, false, PairError::Stale),
            (mark(7, E + 1, N), CLOSED + 1, false, true, PairError::Stale),
            (mark(7, E + 1, N), N + EPOCH_STEP_MIN, false, true, PairError::Stale),
            // The log was put back, as it was at the opening before.
            (mark(7, E + 1, N), E, false, true, PairError::Stale),
            (mark(7, E + 1, N), E + 1, false, true, PairError::Stale),
        ] {
            assert_eq!(check(mark, &log(epoch, clean), records, records), Err(expected), "{mark:?} {epoch}");
        }
    }
}
