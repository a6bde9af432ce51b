//! Says when the space runs low that thin disks still have: in the log, and to the guests whose units they are.
//!
//! How much is left is asked now and then while workers have something to do, on threads that may wait for a file system. What was told
//! is told again when there has been enough meanwhile.

use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::lookout::{Look, Lookout};
use control::model::ByteSize;
use disk::Disk;
use export::LogicalUnits;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use storage::kit::{Jobs, LOOKS};

/// From a worker's first work to the first question.
const FIRST: Duration = Duration::from_millis(500);
/// How often it is asked...
const EVERY: Duration = Duration::from_secs(5);
/// ...and how often it is seen whether there is anybody to ask.
const NOBODY_EVERY: Duration = Duration::from_secs(30);
/// So much more than the threshold is enough again, in bytes: what a unit says of its threshold is in sets of as many.
const ENOUGH_BYTES: u64 = 1 << 20;

/// Starts to look. The thread ends when what is returned is dropped.
///
/// # Errors
/// There can be no thread.
pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Lookout, Failure> {
    Lookout::start("space", daemon, Space::default())
}

#[derive(Default)]
struct Space {
    /// Work has begun behind which nothing was asked.
    owes_look: bool,
    /// Disks that have a threshold, by name.
    disks: BTreeMap<String, Arc<Watched>>,
}

impl Look for Space {
    fn may_rest(&self) -> bool {
        !self.owes_look
    }

    fn pause(&mut self) -> Duration {
        self.owes_look = true;
        FIRST
    }

    fn look(&mut self, daemon: &Arc<Daemon>) -> Duration {
        self.owes_look = false;
        let mut before = std::mem::take(&mut self.disks);
        for (disk, _) in daemon.disks.all() {
            let Some(threshold_bytes) = disk.space_threshold_bytes() else { continue };
            let watched = before.remove(disk.name()).unwrap_or_else(Watched::new);
            watched.ask(disk.clone(), threshold_bytes, daemon.logical_units.clone());
            self.disks.insert(disk.name().to_owned(), watched);
        }
        if self.disks.is_empty() { NOBODY_EVERY } else { EVERY }
    }
}

/// A disk's space.
struct Watched {
    jobs: Jobs,
    /// A question has no answer yet.
    is_asking: AtomicBool,
    is_low: AtomicBool,
}

impl Watched {
    fn new() -> Arc<Watched> {
        LOOKS.prepare();
        Arc::new(Watched { jobs: Jobs::on(&LOOKS), is_asking: AtomicBool::new(false), is_low: AtomicBool::new(false) })
    }

    /// Asks, unless a file system that was asked before has not answered.
    fn ask(self: &Arc<Self>, disk: Arc<Disk>, threshold_bytes: u64, units: LogicalUnits) {
        if self.is_asking.swap(true, Ordering::Acquire) {
            return;
        }
        let watched = self.clone();
        self.jobs.go(move || {
            let storage = disk.storage();
            let room = storage.counted().map(storage::Counted::room);
            drop(storage);
            match room {
                Some(Ok(room)) => watched.judge(disk.name(), room.available_bytes, threshold_bytes, &units),
                Some(Err(error)) => tracing::debug!(disk = disk.name(), %error, "nobody says how much space is left"),
                None => {}
            }
            // Whoever removes it next closes it.
            drop(disk);
            watched.is_asking.store(false, Ordering::Release);
        });
    }

    fn judge(&self, disk: &str, available_bytes: Option<u64>, threshold_bytes: u64, units: &LogicalUnits) {
        // Where there is no bound there is enough.
        let available_bytes = available_bytes.unwrap_or(u64::MAX);
        let (available, threshold) = (ByteSize(available_bytes), ByteSize(threshold_bytes));
        if available_bytes < threshold_bytes {
            if !self.is_low.swap(true, Ordering::Relaxed) {
                tracing::warn!(disk, %available, %threshold, "space runs low: less can be written to what has not been written before");
            }
        } else if available_bytes >= threshold_bytes.saturating_add(ENOUGH_BYTES)
            && self.is_low.swap(false, Ordering::Relaxed)
        {
            tracing::info!(disk, %available, %threshold, "there is enough space again");
        }
        // Some may have come since it was said.
        units.set_space_low(disk, self.is_low.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_until_there_has_been_enough() {
        let (watched, units) = (Watched::new(), LogicalUnits::default());
        let mut judge = |available: u64| {
            watched.judge("d", Some(available), 10 << 20, &units);
            watched.is_low.load(Ordering::Relaxed)
        };
        let seen = [11 << 20, 10 << 20, (10 << 20) - 1, 10 << 20, (11 << 20) - 1, 11 << 20, 0].map(&mut judge);
        assert_eq!(seen, [false, false, true, true, true, false, true]);
        watched.judge("d", None, 10 << 20, &units);
        assert!(!watched.is_low.load(Ordering::Relaxed), "there is no bound");
    }
}
