//! When a pass over what is dirty is due, and the checkpoint behind it.

use super::ending::Ending;
use super::sweep::Sweeper;
use crate::format::{FormatError, Superblock};
use crate::pace::Age;
use crate::served::blocking::StorageBlocks;
use crate::served::checkpoint::Checkpoints;
use crate::served::epoch::next_epoch;
use crate::served::poke::{Wish, Wishes};
use crate::served::shared::Shared;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{Action, StorageError};

/// How long the thread sleeps when nothing is dirty and nobody wakes it.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// After a pass that failed, the next one comes so much later; twice that after it...
const RETRY_MIN: Duration = Duration::from_millis(20);
/// ...and at most this.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often in a row passes may fail before whoever waits for one is told, and before a volume is closed with dirty data. Where there is
/// no room, two are enough to tell.
const FAILURES_MAX: u32 = 8;
/// How many passes may leave something dirty, although nobody writes any more, before that is a bug.
const CLOSE_PASSES_MAX: u32 = 8;
/// A pass that has freed nothing for those who wait comes again after this time: what it found was on its way into the log.
const AGAIN: Duration = Duration::from_millis(1);
/// How often the thread looks whether it should end while it waits to try again.
const LOOK: Duration = Duration::from_millis(10);

/// What the thread works with. It stays on the thread that made it.
pub(super) struct Machine {
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
    way: StorageBlocks,
    sweeper: Sweeper,
    ending: Arc<Ending>,
    /// When the thread's time begins.
    zero: Instant,
    /// How long something has been dirty, or in the log alone: what is lost with the power has a bound.
    age: Age,
    /// The last pass failed: how long to wait before the next.
    retry: Option<Duration>,
    /// Passes in a row that failed.
    failures: u32,
    /// The last of them found no room.
    was_full: bool,
    /// Somebody still waits for room after the last pass, and asks no second time.
    hurry: bool,
}

impl Machine {
    /// # Errors
    /// The kernel's refusal of an io_uring.
    pub(super) fn new(shared: Arc<Shared>, checkpoints: Arc<Checkpoints>, ending: Arc<Ending>) -> io::Result<Machine> {
        let sweeper = Sweeper::new(shared.clone(), ending.clone())?;
        let way = checkpoints.way()?;
        let (zero, age) = (Instant::now(), Age::default());
        let (retry, failures, was_full, hurry) = (None, 0, false, false);
        Ok(Machine { shared, checkpoints, way, sweeper, ending, zero, age, retry, failures, was_full, hurry })
    }

    /// Works until the volume is closed. A panic is the end of the volume and of nothing else.
    ///
    /// # Errors
    /// Why not everything could be written back in the end.
    pub(super) fn run(mut self) -> Result<(), StorageError> {
        let shared = self.shared.clone();
        let ended = engine::catch(|| self.live());
        let result = ended.unwrap_or_else(|panic| {
            let reason = format!("its write-back broke: {panic}");
            shared.fail(&reason);
            // The kernel may still read or write what operations under way have lent to it.
            std::mem::forget(self);
            Err(StorageError::Io { action: Action::Write, source: io::Error::other(reason) })
        });
        shared.poke.gone();
        result
    }

    fn live(&mut self) -> Result<(), StorageError> {
        loop {
            let wishes = self.wait();
            if self.ending.abandoned() {
                return Ok(());
            }
            if self.ending.begun() {
                return self.close();
            }
            if !self.is_due(wishes) {
                continue;
            }
            let (began, commits) = (self.zero.elapsed(), self.shared.commits());
            match self.sweep(self.is_waited_for(wishes)) {
                Ok(()) => {
                    self.shared.poke.swept(wishes.sweep);
                    (self.retry, self.failures, self.was_full) = (None, 0, false);
                    self.age.end();
                    let has_work = self.has_work();
                    if has_work {
                        self.age.begin(began, commits);
                    }
                    self.hurry = has_work && self.shared.short_of_room();
                }
                Err(error) => {
                    self.failed(&error);
                    self.failures = self.failures.saturating_add(1);
                    // What one pass has given back may be room for the next.
                    let stays_full = error.is_full() && self.was_full;
                    self.was_full = error.is_full();
                    if stays_full || self.failures >= FAILURES_MAX {
                        self.shared.poke.failed(wishes.sweep, error.raw_errno());
                    }
                }
            }
        }
    }

