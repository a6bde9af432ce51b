//! Who leads: joining, waiting for company, being called, parking.

use super::Committer;
use super::state::{Flight, Lead, State, Waiter};
use crate::cache::Cache;
use crate::commit::{Decision, Here};
use crate::served::batch::Batch;
use crate::served::figures::{Counters, add};
use crate::served::poke::{Poke, Wish};
use engine::Reply;
use std::sync::atomic::Ordering;

/// What came of joining.
#[derive(Clone, Copy, Debug)]
pub(in crate::served) enum Joined {
    /// The volume has failed.
    Dead,
    /// The caller leads: it builds a batch now.
    Leads,
    /// The caller leads, and waits for company until then: a deadline with this ticket.
    Company {
        /// In nanoseconds.
        at_ns: u64,
        /// Number of the wait.
        ticket: u64,
    },
    /// The caller's reply will be completed.
    Waits,
}

/// What came of taking versions, or of sealing them; some with whom to call now that the lead is free.
pub(in crate::served) enum Taken {
    /// The volume has failed.
    Dead,
    /// The leader's reply is with the committer; it will be called to begin its pass again.
    Parked,
    /// Go on.
    Done,
    /// There is nothing to write: what there was is in flight, and the leader's reply with it, and those of its waiters.
    Rides(Option<Waiter>),
    /// There is nothing to write, and all that there was has landed.
    Stable(Option<Waiter>),
}

impl State {
    /// What whoever could lead now does. It holds the lead (`Called`), or the lead is free.
    fn decide(&mut self, now_ns: u64, first: bool, since_ns: u64, reply: impl FnOnce() -> Reply) -> Joined {
        let here = self.here(1);
        match self.policy.decide(now_ns, here) {
            Decision::Start => {
                self.builds();
                Joined::Leads
            }
            Decision::Until { at_ns } => {
                self.ticket += 1;
                let waiter = Waiter { reply: reply(), since_ns };
                let (ticket, before) = (self.ticket, here.gathered);
                self.lead = Lead::Waiting { ticket, since_ns: now_ns, until_ns: at_ns, before, waiter };
                Joined::Company { at_ns, ticket: self.ticket }
            }
            Decision::Behind => {
                self.lead = Lead::Free;
                let waiter = Waiter { reply: reply(), since_ns };
                if first {
                    self.gathering.push_front(waiter);
                } else {
                    self.gathering.push_back(waiter);
                }
                Joined::Waits
            }
        }
    }

    /// Somebody begins a pass.
    fn builds(&mut self) {
        self.lead = Lead::Building;
        self.pass.open = false;
    }

    fn here(&self, more: usize) -> Here {
        let in_flight = self.flights.iter().map(|flight| flight.requests).sum();
        Here { gathered: self.gathering.len() + more, commits: self.flights.len(), in_flight }
    }

    /// After the lead has become free, or a flight has landed: whom to tell to lead.
    pub(super) fn call_next(&mut self, now_ns: u64) -> Option<Waiter> {
        if !matches!(self.lead, Lead::Free) || self.gathering.is_empty() {
            return None;
        }
        let mut at_once = false;
        if !self.flights.is_empty() {
            let here = self.here(0);
            if self.policy.decide(now_ns, here) != Decision::Start {
                return None;
            }
            at_once = true;
        }
        let next = self.gathering.pop_front();
        if next.is_some() {
            self.lead = Lead::Called { at_once };
        }
        next
    }
}

