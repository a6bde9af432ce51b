//! How the write-back thread is told that there is something to do.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why the write-back thread should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Wish {
    /// Writers or leaders are parked: they need slots, or room in the log.
    Parked = 1,
    /// The log is half full.
    LogFill = 2,
    /// A good share of the slots is dirty.
    Dirty = 4,
    /// The log is broken off: it needs a checkpoint.
    Mend = 8,
    /// Something has changed while nothing was dirty.
    Change = 16,
    /// The volume is being closed.
    Close = 32,
    /// Discards wait for the end of the pass under way.
    PassEnd = 64,
}

/// Wishes that a pass under way is not to be slow for.
const PRESSING: u32 = Wish::Parked as u32 | Wish::Mend as u32 | Wish::Close as u32 | Wish::PassEnd as u32;

/// What the write-back thread was asked for since it last looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    bits: u32,
    /// Number of the last [`Poke::sweep_and_wait`] that began; to be given to [`Poke::swept`] after a sweep.
    pub(super) sweep: u64,
    /// Somebody waits for that sweep.
    pub(super) sweep_wanted: bool,
}

impl Wishes {
    pub(super) fn has(self, wish: Wish) -> bool {
        self.bits & wish as u32 != 0
    }

    /// Whether anything was asked for at all.
    pub(super) fn any(self) -> bool {
        self.bits != 0 || self.sweep_wanted
    }
}

/// Why a sweep that was waited for did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSweep {
    /// Not within the time.
    Timeout,
    /// It failed with this error, and the next one will.
    Failed(i32),
    /// The write-back thread is gone.
    Gone,
}

/// Wakes the write-back thread, and lets others wait for a sweep of its.
#[derive(Default)]
pub(super) struct Poke {
    /// Wishes that the thread has not taken yet: who adds none need not take the lock.
    bits: AtomicU32,
    /// The thread sleeps without a timeout, because nothing is dirty.
    asleep: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    asked: u64,
    swept: u64,
    /// Number of the last sweep that failed in a way that lasts, and the error.
    failed: (u64, i32),
    gone: bool,
}

