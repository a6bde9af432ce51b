//! Examines a volume without changing a byte of it.

use crate::blocks::{Blocks, Progress};
use crate::format::{Loss, Slot, Superblock, read_slots, read_superblock, round_up};
use crate::log::{End, Entry, Scan};
use crate::recover::anew;
use crate::units::{BLOCK_BYTES, SectorMask};

/// What was found. Serialises as it is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The two slots for superblocks, the one at byte 0 first; empty when they could not be read.
    pub slots: Vec<Slot>,
    /// The superblock that counts.
    pub superblock: Option<Superblock>,
    /// What is lost if the log is.
    pub log_loss: Option<Loss>,
    /// What the log holds behind the superblock's tail, if it was read.
    pub log: Option<LogReport>,
    /// What is wrong, worst first; nothing in a sound volume.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Whether nothing is wrong that would keep the volume from being opened or has lost something.
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|problem| problem.severity != Severity::Error)
    }

    /// Whether opening the volume would write something from its log.
    pub fn needs_replay(&self) -> bool {
        self.log.is_some_and(|log| log.records > 0)
    }
}

/// What opening the volume would replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LogReport {
    /// Records.
    pub records: u64,
    /// Their bytes in the log.
    pub log_bytes: u64,
    /// Sequence of the first one.
    pub first_sequence: Option<u64>,
    /// Sequence of the last one.
    pub last_sequence: Option<u64>,
    /// Blocks with new contents, as often as a record has them.
    pub data_blocks: u64,
    /// Of these, blocks of which not all sectors are new.
    pub partial_blocks: u64,
    /// Blocks made zeroes, as often as a record has them.
    pub zero_blocks: u64,
    /// How the log ends.
    pub end: End,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The volume cannot be opened, or has lost something.
    Error,
    /// Worth knowing; nothing is lost.
    Warning,
}

/// Something that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// One line: what it is and what to do.
    pub text: String,
}

/// Examines a volume, and its log on a storage of its own if it has one. Nothing is written; memory is bounded by a few MiB.
///
/// `progress` counts bytes of the log.
pub fn check(data: &mut dyn Blocks, log: Option<&mut dyn Blocks>, progress: &mut dyn FnMut(Progress)) -> Report {
    let mut report = Report { slots: Vec::new(), superblock: None, log_loss: None, log: None, problems: Vec::new() };
    examine(data, log, progress, &mut report);
    report.problems.sort_by_key(|problem| problem.severity);
    report
}

fn examine(
    data: &mut dyn Blocks,
    log: Option<&mut dyn Blocks>,
    progress: &mut dyn FnMut(Progress),
    report: &mut Report,
) {
    match read_slots(data) {
        Ok(slots) => report.slots = slots.to_vec(),
        Err(error) => return report.error(&error),
    }
    let superblock = match read_superblock(data) {
        Ok(superblock) => superblock,
        Err(error) => return report.error(&error),
    };
    report.log_loss = Some(superblock.loss());
    report.superblock = Some(superblock.clone());
    report.look_at_slots();
    report.look_at_features(&superblock);
    if let Err(error) = superblock.check_length(data.len()) {
        report.error(&error);
    }
    let mut log = log;
    let belongs = superblock.check_log(match &mut log {
        Some(log) => Some(&mut **log),
        None => None,
    });
    if let Err(error) = belongs {
        return report.error(&error);
    }
    let storage: &mut dyn Blocks = match log {
        Some(log) => log,
        None => data,
    };
    if superblock.clean {
        if let Err(error) = anew(&superblock, superblock.tail, storage) {
            report.error(&error);
        }
        return;
    }
    look_at_log(storage, &superblock, progress, report);
}

/// Follows the log as recovery would.
fn look_at_log(
    storage: &mut dyn Blocks,
    superblock: &Superblock,
    progress: &mut dyn FnMut(Progress),
    report: &mut Report,
) {
    let blocks = round_up(superblock.capacity_bytes, BLOCK_BYTES as u64) / BLOCK_BYTES as u64;
    let mut found = LogReport {
        records: 0,
        log_bytes: 0,
        first_sequence: None,
        last_sequence: None,
        data_blocks: 0,
        partial_blocks: 0,
        zero_blocks: 0,
        end: End::Blank,
    };
    let mut scan = Scan::new(superblock);
    loop {
        match scan.record(storage) {
            Ok(Some(record)) if record.leaves(blocks) => {
                report.error(&record.malformed());
                break;
            }
            Ok(Some(record)) => {
                found.records += 1;
                found.log_bytes = scan.bytes();
                found.first_sequence.get_or_insert(record.sequence);
                found.last_sequence = Some(record.sequence);
                record.entries.iter().for_each(|entry| found.count(entry));
                progress(Progress { done_bytes: scan.bytes(), total_bytes: superblock.log.len });
            }
            Ok(None) => {
                if let Err(error) = anew(superblock, scan.tail(), storage) {
                    report.error(&error);
                }
                found.end = scan.end(storage);
                break;
            }
            Err(error) => {
                report.error(&error);
                break;
            }
        }
    }
    report.log = Some(found);
    if let End::Damaged { stranded } = found.end {
        report.problems.push(Problem {
            severity: Severity::Error,
            text: format!(
                "the log is damaged behind record {}: at least {stranded} whole records follow that can no longer be reached, and \
                 what they held is lost, flushed or not; opening the volume goes on without them",
                found.last_sequence.map_or("0 (the first)".to_string(), |sequence| sequence.to_string())
            ),
        });
    }
}

impl LogReport {
    fn count(&mut self, entry: &Entry) {
        match *entry {
            Entry::Data { sectors, .. } => {
                self.data_blocks += 1;
                self.partial_blocks += u64::from(sectors != SectorMask::ALL);
            }
            Entry::Zeroes { count, .. } => self.zero_blocks += u64::from(count),
        }
    }
}

impl Report {
    fn error(&mut self, error: &dyn std::error::Error) {
        self.problems.push(Problem { severity: Severity::Error, text: error.to_string() });
    }

    fn warn(&mut self, text: String) {
        self.problems.push(Problem { severity: Severity::Warning, text });
    }

    fn look_at_slots(&mut self) {
        for (number, slot) in self.slots.clone().into_iter().enumerate() {
            let what = match slot {
                Slot::Whole { .. } => continue,
                Slot::Damaged => "is damaged",
                Slot::Empty => "is missing",
            };
            self.warn(format!(
                "superblock {number} {what}, the other one counts: a power cut leaves that, and the next opening repairs it; if \
                 there was none, the storage loses data"
            ));
        }
    }

    fn look_at_features(&mut self, superblock: &Superblock) {
        if superblock.compatible != 0 {
            let bits = superblock.compatible;
            self.warn(format!(
                "a newer version has used this volume (compatible features {bits:#x}): this one passes them over, and takes their marks away \
                 when it opens the volume"
            ));
        }
    }
}
