//! Who commits when: the state behind the committer's lock (`state`), and every change of it.
//!
//! There is no thread. A request that has to be stable *joins*: if nothing stands against it, it becomes the *leader*, takes what
//! is unlogged, and writes it to the log with its own I/O. Requests that come meanwhile *gather*, and the leader of the next
//! batch is one of them. A batch with its write under way is a *flight*; flights complete in the order of their records.
//!
//! The lock is held for short steps only: checksums are made between [`Committer::take`] and [`Committer::seal`] without it,
//! with the lead held instead, so that others gather and go on.
//!
//! # Clean without a lock
//! A flush that has nothing to commit must not take the lock. `activity` counts batches that were begun and those that are not
//! finished, in one word. A batch is counted *before* marks of unlogged blocks are taken, and leaves the count *after* its
//! versions are known as logged, or are marked again. So: no batch unfinished, no marks, and no batch begun since the first
//! look: then whatever was written before is in the log, or needs none.
//!
//! # A failed log write
//! A write that failed may be on the disk all the same, whole. What comes next must not be mistaken for its continuation, nor may
//! it ever be replayed over something newer. So the log is *broken off*: the flights behind the failed one are waited for
//! and have failed too, their versions are unlogged again, their room is given back, and nobody commits until a checkpoint has
//! said that the log begins behind everything that was tried (`mark`). Whatever waits for that is answered from what the
//! checkpoint has made stable, or by a log write that succeeds.
//!
//! A page cache writes later, and tells of what it has lost once: to a log write, or to a flush of write-back, and then the
//! log's records are as doubtful as if they had failed ([`Committer::doubt`]).

mod flight;
mod lead;
mod mark;
mod state;
#[cfg(test)]
mod tests;

pub(super) use flight::{Answer, Landed};
pub(super) use lead::{Joined, Taken};
pub(super) use state::Waiter;

use super::batch::{Batch, versions_max};
use crate::cache::{Cache, Evicted, Pins};
use crate::commit::{COMMITS_MAX, Policy};
use crate::format::Tail;
use crate::log::LogSpace;
use state::{Lead, Pass, State};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One batch in `activity`, as begun and as unfinished.
const BEGUN: u64 = 1 << 32;
const UNFINISHED: u64 = 1;

/// See the module.
pub(super) struct Committer {
    activity: AtomicU64,
    /// The leader waits for room in the log, or for it to be mended, and a pass can bring that.
    parked: AtomicBool,
    versions_max: usize,
    state: Mutex<State>,
}

impl Committer {
    /// An empty log of `log_bytes` that begins at `tail`.
    pub(super) fn new(log_bytes: u64, tail: Tail) -> Committer {
        let state = State {
            space: LogSpace::new(log_bytes, tail.position, tail.position),
            sequence: tail.sequence,
            chain: tail.chain,
            durable_sequence: tail.sequence,
            lead: Lead::Free,
            pass: Pass::default(),
            ticket: 0,
            gathering: VecDeque::new(),
            flights: VecDeque::new(),
            failing: None,
            broken: false,
            doubtful: false,
            dead: false,
            policy: Policy::new(),
            spare: Vec::new(),
        };
        Committer {
            activity: AtomicU64::new(0),
            parked: AtomicBool::new(false),
            versions_max: versions_max(crate::log::record_bytes_max(log_bytes)),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything that was written before this call is stable as it is. Without a lock.
    pub(super) fn is_clean(&self, cache: &Cache) -> bool {
        let before = self.activity.load(Ordering::SeqCst);
        before.is_multiple_of(BEGUN) && !cache.has_unlogged() && self.activity.load(Ordering::SeqCst) == before
    }

    fn begin(&self) {
        self.activity.fetch_add(BEGUN + UNFINISHED, Ordering::SeqCst);
    }

    fn end(&self) {
        self.activity.fetch_sub(UNFINISHED, Ordering::SeqCst);
    }

    /// Bytes of the log in use.
    pub(super) fn log_used_bytes(&self) -> u64 {
        self.state().space.used()
    }

    /// Whether half of the log is in use: a sweep should let it begin later.
    pub(super) fn is_half_full(&self) -> bool {
        self.state().space.is_half_full()
    }

    /// Whether a commit waits for a sweep.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// A batch to fill, if there is one without work.
    pub(super) fn spare(&self) -> Option<Box<Batch>> {
        self.state().spare.pop()
    }

    /// Keeps a batch for the next leader.
    pub(super) fn keep(&self, mut batch: Box<Batch>) {
        batch.pins.clear();
        let mut state = self.state();
        if state.spare.len() <= COMMITS_MAX {
            state.spare.push(batch);
        }
    }

    /// See [`Shared::settle`].
    pub(super) fn evict(&self, cache: &Cache, pins: &mut Pins) -> Evicted {
        let state = self.state();
        if state.doubtful {
            // Recovery might find an older version in the log, and not the record that is to come over it.
            let kept = pins.len();
            cache.dirty_again(pins);
            pins.clear();
            return Evicted { removed: 0, kept };
        }
        // A batch that is being built counts: it may hold an older version of a block, and its record is yet to come.
        let idle = self.activity.load(Ordering::SeqCst).is_multiple_of(BEGUN);
        let log_is_empty = idle && !state.broken && state.durable_sequence == state.sequence;
        cache.evict(pins, log_is_empty)
    }

    /// Answers everybody who waits with an error, and whoever comes later.
    pub(super) fn fail(&self) {
        let mut told: Vec<Waiter> = Vec::new();
        let mut state = self.state();
        state.dead = true;
        told.extend(state.gathering.drain(..));
        // Who builds or was called finds out when it comes back.
        if let Some(waiter) = state.lead.take_waiter() {
            told.push(waiter);
            self.parked.store(false, Ordering::Relaxed);
        }
        for flight in &mut state.flights {
            told.append(&mut flight.waiters);
            told.extend(flight.leader.take());
        }
        drop(state);
        for waiter in told {
            waiter.reply.complete(-libc::EIO);
        }
    }
}