impl Poke {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From any thread, and cheap while the same wish waits already.
    pub(super) fn ask(&self, wish: Wish) {
        let bit = wish as u32;
        // The read-modify-write even of a bit that is set: the thread that takes it sees what we did before.
        if self.bits.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            // The thread looks at the bits with the lock held before it waits: it cannot fall asleep between the two.
            drop(self.state());
            self.wake.notify_one();
        }
    }

    /// As [`ask`](Self::ask), for what need not be seen by a thread that has taken the wish a moment ago.
    pub(super) fn ask_once(&self, wish: Wish) {
        if self.bits.load(Ordering::Relaxed) & wish as u32 == 0 {
            self.ask(wish);
        }
    }

    /// Called by writers after they have marked something as dirty: the first wakes a thread that sleeps because nothing was.
    pub(super) fn first_change(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.ask(Wish::Change);
        }
    }

    /// The thread is about to sleep until something changes; it looks once more whether anything is dirty *after* this, and
    /// only then waits: either it sees the change, or the writer sees this.
    pub(super) fn falls_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// Waits for a wish, at most `timeout`, and takes all of them. For the write-back thread.
    pub(super) fn wait(&self, timeout: Duration) -> Wishes {
        let end = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            let bits = self.bits.swap(0, Ordering::SeqCst);
            let wishes = Wishes { bits, sweep: state.asked, sweep_wanted: state.asked > state.swept };
            let left = end.saturating_duration_since(Instant::now());
            if wishes.any() || left.is_zero() {
                return wishes;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether somebody waits for what the pass under way brings, or the next one. For the write-back thread, in a pass.
    pub(super) fn is_pressing(&self) -> bool {
        self.presses(&self.state())
    }

    fn presses(&self, state: &State) -> bool {
        self.bits.load(Ordering::SeqCst) & PRESSING != 0 || state.asked > state.swept
    }

    /// Sleeps for that time, or until somebody presses. Takes no wish. For the write-back thread, in a pass.
    pub(super) fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut state = self.state();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.presses(&state) {
                return;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A sweep has ended that began after [`wait`](Self::wait) had given this number.
    pub(super) fn swept(&self, sweep: u64) {
        let mut state = self.state();
        state.swept = state.swept.max(sweep);
        drop(state);
        self.done.notify_all();
    }

    /// The same of one that has failed, and that whoever asked for it need not wait for any longer. The thread tries again.
    pub(super) fn failed(&self, sweep: u64, errno: i32) {
        let mut state = self.state();
        state.failed = (state.failed.0.max(sweep), errno);
        drop(state);
        self.done.notify_all();
    }

    /// The write-back thread is gone: nobody waits for it any more.
    pub(super) fn gone(&self) {
        self.state().gone = true;
        self.done.notify_all();
    }

    /// Asks for a sweep of all that is dirty now and waits until it has ended. Blocks: not for a worker.
    pub(super) fn sweep_and_wait(&self, timeout: Duration) -> Result<(), NoSweep> {
        let end = Instant::now() + timeout;
        let mut state = self.state();
        state.asked += 1;
        let mine = state.asked;
        self.wake.notify_one();
        loop {
            if state.swept >= mine {
                return Ok(());
            }
            if state.failed.0 >= mine {
                return Err(NoSweep::Failed(state.failed.1));
            }
            if state.gone {
                return Err(NoSweep::Gone);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoSweep::Timeout);
            }
            state = self.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn wishes_gather_and_are_taken_once() {
        let poke = Poke::default();
        poke.ask(Wish::Dirty);
        poke.ask(Wish::Parked);
        poke.ask(Wish::Dirty);
        let wishes = poke.wait(Duration::ZERO);
        assert!(wishes.has(Wish::Dirty) && wishes.has(Wish::Parked) && !wishes.has(Wish::Close));
        assert!(!poke.wait(Duration::ZERO).any());
    }

    #[test]
    fn a_sweep_that_began_earlier_does_not_count() {
        let poke = Arc::new(Poke::default());
        let before = poke.wait(Duration::ZERO);
        let waiter = std::thread::spawn({
            let poke = poke.clone();
            move || poke.sweep_and_wait(LONG)
        });
        let wishes = poke.wait(LONG);
        assert!(wishes.sweep_wanted);
        poke.swept(before.sweep);
        assert!(poke.wait(Duration::ZERO).sweep_wanted, "still wanted");
        poke.swept(wishes.sweep);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(!poke.wait(Duration::ZERO).any());
        assert_eq!(poke.sweep_and_wait(Duration::ZERO), Err(NoSweep::Timeout));
        poke.gone();
        assert_eq!(poke.sweep_and_wait(LONG), Err(NoSweep::Gone));
    }

    #[test]
    fn a_sweep_that_fails_is_told_to_those_who_asked_before_it_began() {
        let poke = Arc::new(Poke::default());
        let waits = || {
            let poke = poke.clone();
            std::thread::spawn(move || poke.sweep_and_wait(LONG))
        };
        let first = waits();
        let wishes = poke.wait(LONG);
        let second = waits();
        while poke.wait(Duration::ZERO).sweep == wishes.sweep {
            std::thread::yield_now();
        }
        poke.failed(wishes.sweep, libc::ENOSPC);
        assert_eq!(first.join().unwrap(), Err(NoSweep::Failed(libc::ENOSPC)));
        let wishes = poke.wait(LONG);
        assert!(wishes.sweep_wanted, "it is tried again");
        poke.swept(wishes.sweep);
        assert_eq!(second.join().unwrap(), Ok(()));
    }

    #[test]
    fn who_waits_ends_a_rest_and_others_do_not() {
        let poke = Arc::new(Poke::default());
        poke.ask(Wish::Dirty);
        poke.ask(Wish::LogFill);
        assert!(!poke.is_pressing());
        poke.rest(Duration::from_micros(10));
        for wish in [Wish::Parked, Wish::Mend, Wish::Close, Wish::PassEnd] {
            let sleeper = std::thread::spawn({
                let poke = poke.clone();
                move || poke.rest(LONG)
            });
            poke.ask(wish);
            sleeper.join().unwrap();
            assert!(poke.is_pressing());
            assert!(poke.wait(Duration::ZERO).has(wish), "it is there for who takes it");
            assert!(!poke.is_pressing());
        }
        let waiter = std::thread::spawn({
            let poke = poke.clone();
            move || poke.sweep_and_wait(LONG)
        });
        poke.rest(LONG);
        assert!(poke.is_pressing());
        poke.swept(poke.wait(Duration::ZERO).sweep);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_wish_wakes_a_sleeper() {
        let poke = Arc::new(Poke::default());
        let sleeper = std::thread::spawn({
            let poke = poke.clone();
            move || poke.wait(LONG)
        });
        poke.ask(Wish::LogFill);
        assert!(sleeper.join().unwrap().has(Wish::LogFill));
    }
}
