//! Checkpoints, as the log sees them.

use super::Committer;
use super::state::{Lead, Rewind};
use crate::BLOCK_BYTES;
use crate::format::Tail;
use crate::served::reply::Event;

/// How far the log was complete when a sweep began: where it begins once the sweep's writes are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::served) struct Mark {
    /// For the superblock. What is before the position has landed; the sequence is above that of every record that lies there, or
    /// was tried there and failed.
    pub(in crate::served) tail: Tail,
    /// Something has been tried since the last checkpoint, so that the superblock has to be written. Otherwise
    /// [`Committer::checkpointed`] can be called without.
    pub(in crate::served) needs_superblock: bool,
}

impl Committer {
    /// To be called before a sweep takes its first dirty block. Every version in a record before the mark is dirty then, or on
    /// stable lower storage.
    pub(in crate::served) fn mark(&self) -> Mark {
        let state = self.state();
        let tail = match state.flights.front() {
            Some(flight) => Tail { position: flight.start, sequence: flight.sequence, chain: flight.chain_before },
            None => Tail { position: state.space.head(), sequence: state.sequence, chain: state.chain },
        };
        Mark { tail, needs_superblock: tail.sequence != state.durable_sequence }
    }

    /// All that was dirty at the mark is on stable lower storage, and so is the superblock that says where the log begins, if
    /// one was needed. Gives the log's room back. To be followed by [`evict`](Self::evict) of what was swept, and then by
    /// [`unpark`](Self::unpark).
    pub(in crate::served) fn checkpointed(&self, mark: &Mark) {
        let mut state = self.state();
        if mark.tail.position > state.space.tail() {
            state.space.release(mark.tail.position);
        }
        state.durable_sequence = state.durable_sequence.max(mark.tail.sequence);
        if state.broken && mark.tail.sequence == state.sequence {
            // The mark was made after the break: nothing that was tried can be taken for a continuation any more.
            state.broken = false;
            if std::mem::take(&mut state.doubtful) {
                self.end();
            }
        }
    }

    /// The page cache below has told somebody else of something that it lost, and tells no log write any more: what is under way
    /// counts as failed, and what has landed as not there. Nobody commits, and nobody is told that there is nothing to commit,
    /// until a checkpoint has made all of it stable in its place.
    pub(in crate::served) fn doubt(&self, errno: i32) {
        let mut state = self.state();
        let is_empty = state.flights.is_empty() && state.durable_sequence == state.sequence;
        if state.dead || is_empty {
            return;
        }
        if !std::mem::replace(&mut state.doubtful, true) {
            self.begin();
        }
        if state.broken || state.failing.is_some() {
            return;
        }
        if let Some(first) = state.flights.front() {
            state.failing = Some(Rewind { head: first.start, chain: first.chain_before, errno });
            self.note_parked(&state);
        } else {
            state.broken = true;
            state.pass.breaks();
        }
    }

    /// Calls the leader that waits for room. Not before what was swept has left the cache: as soon as it makes another record the
    /// log is not empty any more, and all that nobody has logged yet would have to stay, to go through a log that has no room for
    /// it. So where `unlogged` blocks do not fit, it waits for a pass at whose end the log is empty.
    pub(in crate::served) fn unpark(&self, unlogged: u64) {
        let mut state = self.state();
        if state.broken || state.failing.is_some() {
            // It would park again, and ask for the next pass, for as long as a slow flight takes.
            return;
        }
        let room = state.space.len_bytes() - state.space.used();
        if state.durable_sequence != state.sequence && unlogged.saturating_mul(BLOCK_BYTES as u64) > room {
            return;
        }
        if matches!(state.lead, Lead::Parked(_)) {
            let parked = state.lead.take_waiter();
            state.lead = Lead::Called { at_once: true };
            self.note_parked(&state);
            drop(state);
            if let Some(parked) = parked {
                parked.reply.complete_part(Event::Lead.part(), 0);
            }
        }
    }
}
