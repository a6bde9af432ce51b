//! A virtqueue's turns: batches, limits, publication, figures.

use super::slot::Slot;
use crate::figures::RingFigures;
use crate::label::Label;
use crate::limit::{Ask, Gate, is_deadline};
use crate::queue::{Broken, Queue};
use engine::{Completion, Io};
use std::sync::Arc;
use vring::{Chain, Memory};

/// Requests taken in one turn, so that rings of one worker take turns.
pub(crate) const BATCH_MAX: usize = 64;
/// Answers that are ready while the batch goes on are shown to the driver, which is told of them if it sleeps, in groups of
/// this size: it works on the first while we work on the next. A guest keeps some sixteen requests under way; larger groups
/// let the two take turns instead, smaller ones cost too many notifications (`docs/decisions/0006`).
const PUBLISH_EVERY: usize = 4;

/// How long a ring's turn goes on with further requests, in nanoseconds: a call may take as long as a disk, a listing has hundreds.
const TURN_NS: u64 = 1_000_000;
/// Behind how many requests the clock is read in any case.
const REQUESTS_PER_LOOK: usize = 8;

/// Whether a turn that has `taken` requests has lasted long enough. `look`: the last one may have been long.
#[inline]
pub(crate) fn is_late(look: &mut bool, taken: usize, io: &Io<'_>) -> bool {
    let looks = std::mem::take(look) || taken.is_multiple_of(REQUESTS_PER_LOOK);
    looks && io.clock_ns().saturating_sub(io.now_ns()) > TURN_NS
}

/// What every ring of this kind has, whatever its requests are.
pub(crate) struct Turns {
    pub(crate) queue: Queue,
    pub(crate) gate: Gate,
    /// But for what the queue and the gate count.
    pub(crate) figures: RingFigures,
    chain: Chain,
    /// Bytes that reads and writes asked for, as limits count them.
    pub(crate) begun_bytes: u64,
    /// A request was taken that may have been long: a look at the clock will tell whether the turn is over.
    pub(crate) look: bool,
    /// Requests answered in this turn that were taken in it.
    fresh_done: u64,
    /// When the first of those was taken: rings of one worker have their turns one after the other.
    fresh_since_ns: u64,
    /// Pushed since the last publication.
    pushed: usize,
    /// Since when requests wait that did not fit into a batch, or that a limit holds up.
    backlog_since_ns: Option<u64>,
}

impl Turns {
    /// `kinds` are the names of the protocol's requests.
    pub(crate) fn new(
        start: vhost_user::RingStart,
        kinds: &'static [&'static str],
        label: Label,
    ) -> Result<Turns, Broken> {
        Ok(Turns {
            queue: Queue::new(start, label)?,
            gate: Gate::default(),
            figures: RingFigures::new(kinds),
            chain: Chain::default(),
            begun_bytes: 0,
            look: false,
            fresh_done: 0,
            fresh_since_ns: 0,
            pushed: 0,
            backlog_since_ns: None,
        })
    }

    /// As a disk's ring does.
    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
        self.chain.clear();
        self.queue.set_memory(memory);
    }

    /// Free slots for all requests that can be in flight.
    pub(crate) fn slots<Id: Default>(&self) -> Box<[Slot<Id>]> {
        (0..self.queue.size()).map(|_| Slot::new()).collect()
    }

    /// Begins with the request that was popped as `(head, epoch)`. False when its slot is taken, which breaks the ring.
    #[inline]
    pub(crate) fn begin<Id: Default>(&mut self, slot: &mut Slot<Id>, (head, epoch): (u16, u64), now_ns: u64) -> bool {
        if slot.busy {
            self.queue.forget(epoch);
            self.queue.break_down(Broken::HeadInFlight(head));
            return false;
        }
        slot.begin(epoch, now_ns);
        true
    }

    /// Ends a request: its answer is written.
    #[inline]
    pub(crate) fn finish<Id>(&mut self, slot: &mut Slot<Id>, head: u16, written: u32, failed: bool) {
        self.figures.requests.count(slot.kind);
        self.figures.errors += u64::from(failed);
        slot.end();
        if slot.fresh {
            if self.fresh_done == 0 {
                self.fresh_since_ns = slot.started_ns;
            }
            self.fresh_done += 1;
        }
        self.queue.push(head, written, slot.epoch);
        self.pushed += 1;
    }

    /// Ends a request without an answer.
    pub(crate) fn put_off<Id>(&mut self, slot: &mut Slot<Id>) {
        slot.end();
        self.queue.forget(slot.epoch);
    }

    /// A request is refused before anybody has looked at what it wants.
    pub(crate) fn report_refusal(&self, reason: &dyn std::fmt::Display) {
        let Label { export, ring, .. } = self.queue.label();
        tracing::debug!(export = &**export, ring, %reason, "a request is refused");
    }
}