    /// Waits until there may be something to do.
    fn wait(&mut self) -> Wishes {
        if let Some(retry) = self.retry {
            // Not with `poke`: wishes that cannot be fulfilled would wake us again and again.
            let end = Instant::now() + retry;
            while Instant::now() < end && !self.ending.begun() {
                std::thread::sleep(LOOK.min(retry));
            }
            return self.shared.poke.wait(Duration::ZERO);
        }
        let timeout = match self.age.look() {
            Some(_) if self.hurry => AGAIN,
            Some(look) => look.saturating_sub(self.zero.elapsed()),
            None => {
                self.shared.cache.trim();
                self.shared.poke.falls_asleep();
                if self.has_work() { Duration::ZERO } else { LONG }
            }
        };
        self.shared.poke.wait(timeout)
    }

    /// Whether a pass would have something to do.
    fn has_work(&self) -> bool {
        self.shared.dirty_bytes() > 0 || self.shared.committer.mark().needs_superblock
    }

    fn is_due(&mut self, wishes: Wishes) -> bool {
        let (now, commits) = (self.zero.elapsed(), self.shared.commits());
        if self.has_work() {
            self.age.begin(now, commits);
        }
        // These two may have been asked for in the middle of the last pass, and be over with its end.
        let filling = wishes.has(Wish::Dirty) && self.shared.is_half_dirty()
            || wishes.has(Wish::LogFill) && self.shared.committer.is_half_full();
        filling || self.is_waited_for(wishes) || self.age.is_over(now, commits)
    }

    /// Whether somebody waits for a pass.
    fn is_waited_for(&self, wishes: Wishes) -> bool {
        let wanted = wishes.sweep_wanted || wishes.has(Wish::Parked) || wishes.has(Wish::Mend);
        wanted || self.retry.is_some() || self.hurry
    }

    fn failed(&mut self, error: &StorageError) {
        let retry = self.retry.map_or(RETRY_MIN, |before| (before * 2).min(RETRY_MAX));
        if self.retry.is_none() {
            tracing::warn!(%error, "what is dirty cannot be written back: it is kept, and tried again");
        }
        self.retry = Some(retry);
    }

    /// A pass, and the checkpoint that it allows; with `hurry` somebody waits for them.
    fn sweep(&mut self, hurry: bool) -> Result<(), StorageError> {
        // Noted before anything is taken: whatever is in the log before it is found dirty, or is stable already.
        let mark = self.shared.committer.mark();
        self.shared.passes.begin();
        let swept = self.sweeper.pass(hurry);
        self.shared.passes.end(0);
        let swept = swept?;
        if self.ending.abandoned() {
            // The pass may have been broken off.
            return Ok(());
        }
        if mark.needs_superblock {
            let written = self.checkpoints.change(&mut self.way, |next| next.tail = mark.tail);
            if let Err(error) = written {
                swept.settle(&self.shared);
                let error = broken(error);
                self.shared.write_back_failed(&error);
                return Err(error);
            }
        }
        self.shared.committer.checkpointed(&mark);
        swept.settle(&self.shared);
        self.shared.committer.unpark(self.shared.cache.figures().unlogged_blocks);
        self.shared.sweep_ended();
        Ok(())
    }

    /// Nobody writes any more: brings everything where it belongs.
    fn close(&mut self) -> Result<(), StorageError> {
        let bytes = self.shared.dirty_bytes();
        if bytes > 0 {
            tracing::info!(bytes, "closing a volume: what is dirty is written back");
        }
        let (mut failures, mut passes) = (0, 0);
        // Once at least: marks are approximate.
        loop {
            match self.sweep(true) {
                Ok(()) if !self.has_work() => break,
                Ok(()) => {
                    failures = 0;
                    passes += 1;
                    if passes == CLOSE_PASSES_MAX {
                        let source = io::Error::other("something stays dirty that nobody writes");
                        return Err(StorageError::Io { action: Action::Write, source });
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return Err(error);
                    }
                    self.failed(&error);
                    std::thread::sleep(self.retry.unwrap_or(RETRY_MIN));
                }
            }
        }
        // The log is empty, on stable storage: whoever has the disk from now on has all of it.
        let mut epoch = self.shared.epoch;
        if let Some(disk) = self.shared.lower.marked() {
            disk.set_log_mark(None)?;
            // What recovery makes of the log after this belongs to no copy of the disk that has its mark.
            epoch = next_epoch(epoch);
        }
        for attempt in 1.. {
            let closed = |next: &mut Superblock| (next.clean, next.memory, next.epoch) = (true, None, epoch);
            match self.checkpoints.change(&mut self.way, closed) {
                Ok(()) => break,
                Err(error) if attempt == FAILURES_MAX => return Err(broken(error)),
                Err(_) => std::thread::sleep(RETRY_MIN),
            }
        }
        Ok(())
    }
}

/// A superblock that was not written.
fn broken(error: FormatError) -> StorageError {
    let source = match error {
        FormatError::Io { source, .. } => source,
        other => io::Error::other(other),
    };
    StorageError::Io { action: Action::Write, source }
}
