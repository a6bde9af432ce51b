//! What lies behind the committer's lock: `lead`, `flight` and `mark` change it.

use crate::cache::Round;
use crate::commit::Policy;
use crate::log::LogSpace;
use crate::served::batch::Batch;
use engine::Reply;
use std::collections::VecDeque;

/// Of the log, of who leads and who waits, and of what is under way.
pub(super) struct State {
    pub(super) space: LogSpace,
    /// Of the next record; none is used twice.
    pub(super) sequence: u64,
    /// Checksum of the last record that was sealed.
    pub(super) chain: u64,
    /// Sequence in the superblock that is known to be durable: equal to `sequence`, nothing can be replayed.
    pub(super) durable_sequence: u64,
    pub(super) lead: Lead,
    pub(super) pass: Pass,
    pub(super) ticket: u64,
    /// Requests for the next batch.
    pub(super) gathering: VecDeque<Waiter>,
    pub(super) flights: VecDeque<Flight>,
    /// A flight has failed; those behind it are waited for.
    pub(super) failing: Option<Rewind>,
    /// See [`super`].
    pub(super) broken: bool,
    /// Records that have landed may not be there: that counts as a batch that is not finished, and no version leaves the cache.
    pub(super) doubtful: bool,
    pub(super) dead: bool,
    pub(super) policy: Policy,
    /// Batches without work. In boxes: the kernel and a lower storage know where a batch lies.
    #[allow(clippy::vec_box, reason = "they move in and out of here by pointer")]
    pub(super) spare: Vec<Box<Batch>>,
}

/// Who decides about the next batch.
pub(super) enum Lead {
    /// Whoever joins next; while there are flights, whoever completes one calls somebody.
    Free,
    /// Somebody waits for company, and may be relieved by whoever completes it.
    Waiting { ticket: u64, since_ns: u64, until_ns: u64, before: usize, waiter: Waiter },
    /// Somebody was told to lead: at once, or after a decision of its own.
    Called { at_once: bool },
    /// Somebody takes versions and makes a record of them.
    Building,
    /// There is no room in the log, or it is broken off.
    Parked(Waiter),
}

impl Lead {
    /// Takes the one out that waits with the lead in its hand.
    pub(super) fn take_waiter(&mut self) -> Option<Waiter> {
        match std::mem::replace(self, Lead::Free) {
            Lead::Waiting { waiter, .. } | Lead::Parked(waiter) => Some(waiter),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// The leader's way through what is unlogged.
///
/// It ends where it began and not where nothing is left: writers who do not wait may store as much during each record as the next
/// one holds, and would keep everybody waiting who flushes.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) round: Round,
    /// The round before the last batch was taken.
    pub(super) before: Round,
    /// It has begun: whoever gathers now is not part of it. A leader that is called after it was parked goes on with it.
    pub(super) open: bool,
}

impl Pass {
    /// What was taken is unlogged again: only another round, from where this one is, will have been past everything.
    pub(super) fn breaks(&mut self) {
        self.open = false;
    }
}

/// A request that will be told.
pub(in crate::served) struct Waiter {
    pub(in crate::served) reply: Reply,
    /// Since when it waits, in nanoseconds.
    pub(in crate::served) since_ns: u64,
}

/// A record that was sealed and has not landed.
pub(super) struct Flight {
    pub(super) sequence: u64,
    /// Head of the log before it.
    pub(super) start: u64,
    /// Checksum of the record before it.
    pub(super) chain_before: u64,
    pub(super) began_ns: u64,
    pub(super) beside: bool,
    /// Requests that it answers; none for a record in the middle of a pass.
    pub(super) requests: usize,
    pub(super) versions: u64,
    pub(super) bytes: u64,
    pub(super) waiters: Vec<Waiter>,
    /// The leader of its pass, when its own write has ended and others have not.
    pub(super) leader: Option<Waiter>,
    /// What became of its write.
    pub(super) written: Option<Result<(), i32>>,
    pub(super) batch: Option<Box<Batch>>,
}

/// Where the log goes back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewind {
    pub(super) head: u64,
    pub(super) chain: u64,
    pub(super) errno: i32,
}
