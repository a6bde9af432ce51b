//! Opening for writing: what the log holds goes to the data, and the log begins anew.
//!
//! The records behind the superblock's tail are read until one does not follow; the newest version of each sector is written to the
//! data, and flushed; then one superblock moves the tail to the end, and the epoch on, so that nothing that lies in the log can
//! follow again. Until that superblock is durable the log is as it was: recovery that is cut off anywhere begins again, and ends
//! with the same disk. Memory is bounded whatever the log says: it is written back in batches, in its order.

mod batch;
mod index;

use crate::blocks::Blocks;
use crate::format::{FormatError, Superblock, Tail, round_up};
use crate::log::{End, Record, Scan, ScanError};
use crate::units::BLOCK_BYTES;
use batch::Batch;
use std::io;

#[cfg(test)]
mod tests;

pub use crate::blocks::Progress;

/// What recovery has found and done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    /// The superblock as it is now: open, in a new epoch, with an empty log.
    pub superblock: Superblock,
    /// Whether the volume had been closed in order.
    pub was_clean: bool,
    /// Records replayed.
    pub records: u64,
    /// Their bytes in the log.
    pub log_bytes: u64,
    /// Bytes of data written; what several records held of a sector is written once.
    pub data_bytes: u64,
    /// Bytes that were made zeroes.
    pub zeroed_bytes: u64,
    /// How the log ended. [`End::Damaged`] and [`End::GivenUp`] mean that flushed writes may be lost, and somebody should be told.
    pub end: End,
}

/// Why a volume cannot be opened for writing. Nothing is lost by the attempt: it may be repeated.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum RecoverError {
    /// {0}
    Format(#[from] FormatError),
    /// {0}
    Scan(#[from] ScanError),
    /// cannot write what the log holds to the volume at byte {offset}: {source}
    Write {
        /// Where.
        offset: u64,
        /// The storage's answer.
        source: io::Error,
    },
}

/// Brings a volume's data up to date with its log and opens it for writing.
///
/// `log` is the storage of a log that has one of its own, else `None`. `progress` counts bytes of the log.
///
/// # Errors
/// [`RecoverError::Format`] when this is no volume, or its log is missing, or not its own; [`RecoverError::Scan`] when the log
/// cannot be read or says what cannot be; [`RecoverError::Write`].
pub fn recover(
    data: &mut dyn Blocks,
    log: Option<&mut dyn Blocks>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, RecoverError> {
    replay(data, log, progress, false)
}

/// As [`recover`], but a log that cannot be read, or says what cannot be, ends there: what it held from there on is lost, flushed
/// or not. For somebody who was told, and has no other disk to read it from.
///
/// # Errors
/// As [`recover`], without [`RecoverError::Scan`].
pub fn salvage(
    data: &mut dyn Blocks,
    log: Option<&mut dyn Blocks>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, RecoverError> {
    replay(data, log, progress, true)
}

fn replay(
    data: &mut dyn Blocks,
    log: Option<&mut dyn Blocks>,
    progress: &mut dyn FnMut(Progress),
    gives_up: bool,
) -> Result<Recovered, RecoverError> {
    let mut log = log;
    let mut superblock = crate::format::read_superblock(data)?;
    superblock.check_length(data.len())?;
    superblock.check_log(match &mut log {
        Some(log) => Some(&mut **log),
        None => None,
    })?;
    let was_clean = superblock.clean;
    let mut scan = Scan::new(&superblock);
    let mut done = Done::default();
    let mut end = End::Blank;
    if !was_clean {
        let blocks = round_up(superblock.capacity_bytes, BLOCK_BYTES as u64) / BLOCK_BYTES as u64;
        let mut batch = Batch::default();
        end = loop {
            let record = match next(&mut scan, log_of(data, &mut log), blocks) {
                Ok(Some(record)) => record,
                Ok(None) => break scan.end(log_of(data, &mut log)),
                Err(_) if gives_up => break End::GivenUp { position: scan.tail().position },
                Err(error) => return Err(error.into()),
            };
            done.records += 1;
            batch.add(record);
            progress(Progress { done_bytes: scan.bytes(), total_bytes: superblock.log.len });
            if batch.is_full() {
                done.write(&mut batch, data, superblock.data_offset)?;
            }
        };
        done.write(&mut batch, data, superblock.data_offset)?;
        // The superblock lets go of the log: what was in it is durable elsewhere before.
        data.flush().map_err(|source| RecoverError::Write { offset: superblock.data_offset, source })?;
    }
    superblock = anew(&superblock, scan.tail(), log_of(data, &mut log))?;
    // Twice: whichever slot goes bad one day, the other one does not speak of an opening before this.
    crate::format::write_superblock(data, &mut superblock)?;
    crate::format::write_superblock(data, &mut superblock)?;
    let Done { records, data_bytes, zeroed_bytes } = done;
    Ok(Recovered { superblock, was_clean, records, log_bytes: scan.bytes(), data_bytes, zeroed_bytes, end })
}

/// The next record, which says nothing of what lies behind a disk of `blocks`.
fn next(scan: &mut Scan, log: &mut dyn Blocks, blocks: u64) -> Result<Option<Record>, ScanError> {
    let record = scan.record(log)?;
    match &record {
        Some(beyond) if beyond.leaves(blocks) => Err(ScanError::Record(beyond.malformed())),
        _ => Ok(record),
    }
}

/// The superblock of a volume that is opened with its log replayed up to `tail`, in an epoch in which nothing that lies there
/// follows.
///
/// The next epoch is one that nothing has been written in, as a rule: both superblocks speak of an epoch before its first record
/// is written. But a volume that was put back from a copy may have a log of its own that is later than it, and that has
/// been through epochs which are yet to come here.
///
/// # Errors
/// [`FormatError::Impossible`], as [`Superblock::opened`].
pub(crate) fn anew(superblock: &Superblock, tail: Tail, log: &mut dyn Blocks) -> Result<Superblock, FormatError> {
    let mut opened = superblock.opened(tail)?;
    // There are two places where the next record may be, and each holds one of one epoch.
    for _ in 0..2 {
        if !is_followed(&opened, log) {
            break;
        }
        opened = opened.opened(tail)?;
    }
    Ok(opened)
}

/// Whether a record lies where the log begins to count, and would be taken for the first one.
fn is_followed(superblock: &Superblock, log: &mut dyn Blocks) -> bool {
    match Scan::new(superblock).record(log) {
        Ok(record) => record.is_some(),
        Err(ScanError::Record(_)) => true,
        // Nothing is read there before it has been written. A volume that was closed in order opens without its log's contents.
        Err(ScanError::Io { .. }) => false,
    }
}

/// The storage that the log's region lies in.
fn log_of<'a>(data: &'a mut dyn Blocks, log: &'a mut Option<&mut dyn Blocks>) -> &'a mut dyn Blocks {
    match log {
        Some(log) => &mut **log,
        None => data,
    }
}

#[derive(Default)]
struct Done {
    records: u64,
    data_bytes: u64,
    zeroed_bytes: u64,
}

impl Done {
    fn write(&mut self, batch: &mut Batch, data: &mut dyn Blocks, data_offset: u64) -> Result<(), RecoverError> {
        let written =
            batch.write(data, data_offset).map_err(|(offset, source)| RecoverError::Write { offset, source })?;
        self.data_bytes += written.data_bytes;
        self.zeroed_bytes += written.zeroed_bytes;
        Ok(())
    }
}
