//! A ring's turns, whatever its device: batches, limits, publication, figures.

use crate::attachment::Attachment;
use crate::counters::Counters;
use crate::label::Label;
use crate::limit::{Ask, Gate, is_deadline};
use crate::virtqueue::Slot;
use engine::{Completion, Io};
use std::sync::Arc;

/// Requests taken in one turn, so that rings of one worker take turns.
pub(crate) const BATCH_MAX: usize = 64;
/// How long a ring's turn goes on with further requests, in nanoseconds: a call may take as long as a disk, a listing has hundreds.
const TURN_NS: u64 = 1_000_000;
/// Behind how many requests the clock is read in any case.
const REQUESTS_PER_LOOK: usize = 8;

/// What every ring has, whatever its requests are.
pub(crate) struct Turns {
    pub(crate) label: Label,
    pub(crate) gate: Gate,
    /// But for what the queue and the gate count.
    pub(crate) figures: Arc<Counters>,
    /// Bytes that requests began to move, as limits count them.
    pub(crate) begun_bytes: u64,
    /// A request was taken that may have been long: a look at the clock will tell whether the turn is over.
    pub(crate) look: bool,
    /// Answers that the client has not been shown.
    pub(crate) unshown: usize,
    /// Requests answered in this turn that were taken in it.
    fresh_done: u64,
    /// When the first of those was taken: rings of one worker have their turns one after the other.
    fresh_since_ns: u64,
    /// Since when requests wait that did not fit into a batch, or that a limit holds up.
    backlog_since_ns: Option<u64>,
}

impl Turns {
    /// `kinds` are the names of the protocol's requests, of which the ring has so many at once.
    pub(crate) fn new(kinds: &'static [&'static str], slots: usize, label: Label) -> Turns {
        Turns {
            label,
            gate: Gate::default(),
            figures: Counters::new(kinds, slots),
            begun_bytes: 0,
            look: false,
            unshown: 0,
            fresh_done: 0,
            fresh_since_ns: 0,
            backlog_since_ns: None,
        }
    }

    /// The request in a slot is answered. How long one took that was taken in this turn is known only when the turn is over.
    #[inline]
    pub(crate) fn answered<R>(&mut self, slot: &Slot<R>, failed: bool, now_ns: u64) {
        if slot.fresh {
            self.answered_at_once(slot.kind, failed, slot.started_ns);
        } else {
            self.figures.served.record(now_ns.saturating_sub(slot.started_ns), 1);
            self.count(slot.kind, failed);
        }
    }

    /// A request of this kind, taken in this turn at `started_ns`, is answered in it.
    #[inline]
    pub(crate) fn answered_at_once(&mut self, kind: usize, failed: bool, started_ns: u64) {
        if self.fresh_done == 0 {
            self.fresh_since_ns = started_ns;
        }
        self.fresh_done += 1;
        self.count(kind, failed);
    }

    #[inline]
    fn count(&mut self, kind: usize, failed: bool) {
        self.figures.requests.count(kind);
        self.figures.errors.add(u64::from(failed));
        self.unshown += 1;
    }

    /// A request is refused before anybody has looked at what it wants.
    pub(crate) fn report_refusal(&self, reason: &dyn std::fmt::Display) {
        let Label { export, ring, .. } = &self.label;
        tracing::debug!(export = &**export, ring, %reason, "a request is refused");
    }

    /// Whether a turn that has `taken` requests has lasted long enough.
    #[inline]
    pub(crate) fn is_late(&mut self, taken: usize, io: &Io<'_>) -> bool {
        let looks = std::mem::take(&mut self.look) || taken.is_multiple_of(REQUESTS_PER_LOOK);
        looks && io.clock_ns().saturating_sub(io.now_ns()) > TURN_NS
    }
}

/// A batch of requests.
pub(crate) fn serve<A: Attachment + ?Sized>(ring: &mut A, io: &mut Io<'_>) -> usize {
    let turns = ring.turns_mut();
    if turns.gate.closed() {
        return ring.held_up(io);
    }
    let grant = match turns.gate.ask(BATCH_MAX as u32, io.now_ns()) {
        Ask::Go(grant) => grant,
        Ask::Wait(deadline) => {
            turns.backlog_since_ns.get_or_insert(io.now_ns());
            io.timer(deadline.token, deadline.at_ns);
            return ring.held_up(io);
        }
    };
    let begun_bytes = turns.begun_bytes;
    let (mut taken, mut late) = (0, false);
    while !late && taken < grant.requests as usize && !grant.is_spent(ring.turns().begun_bytes - begun_bytes) {
        if !ring.next(io) {
            break;
        }
        taken += 1;
        late = ring.is_late(taken, io);
        ring.show_some(io);
    }
    let in_flight = ring.requests_in_flight();
    let turns = ring.turns_mut();
    let moved_bytes = turns.begun_bytes - begun_bytes;
    turns.gate.settle(grant, taken as u32, moved_bytes);
    let waited_ns = turns.backlog_since_ns.map_or(0, |since| io.now_ns().saturating_sub(since));
    turns.figures.queued.record(waited_ns, taken as u64);
    turns.figures.in_flight_max.raise((in_flight + turns.unshown) as u64);
    let more = taken == BATCH_MAX || (late || grant.is_spent(moved_bytes)) && ring.is_waiting();
    let turns = ring.turns_mut();
    turns.backlog_since_ns = more.then(|| turns.backlog_since_ns.unwrap_or(io.now_ns()));
    taken
}

/// Something has ended that was started for the ring: a gate's wait, or work of a request's.
pub(crate) fn complete<A: Attachment + ?Sized>(ring: &mut A, completion: Completion, io: &mut Io<'_>) {
    let token = completion.token;
    if !is_deadline(token) {
        return ring.ended(completion, io);
    }
    let waiting = ring.is_waiting();
    if let Some(deadline) = ring.turns_mut().gate.reached(token, waiting, io.now_ns()) {
        io.timer(deadline.token, deadline.at_ns);
    }
}

/// The turn is over: shows what was answered, and tells the client if it wants that.
pub(crate) fn publish<A: Attachment + ?Sized>(ring: &mut A, io: &mut Io<'_>) {
    ring.show(io);
    let turns = ring.turns_mut();
    turns.unshown = 0;
    let done = std::mem::take(&mut turns.fresh_done);
    if done > 0 {
        // Requests that ended in the turn that took them share one reading of the clock.
        turns.figures.served.record(io.clock_ns().saturating_sub(turns.fresh_since_ns), done);
    }
}
