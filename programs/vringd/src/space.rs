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
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};
use storage::Storage;
use storage::kit::{Jobs, LOOKS};

/// From a worker's first work to the first question.
const FIRST: Duration = Duration::from_millis(500);
/// How often it is asked...
const EVERY: Duration = Duration::from_secs(5);
/// ...and how often it is seen whether there is anybody to ask.
const NOBODY_EVERY: Duration = Duration::from_secs(30);
/// Least that is left above a threshold before there is enough again, in bytes: what a unit says of its threshold is in sets of as many.
const ENOUGH_BYTES: u64 = 1 << 20;
/// ...and the part of the threshold that is left at least: a file system that others use goes up and down.
const ENOUGH_PART: u64 = 20;
/// How long the end waits for answers.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Starts to look. The thread ends when what is returned is dropped.
///
/// # Errors
/// There can be no thread.
pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Lookout, Failure> {
    let asking = daemon.asking.clone();
    Lookout::start("space", daemon, Space { asking, disks: BTreeMap::new() })
}

/// Questions that have no answer yet.
#[derive(Clone, Default)]
pub(crate) struct Asking(Arc<Mutex<Questions>>);

#[derive(Default)]
struct Questions {
    /// Whose space, and since when.
    asked: BTreeMap<u64, (String, Instant)>,
    /// Nobody is asked any more.
    is_held: bool,
}

/// Nobody is asked until this is dropped.
pub(crate) struct Silence(Asking);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.lock().is_held = false;
    }
}

impl Asking {
    fn lock(&self) -> MutexGuard<'_, Questions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks nobody any more, if all are answered within this time.
    pub(crate) fn hold_within(&self, time: Duration) -> Option<Silence> {
        self.lock().is_held = true;
        let silence = Silence(self.clone());
        self.ends_within(time).then_some(silence)
    }

    /// A disk whose file system has not answered for longer than this.
    pub(crate) fn lasts(&self, time: Duration) -> Option<String> {
        self.lock().asked.values().find(|(_, since)| since.elapsed() > time).map(|(disk, _)| disk.clone())
    }

    /// Whether all are answered within this time.
    fn ends_within(&self, time: Duration) -> bool {
        let by = Instant::now() + time;
        while !self.lock().asked.is_empty() {
            if Instant::now() >= by {
                return false;
            }
            sleep(LOOK_AGAIN_AFTER);
        }
        true
    }

    /// None while nobody is asked.
    fn begin(&self, disk: &str) -> Option<Question> {
        let mut all = self.lock();
        if all.is_held {
            return None;
        }
        let number = all.asked.last_key_value().map_or(0, |(last, _)| last + 1);
        all.asked.insert(number, (disk.to_owned(), Instant::now()));
        Some(Question { asking: self.clone(), number })
    }

    /// Waits while nobody is asked: another program goes on then, which asks by itself, or this one does after all.
    fn begin_soon(&self, disk: &str) -> Question {
        loop {
            if let Some(question) = self.begin(disk) {
                return question;
            }
            sleep(LOOK_AGAIN_AFTER);
        }
    }
}

/// One of them, until it has been answered or its thread has failed.
struct Question {
    asking: Asking,
    number: u64,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asking.lock().asked.remove(&self.number);
    }
}

struct Space {
    asking: Asking,
    /// Disks that have a threshold, by name.
    disks: BTreeMap<String, Arc<Watched>>,
}

impl Drop for Space {
    fn drop(&mut self) {
        // A disk that is asked is not closed before it has answered.
        self.asking.ends_within(PATIENCE);
    }
}

impl Look for Space {
    fn may_rest(&self) -> bool {
        true
    }

    fn pause(&mut self) -> Duration {
        FIRST
    }

    fn look(&mut self, daemon: &Arc<Daemon>) -> Duration {
        let mut before = std::mem::take(&mut self.disks);
        for (disk, users) in daemon.disks.all() {
            let Some(threshold_bytes) = disk.space_threshold_bytes().filter(|_| !users.is_empty()) else { continue };
            let known = before.remove(disk.name()).filter(|watched| watched.is_of(&disk));
            let watched = known.unwrap_or_else(|| Watched::new(&disk, threshold_bytes));
            watched.ask(&self.asking, daemon.logical_units.clone());
            self.disks.insert(disk.name().to_owned(), watched);
        }
        if self.disks.is_empty() { NOBODY_EVERY } else { EVERY }
    }

    /// What was written since the last look is behind us.
    fn rest(&mut self, daemon: &Arc<Daemon>) {
        self.look(daemon);
    }
}

/// A disk's space.
struct Watched {
    disk: Weak<Disk>,
    name: String,
    threshold_bytes: u64,
    jobs: Jobs,
    /// Whether a question has no answer yet, and another one is to follow.
    state: AtomicU8,
    is_low: AtomicBool,
}

const NOTHING: u8 = 0;
const ASKING: u8 = 1;
const AGAIN: u8 = 2;

/// Whoever answers; where its thread fails, others are asked all the same.
struct Answering(Arc<Watched>);

impl Drop for Answering {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.store(NOTHING, Ordering::Release);
        }
    }
}

impl Watched {
    fn new(disk: &Arc<Disk>, threshold_bytes: u64) -> Arc<Watched> {
        LOOKS.prepare();
        Arc::new(Watched {
            disk: Arc::downgrade(disk),
            name: disk.name().to_owned(),
            threshold_bytes,
            jobs: Jobs::on(&LOOKS),
            state: AtomicU8::new(NOTHING),
            is_low: AtomicBool::new(false),
        })
    }

