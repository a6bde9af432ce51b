//! What every ring keeps from turn to turn, whatever its device: limits, figures, times.

use crate::counters::Counters;
use crate::label::Label;
use crate::limit::{Ask, Gate, Grant};
use crate::trace::{Tracer, Wait};
use crate::virtqueue::Slot;
use engine::Io;
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
    pub(crate) fresh_done: u64,
    /// When the first of those was taken: rings of one worker have their turns one after the other.
    fresh_since_ns: u64,
    /// Since when requests wait that did not fit into a batch, or that a limit holds up, and which of that it is by now.
    backlog: Option<(u64, Wait)>,
    /// What those are told who trace requests.
    pub(crate) trace: Tracer,
}

impl Turns {
    /// `kinds` are the names of the protocol's requests, of which the ring has so many at once.
    pub(crate) fn new(kinds: &'static [&'static str], slots: usize, label: Label) -> Turns {
        let trace = Tracer::new(label.recorder.clone(), label.ring, kinds);
        Turns {
            label,
            gate: Gate::default(),
            figures: Counters::new(kinds, slots),
            begun_bytes: 0,
            look: false,
            unshown: 0,
            fresh_done: 0,
            fresh_since_ns: 0,
            backlog: None,
            trace,
        }
    }

    /// The request in a slot is answered. How long one took that was taken in this turn is known only when the turn is over.
    #[inline]
    pub(crate) fn answered<R>(&mut self, slot: &Slot<R>, failed: bool, io: &Io<'_>) {
        self.trace.answered(Some(slot.number()), slot.kind, slot.started_ns, failed, io);
        if slot.fresh {
            self.count_fresh(slot.kind, failed, slot.started_ns);
        } else {
            self.figures.served.record(io.now_ns().saturating_sub(slot.started_ns), 1);
            self.count(slot.kind, failed);
        }
    }

    /// A request of this kind, taken in this turn and in no slot, is answered in it.
    #[inline]
    pub(crate) fn answered_at_once(&mut self, kind: usize, failed: bool, io: &Io<'_>) {
        self.trace.answered(None, kind, io.now_ns(), failed, io);
        self.count_fresh(kind, failed, io.now_ns());
    }

    #[inline]
    fn count_fresh(&mut self, kind: usize, failed: bool, started_ns: u64) {
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

    /// How many requests may be taken now. `None` when a limit holds them up: the worker is told when to ask again.
    #[inline]
    pub(crate) fn begin(&mut self, io: &mut Io<'_>) -> Option<Grant> {
        self.trace.look(io);
        if self.gate.closed() {
            return None;
        }
        match self.gate.ask(BATCH_MAX as u32, io.now_ns()) {
            Ask::Go(grant) => {
                if let Some((since_ns, wait)) = self.backlog {
                    self.trace.waited(since_ns, wait);
                }
                Some(grant)
            }
            Ask::Wait(deadline) => {
                let since_ns = self.backlog.map_or(io.now_ns(), |(since_ns, _)| since_ns);
                self.backlog = Some((since_ns, Wait::Limit));
                io.timer(deadline.token, deadline.at_ns);
                None
            }
        }
    }

    /// As before it was shut by this order; `waiting` says whether requests wait, which have done so all the time as far as anybody knows.
    pub(crate) fn open(&mut self, order: u64, waiting: bool) {
        let since_ns = self.gate.open(order);
        if waiting && self.backlog.is_none() {
            self.backlog = since_ns.map(|since_ns| (since_ns, Wait::Hold));
        }
    }

    /// So many were taken, since `begun_bytes` had been begun to be moved, and so many are in flight. Returns whether the grant
    /// is spent.
    #[inline]
    pub(crate) fn settle(
        &mut self,
        grant: Grant,
        taken: usize,
        begun_bytes: u64,
        in_flight: usize,
        io: &Io<'_>,
    ) -> bool {
        let moved_bytes = self.begun_bytes - begun_bytes;
        self.gate.settle(grant, taken as u32, moved_bytes);
        let waited_ns = self.backlog.map_or(0, |(since_ns, _)| io.now_ns().saturating_sub(since_ns));
        self.figures.queued.record(waited_ns, taken as u64);
        self.figures.in_flight_max.raise((in_flight + self.unshown) as u64);
        grant.is_spent(moved_bytes)
    }

    /// The batch is over: `more` says whether requests wait that did not fit into it.
    #[inline]
    pub(crate) fn leave(&mut self, more: bool, io: &Io<'_>) {
        self.backlog = more.then(|| self.backlog.unwrap_or((io.now_ns(), Wait::Turn)));
    }

    /// What was answered so far has been shown, and the turn goes on.
    #[inline]
    pub(crate) fn shown_some(&mut self, io: &Io<'_>) {
        self.unshown = 0;
        self.trace.shown(io);
    }

    /// What was answered has been shown, and the turn is over.
    #[inline]
    pub(crate) fn shown(&mut self, io: &Io<'_>) {
        self.shown_some(io);
        let done = std::mem::take(&mut self.fresh_done);
        if done > 0 {
            // Requests that ended in the turn that took them share one reading of the clock.
            self.figures.served.record(io.clock_ns().saturating_sub(self.fresh_since_ns), done);
        }
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