/// The requests of one virtqueue.
pub(crate) trait Requests {
    /// What the protocol names a request by.
    type Id;

    fn turns(&mut self) -> &mut Turns;

    fn slots(&mut self) -> &mut [Slot<Self::Id>];

    /// Takes the chain apart that was popped as `(head, epoch)`, and starts it.
    fn start(&mut self, chain: &Chain, place: (u16, u64), io: &mut Io<'_>);

    /// What the completion of a deferred request means: the answer's length, and whether it is an error.
    fn conclude(&mut self, head: u16, result: i32) -> (u32, bool);

    /// Whether a deferred request has ended without an answer: the ring's next life takes it again.
    fn put_off(&mut self, head: u16, result: i32) -> bool {
        let _ = (head, result);
        false
    }

    /// Ends a request: its answer is written.
    fn finish(&mut self, head: u16, written: u32, failed: bool);

    /// Starts the next request. False when there is none.
    #[inline]
    fn next(&mut self, io: &mut Io<'_>) -> bool {
        self.next_chain(io)
    }

    /// Starts the next request of the virtqueue. False when there is none.
    #[inline]
    fn next_chain(&mut self, io: &mut Io<'_>) -> bool {
        let turns = self.turns();
        let mut chain = std::mem::take(&mut turns.chain);
        let popped = turns.queue.pop(&mut chain);
        if let Some(place) = popped {
            self.start(&chain, place, io);
        }
        self.turns().chain = chain;
        popped.is_some()
    }

    /// A limit holds requests up: starts those that it does not hold for, and returns how many were taken.
    fn held_up(&mut self, io: &mut Io<'_>) -> usize {
        let _ = io;
        0
    }

    /// Whether requests wait that could be started now but for a limit.
    fn pending(&mut self) -> bool {
        self.turns().queue.ready()
    }

    /// What was finished has been shown to the driver.
    #[inline]
    fn published(&mut self) {}
}

/// A batch of requests.
pub(crate) fn serve(ring: &mut impl Requests, io: &mut Io<'_>) -> usize {
    let turns = ring.turns();
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
        let turns = ring.turns();
        late = is_late(&mut turns.look, taken, io);
        if turns.pushed >= PUBLISH_EVERY {
            turns.pushed = 0;
            turns.queue.publish();
            turns.queue.notify_now(io);
            ring.published();
        }
    }
    let turns = ring.turns();
    let moved_bytes = turns.begun_bytes - begun_bytes;
    turns.gate.settle(grant, taken as u32, moved_bytes);
    let waited_ns = turns.backlog_since_ns.map_or(0, |since| io.now_ns().saturating_sub(since));
    turns.figures.queued.record(waited_ns, taken as u64);
    let more = taken == BATCH_MAX || (late || grant.is_spent(moved_bytes)) && turns.queue.ready();
    turns.backlog_since_ns = more.then(|| turns.backlog_since_ns.unwrap_or(io.now_ns()));
    turns.figures.in_flight_max = turns.figures.in_flight_max.max(turns.queue.in_flight() + turns.pushed);
    taken
}

/// Something has ended that was started for the ring: a request's work, or a gate's wait.
pub(crate) fn complete(ring: &mut impl Requests, Completion { token, result, .. }: Completion, io: &mut Io<'_>) {
    let busy = |head: &u16| ring.slots().get(usize::from(*head)).is_some_and(|slot| slot.busy);
    let Some(head) = token.index().filter(busy) else {
        if is_deadline(token) {
            let pending = ring.pending();
            if let Some(deadline) = ring.turns().gate.reached(token, pending, io.now_ns()) {
                io.timer(deadline.token, deadline.at_ns);
            }
            return;
        }
        debug_assert!(false, "completion of {token:?}, which is not in flight");
        return;
    };
    let slot = &mut ring.slots()[usize::from(head)];
    slot.fresh = false;
    let started_ns = slot.started_ns;
    if ring.put_off(head, result) {
        return;
    }
    let (written, failed) = ring.conclude(head, result);
    ring.finish(head, written, failed);
    ring.turns().figures.served.record(io.now_ns().saturating_sub(started_ns), 1);
}

/// Shows what was finished, and tells the driver if it wants that.
pub(crate) fn publish(ring: &mut impl Requests, io: &mut Io<'_>) {
    let turns = ring.turns();
    turns.pushed = 0;
    turns.queue.publish();
    turns.queue.notify(io);
    let done = std::mem::take(&mut turns.fresh_done);
    if done > 0 {
        // Requests that ended in the turn that took them share one reading of the clock.
        turns.figures.served.record(io.clock_ns().saturating_sub(turns.fresh_since_ns), done);
    }
    ring.published();
}