impl Committer {
    /// A request wants what was written before it to be stable.
    pub(in crate::served) fn join(
        &self,
        figures: &Counters,
        now_ns: u64,
        since_ns: u64,
        reply: impl FnOnce() -> Reply,
    ) -> Joined {
        let mut state = self.state();
        if state.dead {
            return Joined::Dead;
        }
        match &state.lead {
            Lead::Free => state.decide(now_ns, false, since_ns, reply),
            // With the one that waits, and us.
            Lead::Waiting { since_ns: began_ns, before, .. } if state.policy.is_enough(state.gathering.len() + 2) => {
                let (waited_ns, before) = (now_ns.saturating_sub(*began_ns), *before);
                let gathered = state.gathering.len() + 2;
                state.policy.waited(waited_ns, before, gathered);
                figures.company_wait.record(waited_ns);
                if let Some(relieved) = state.lead.take_waiter() {
                    state.gathering.push_front(relieved);
                }
                state.builds();
                Joined::Leads
            }
            _ => {
                state.gathering.push_back(Waiter { reply: reply(), since_ns });
                Joined::Waits
            }
        }
    }

    /// A request was told to lead; `restart` says that it was parked, and goes on with its pass.
    pub(in crate::served) fn called(
        &self,
        now_ns: u64,
        since_ns: u64,
        restart: bool,
        reply: impl FnOnce() -> Reply,
    ) -> Joined {
        let mut state = self.state();
        if state.dead {
            return Joined::Dead;
        }
        if restart {
            state.lead = Lead::Building;
            return Joined::Leads;
        }
        if matches!(state.lead, Lead::Called { at_once: true }) {
            state.builds();
            return Joined::Leads;
        }
        state.decide(now_ns, true, since_ns, reply)
    }

    /// A turn of a wait that is too short for a deadline: whether it goes on.
    pub(in crate::served) fn still_waits(&self, now_ns: u64, ticket: u64) -> bool {
        match &self.state().lead {
            Lead::Waiting { ticket: waiting, until_ns, .. } => *waiting == ticket && now_ns < *until_ns,
            _ => false,
        }
    }

    /// The deadline of a wait for company: the reply of the one that waited, which leads now, or `None` if it was relieved.
    pub(in crate::served) fn deadline(&self, figures: &Counters, now_ns: u64, ticket: u64) -> Option<Waiter> {
        let mut state = self.state();
        match &state.lead {
            Lead::Waiting { ticket: waiting, since_ns, before, .. } if *waiting == ticket && !state.dead => {
                let (waited_ns, before) = (now_ns.saturating_sub(*since_ns), *before);
                let gathered = state.gathering.len() + 1;
                state.policy.waited(waited_ns, before, gathered);
                figures.company_wait.record(waited_ns);
                let waiter = state.lead.take_waiter();
                state.builds();
                waiter
            }
            _ => None,
        }
    }

    /// The leader takes what is unlogged, as much as one record holds; with the first batch of a round also all who have
    /// gathered. What it means to find nothing is decided in the same step: a flight that holds the versions might fail in
    /// between.
    #[allow(clippy::too_many_arguments, reason = "taking and its three ends, in one locked step")]
    pub(in crate::served) fn take(
        &self,
        cache: &Cache,
        poke: &Poke,
        now_ns: u64,
        batch: &mut Batch,
        waiters: &mut Vec<Waiter>,
        waiter: impl FnOnce() -> Waiter,
    ) -> Taken {
        let mut state = self.state();
        if state.dead {
            state.lead = Lead::Free;
            return Taken::Dead;
        }
        if state.broken || state.failing.is_some() {
            return self.park(&mut state, poke, Wish::Mend, waiter());
        }
        let State { pass, gathering, .. } = &mut *state;
        if !pass.open {
            waiters.extend(gathering.drain(..));
            (pass.round, pass.open) = (pass.round.again(), true);
        }
        pass.before = pass.round;
        self.begin();
        let taken = cache.take_unlogged(self.versions_max, &mut pass.round, &mut batch.pins);
        batch.last = pass.round.is_done();
        if taken > 0 {
            return Taken::Done;
        }
        pass.open = false;
        self.end();
        state.lead = Lead::Free;
        let State { flights, .. } = &mut *state;
        match flights.back_mut() {
            Some(flight) => {
                flight.waiters.append(waiters);
                flight.waiters.push(waiter());
                Taken::Rides(state.call_next(now_ns))
            }
            None => Taken::Stable(state.call_next(now_ns)),
        }
    }

