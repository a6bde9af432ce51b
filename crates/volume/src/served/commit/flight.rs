//! Log writes under way, and how they land: in order, or all together when one has failed.

use super::Committer;
use super::state::{Flight, Rewind, State, Waiter};
use crate::cache::Cache;
use crate::served::batch::Batch;
use crate::served::figures::{Counters, add};

/// Requests that can be told, and what.
pub(in crate::served) struct Answer {
    pub(in crate::served) waiters: Vec<Waiter>,
    pub(in crate::served) result: Result<(), i32>,
    /// It held versions, which are free to go now.
    pub(in crate::served) batch: Option<Box<Batch>>,
    /// Whom to call.
    pub(in crate::served) next: Option<Waiter>,
}

impl Answer {
    fn new(flight: Flight, result: Result<(), i32>, next: Option<Waiter>) -> Answer {
        let mut waiters = flight.waiters;
        waiters.extend(flight.leader);
        Answer { waiters, result, batch: flight.batch, next }
    }
}

/// What became of the flight that was asked for.
pub(in crate::served) enum Landed {
    /// It has landed, with this.
    With(Result<(), i32>),
    /// It waits for others; its leader will be told.
    Later,
    /// The volume has failed.
    Dead,
}

impl Committer {
    /// The write of record `batch.sequence` has ended with `result`. Everybody who can be told something by that is added to
    /// `told`, for the caller to tell.
    #[allow(clippy::too_many_arguments, reason = "what landing touches, in one locked step")]
    pub(in crate::served) fn landed(
        &self,
        cache: &Cache,
        figures: &Counters,
        in_order: bool,
        now_ns: u64,
        batch: Box<Batch>,
        result: Result<(), i32>,
        leader: impl FnOnce() -> Waiter,
        told: &mut Vec<Answer>,
    ) -> Landed {
        let sequence = batch.sequence;
        let mut state = self.state();
        if state.dead {
            return Landed::Dead;
        }
        let Some(flight) = state.flights.iter_mut().find(|flight| flight.sequence == sequence) else {
            debug_assert!(false, "record {sequence} is not in flight");
            return Landed::Dead;
        };
        (flight.written, flight.batch) = (Some(result), Some(batch));
        let mut mine = Landed::Later;
        while state.failing.is_none() {
            // The first that cannot land holds up the others; without the order, whatever was written lands.
            let written = |flight: &Flight| flight.written.is_some();
            let place = if in_order { 0 } else { state.flights.iter().position(written).unwrap_or(0) };
            let Some(flight) = state.flights.get(place) else { break };
            match flight.written {
                None => break,
                Some(Err(errno)) => {
                    state.failing = Some(Rewind { head: flight.start, chain: flight.chain_before, errno });
                }
                Some(Ok(())) => {
                    let Some(flight) = state.flights.remove(place) else { break };
                    if flight.sequence == sequence {
                        mine = Landed::With(Ok(()));
                    }
                    told.push(self.land(&mut state, cache, figures, now_ns, flight));
                }
            }
        }
        if let Some(rewind) = state.failing
            && state.flights.iter().all(|flight| flight.written.is_some())
        {
            // All have ended: nothing writes to the log any more, and its room can be used again.
            while let Some(flight) = state.flights.pop_front() {
                if flight.sequence == sequence {
                    mine = Landed::With(Err(rewind.errno));
                }
                if let Some(batch) = &flight.batch {
                    cache.unlog(&batch.pins);
                }
                self.end();
                add(&figures.log_errors, 1);
                told.push(Answer::new(flight, Err(rewind.errno), None));
            }
            state.space.rewind(rewind.head);
            state.chain = rewind.chain;
            state.failing = None;
            state.broken = true;
            state.pass.breaks();
            if let (Some(next), Some(last)) = (state.call_next(now_ns), told.last_mut()) {
                last.next = Some(next);
            }
        }
        self.note_parked(&state);
        if matches!(mine, Landed::Later)
            && let Some(flight) = state.flights.iter_mut().find(|flight| flight.sequence == sequence)
        {
            flight.leader = Some(leader());
        }
        mine
    }

    /// A flight has landed well, in its turn.
    fn land(&self, state: &mut State, cache: &Cache, figures: &Counters, now_ns: u64, flight: Flight) -> Answer {
        if let Some(batch) = &flight.batch {
            cache.logged(&batch.pins);
        }
        self.end();
        let took_ns = now_ns.saturating_sub(flight.began_ns);
        if flight.requests > 0 {
            // What records in the middle of a pass take says little about the time of a commit.
            state.policy.completed(took_ns, flight.requests, state.gathering.len(), flight.beside);
        }
        add(&figures.commits, 1);
        add(&figures.committed_requests, flight.requests as u64);
        add(&figures.committed_blocks, flight.versions);
        add(&figures.committed_bytes, flight.bytes);
        figures.commit_latency.record(took_ns);
        let next = state.call_next(now_ns);
        Answer::new(flight, Ok(()), next)
    }
}