    /// Whether it is this disk, and none that had its name before.
    fn is_of(&self, disk: &Arc<Disk>) -> bool {
        self.disk.as_ptr() == Arc::as_ptr(disk)
    }

    /// Asks; once more where a question that was asked before has no answer yet.
    fn ask(self: &Arc<Self>, asking: &Asking, units: LogicalUnits) {
        // Where there are no threads nobody else may wait.
        let next = |now| Some(if now == NOTHING { ASKING } else { AGAIN });
        if !self.jobs.has_threads() || self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) != Ok(NOTHING)
        {
            return;
        }
        let (answering, asking) = (Answering(self.clone()), asking.clone());
        // From here on: what is about to be asked is waited for, too.
        let first = asking.begin(&self.name);
        self.jobs.go(move || {
            let watched = &answering.0;
            let mut question = first.unwrap_or_else(|| asking.begin_soon(&watched.name));
            loop {
                watched.look(&units);
                if watched.state.compare_exchange(ASKING, NOTHING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    return;
                }
                watched.state.store(ASKING, Ordering::Release);
                // Nobody waits for one that is not asked.
                drop(question);
                question = asking.begin_soon(&watched.name);
            }
        });
    }

    fn look(&self, units: &LogicalUnits) {
        // One that has gone meanwhile is nobody's any more.
        let Some(disk) = self.disk.upgrade() else { return };
        let storage = disk.storage();
        match storage.counted().map(storage::Counted::room).transpose() {
            // Where nobody counts any more, as behind another storage, there is no bound.
            Ok(room) => self.judge(room.and_then(|room| room.available_bytes), &storage, units),
            Err(error) => tracing::debug!(disk = self.name, %error, "nobody says how much space is left"),
        }
    }

    fn judge(&self, available_bytes: Option<u64>, storage: &Arc<dyn Storage>, units: &LogicalUnits) {
        let (disk, threshold_bytes) = (self.name.as_str(), self.threshold_bytes);
        // Where there is no bound there is enough.
        let available_bytes = available_bytes.unwrap_or(u64::MAX);
        let (available, threshold) = (ByteSize(available_bytes), ByteSize(threshold_bytes));
        let more_bytes = ENOUGH_BYTES.max(threshold_bytes / ENOUGH_PART);
        if available_bytes < threshold_bytes {
            if !self.is_low.swap(true, Ordering::Relaxed) {
                tracing::warn!(disk, %available, %threshold, "space runs low: writes to blocks that have none yet fail when it is used up");
            }
        } else if available_bytes >= threshold_bytes.saturating_add(more_bytes) {
            if self.is_low.swap(false, Ordering::Relaxed) {
                tracing::info!(disk, %available, %threshold, "there is enough space again");
            }
        } else if !self.is_low.load(Ordering::Relaxed) {
            // Units may know from an earlier program that it was low, which it is until there is enough.
            return;
        }
        // Some may have come since it was said.
        units.set_space_low(storage, self.is_low.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::StorageSpec;
    use storage::{NullOptions, NullStorage};

    fn disk() -> Arc<Disk> {
        let options = NullOptions { size: ByteSize(4096), ..NullOptions::default() };
        let storage = Arc::new(NullStorage::open(&options).unwrap());
        Arc::new(Disk::new("d", StorageSpec::Null(options), storage, None))
    }

    #[test]
    fn it_is_said_once_until_there_has_been_enough() {
        let units = LogicalUnits::default();
        for (threshold, more) in [(10 << 20, 1 << 20), (100 << 20, 5 << 20)] {
            let disk = disk();
            let (watched, storage) = (Watched::new(&disk, threshold), disk.storage());
            let mut judge = |available: u64| {
                watched.judge(Some(available), &storage, &units);
                watched.is_low.load(Ordering::Relaxed)
            };
            let enough = threshold + more;
            let seen = [enough, threshold, threshold - 1, threshold, enough - 1, enough, 0].map(&mut judge);
            assert_eq!(seen, [false, false, true, true, true, false, true]);
            watched.judge(None, &storage, &units);
            assert!(!watched.is_low.load(Ordering::Relaxed), "there is no bound");
        }
    }

    #[test]
    fn a_disk_that_comes_in_the_place_of_another_one_is_another_one() {
        let (one, other) = (disk(), disk());
        let watched = Watched::new(&one, 1 << 20);
        assert!(watched.is_of(&one) && !watched.is_of(&other));
    }

    #[test]
    fn a_question_without_an_answer_is_named() {
        let asking = Asking::default();
        let question = asking.begin("d");
        assert_eq!(asking.lasts(Duration::ZERO).as_deref(), Some("d"));
        assert_eq!(asking.lasts(Duration::from_secs(60)), None);
        let other = asking.begin("e");
        drop(question);
        assert_eq!(asking.lasts(Duration::ZERO).as_deref(), Some("e"));
        assert!(asking.hold_within(Duration::ZERO).is_none(), "it has no answer");
        drop(other);
        assert_eq!(asking.lasts(Duration::ZERO), None);
        let silence = asking.hold_within(Duration::ZERO).unwrap();
        assert!(asking.begin("f").is_none());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| drop(asking.begin_soon("f")));
            sleep(LOOK_AGAIN_AFTER * 3);
            assert!(!late.is_finished(), "nobody is asked");
            drop(silence);
            late.join().unwrap();
        });
    }
}