    fn park(&self, state: &mut State, poke: &Poke, wish: Wish, waiter: Waiter) -> Taken {
        state.lead = Lead::Parked(waiter);
        self.note_parked(state);
        // While flights fail nobody is asked: whoever tells those of the last one asks for the pass that mends the log.
        if state.failing.is_none() {
            poke.ask(wish);
        }
        Taken::Parked
    }

    /// To be called when a leader has been parked or called, and when flights begin or end to fail: before they have ended no pass
    /// helps a leader, so that none is hurried for it.
    pub(super) fn note_parked(&self, state: &State) {
        let waits = matches!(state.lead, Lead::Parked(_)) && state.failing.is_none();
        self.parked.store(waits, Ordering::Relaxed);
    }

    /// The leader gives up: whom to call instead.
    pub(in crate::served) fn resign(&self, now_ns: u64) -> Option<Waiter> {
        let mut state = self.state();
        state.lead = Lead::Free;
        state.call_next(now_ns)
    }

    /// Versions that were taken go back: they did not become a record.
    pub(in crate::served) fn give_back(&self, cache: &Cache, batch: &mut Batch) {
        let state = self.state();
        cache.unlog(&batch.pins);
        self.end();
        drop(state);
        batch.pins.clear();
    }

    /// Gives the leader's record its place. With the last record of a pass the waiters are the flight's, and the lead is free.
    /// Gives the offset in the log as well, and whom to call.
    #[allow(clippy::too_many_arguments, reason = "all that a record needs, in one locked step")]
    pub(in crate::served) fn seal(
        &self,
        cache: &Cache,
        poke: &Poke,
        figures: &Counters,
        now_ns: u64,
        batch: &mut Batch,
        waiters: &mut Vec<Waiter>,
        waiter: impl FnOnce() -> Waiter,
    ) -> (Taken, u64, Option<Waiter>) {
        let bytes = batch.bytes();
        let mut state = self.state();
        let usable = !state.dead && !state.broken && state.failing.is_none();
        let start = state.space.head();
        let place = if usable { state.space.reserve(bytes) } else { None };
        let Some((position, _)) = place else {
            cache.unlog(&batch.pins);
            state.pass.round = state.pass.before;
            self.end();
            let taken = if state.dead {
                state.lead = Lead::Free;
                Taken::Dead
            } else if usable {
                add(&figures.parked_commits, 1);
                self.park(&mut state, poke, Wish::Parked, waiter())
            } else {
                self.park(&mut state, poke, Wish::Mend, waiter())
            };
            drop(state);
            batch.pins.clear();
            return (taken, 0, None);
        };
        let (sequence, chain_before) = (state.sequence, state.chain);
        let sealed = batch.seal(sequence, position, chain_before);
        debug_assert_eq!(sealed.bytes, bytes);
        let (beside, versions) = (!state.flights.is_empty(), batch.pins.len() as u64);
        let mut flight = Flight {
            sequence,
            start,
            chain_before,
            began_ns: now_ns,
            beside,
            requests: 0,
            versions,
            bytes,
            waiters: Vec::new(),
            leader: None,
            written: None,
            batch: None,
        };
        if batch.last {
            // Swapped, so that both lists keep their memory.
            std::mem::swap(&mut flight.waiters, waiters);
            flight.requests = flight.waiters.len() + 1;
            (state.lead, state.pass.open) = (Lead::Free, false);
        }
        state.flights.push_back(flight);
        state.sequence = sequence.saturating_add(1);
        state.chain = sealed.chain;
        let fill = state.space.is_half_full();
        let offset = position % state.space.len_bytes();
        let next = if batch.last { state.call_next(now_ns) } else { None };
        drop(state);
        if fill {
            poke.ask(Wish::LogFill);
        }
        (Taken::Done, offset, next)
    }
}
