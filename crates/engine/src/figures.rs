//! Figures of a worker and of a ring's stay on it: pages of counters, which only their owner writes and any thread reads, and
//! the snapshots read from them.

use crate::counter::Counter;
use policy::Tactic;

/// What one worker has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerFigures {
    /// Turns of the loop.
    pub turns: u64,
    /// Time in turns that had work, in nanoseconds: neither polling nor asleep.
    pub busy_ns: u64,
    /// Time spent looking for work in vain or not, in nanoseconds.
    pub polled_ns: u64,
    /// Calls of io_uring_enter.
    pub enters: u64,
    /// Times the worker went to sleep.
    pub sleeps: u64,
    /// Poll windows in which work arrived.
    pub polls_hit: u64,
    /// Poll windows that ended without work.
    pub polls_missed: u64,
    /// Submission queue entries.
    pub sqes: u64,
    /// Completion queue entries.
    pub cqes: u64,
    /// Messages from other threads.
    pub messages: u64,
    /// The poll window now, in nanoseconds.
    pub poll_window_ns: u64,
    /// The tactic by which it waits; `None` when the window is pinned.
    pub tactic: Option<Tactic>,
    /// Trials of tactics that came to a decision.
    pub trials: u64,
    /// Decisions that changed the tactic.
    pub changes: u64,
    /// CPU time of the worker's thread, in nanoseconds.
    pub cpu_ns: u64,
}

/// A worker's page; only the worker writes it.
#[derive(Debug, Default)]
pub(crate) struct WorkerPage {
    pub(crate) turns: Counter,
    pub(crate) busy_ns: Counter,
    pub(crate) polled_ns: Counter,
    pub(crate) enters: Counter,
    pub(crate) sleeps: Counter,
    pub(crate) polls_hit: Counter,
    pub(crate) polls_missed: Counter,
    pub(crate) sqes: Counter,
    pub(crate) cqes: Counter,
    pub(crate) messages: Counter,
    pub(crate) poll_window_ns: Counter,
    /// One more than the tactic's place in [`Tactic::ALL`]; 0 for none.
    pub(crate) tactic: Counter,
    pub(crate) trials: Counter,
    pub(crate) changes: Counter,
}

impl WorkerPage {
    /// Shows by which tactic the worker waits.
    pub(crate) fn waits_by(&self, tactic: Option<Tactic>) {
        self.tactic.set(tactic.map_or(0, |tactic| tactic as u64 + 1));
    }

    /// A snapshot. The CPU time comes from the kernel.
    pub(crate) fn read(&self, cpu_ns: u64) -> WorkerFigures {
        WorkerFigures {
            turns: self.turns.get(),
            busy_ns: self.busy_ns.get(),
            polled_ns: self.polled_ns.get(),
            enters: self.enters.get(),
            sleeps: self.sleeps.get(),
            polls_hit: self.polls_hit.get(),
            polls_missed: self.polls_missed.get(),
            sqes: self.sqes.get(),
            cqes: self.cqes.get(),
            messages: self.messages.get(),
            poll_window_ns: self.poll_window_ns.get(),
            tactic: self.tactic.get().checked_sub(1).and_then(|place| Tactic::ALL.get(place as usize).copied()),
            trials: self.trials.get(),
            changes: self.changes.get(),
            cpu_ns,
        }
    }
}

/// What the engine counts of one ring, carried along when it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStay {
    /// Kicks received.
    pub kicks: u64,
    /// Times the ring had requests while its worker was looking, so that no kick was needed.
    pub polls_hit: u64,
    /// Times the worker stopped looking and armed the kick.
    pub polls_missed: u64,
    /// Moves to another worker.
    pub moves: u64,
}

/// The engine's page of a ring. It moves with the ring; only the ring's present owner writes it.
#[derive(Debug, Default)]
pub struct StayPage {
    pub(crate) kicks: Counter,
    pub(crate) polls_hit: Counter,
    pub(crate) polls_missed: Counter,
    pub(crate) moves: Counter,
}

impl StayPage {
    /// A snapshot.
    pub fn read(&self) -> RingStay {
        RingStay {
            kicks: self.kicks.get(),
            polls_hit: self.polls_hit.get(),
            polls_missed: self.polls_missed.get(),
            moves: self.moves.get(),
        }
    }
}
