//! A virtqueue and its requests in flight, whatever they are.

use crate::counters::{Counters, Stamp};
use crate::queue::{Broken, Queue};
use std::sync::Arc;
use vring::RingLog;

/// The place of a request in flight: `R` is the device's part of it.
pub(crate) struct Slot<R> {
    pub(crate) busy: bool,
    /// Started in the turn that is running: the time it took is known only when the turn's batch is published.
    pub(crate) fresh: bool,
    /// What figures count it as.
    pub(crate) kind: usize,
    pub(crate) started_ns: u64,
    /// The same on the ring's page.
    stamp: Stamp,
    epoch: u64,
    debt: Debt,
    pub(crate) request: R,
}

/// What a request in flight owes: its end, or that it is abandoned by name. One that is dropped before is found where that
/// happens, in builds with debug assertions; in others this is nothing.
#[derive(Debug, Default)]
struct Debt {
    #[cfg(debug_assertions)]
    owed: bool,
}

impl Debt {
    #[inline]
    fn set(&mut self, owed: bool) {
        #[cfg(debug_assertions)]
        {
            self.owed = owed;
        }
        // Without debug assertions nobody remembers.
        let _ = owed;
    }
}

#[cfg(debug_assertions)]
impl Drop for Debt {
    fn drop(&mut self) {
        assert!(
            !self.owed || std::thread::panicking(),
            "a request in flight is dropped: neither completed, nor put off, nor abandoned"
        );
    }
}

impl<R> Slot<R> {
    /// A place without a request.
    pub(crate) fn new(stamp: Stamp, request: R) -> Slot<R> {
        Slot { busy: false, fresh: false, kind: 0, started_ns: 0, stamp, epoch: 0, debt: Debt::default(), request }
    }

    /// It has one.
    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64) {
        debug_assert!(!self.busy, "a second request in a place that has one");
        self.debt.set(true);
        self.restart(now_ns);
    }

    /// The request that it has begins again, behind what held it up.
    #[inline]
    pub(crate) fn restart(&mut self, now_ns: u64) {
        (self.busy, self.fresh, self.started_ns) = (true, true, now_ns);
        self.stamp.set(now_ns);
    }

    /// It waits for another client, and nobody need ask what takes so long.
    pub(crate) fn waits(&mut self) {
        self.stamp.clear();
    }

    /// It has none any more.
    #[inline]
    pub(crate) fn end(&mut self) {
        debug_assert!(self.busy, "a request ends twice");
        self.debt.set(false);
        self.busy = false;
        self.stamp.clear();
    }

    /// Its request, if it has one, will never end, and may be dropped as it is.
    pub(crate) fn abandon(&mut self) {
        self.debt.set(false);
    }
}

/// A virtqueue with a slot for every descriptor that a request can start at, used again for each that does: after the first few
/// requests nothing here allocates.
pub(crate) struct Virtqueue<R> {
    pub(crate) queue: Queue,
    /// By head.
    pub(crate) slots: Box<[Slot<R>]>,
}

impl<R> Virtqueue<R> {
    pub(crate) fn new(queue: Queue, counters: &Arc<Counters>, request: impl Fn() -> R) -> Virtqueue<R> {
        let slot = |head: u16| Slot::new(counters.stamp(head.into()), request());
        Virtqueue { slots: (0..queue.size()).map(slot).collect(), queue }
    }

    /// The slot of a chain that was popped: heads lie below the ring's size.
    #[inline]
    pub(crate) fn slot(&mut self, head: u16) -> &mut Slot<R> {
        &mut self.slots[usize::from(head)]
    }

    /// What is in flight will never end: the ring is lost.
    pub(crate) fn abandon(&mut self) {
        self.slots.iter_mut().for_each(Slot::abandon);
    }

    /// The frontend wants marks in this dirty log from now on, or none.
    pub(crate) fn set_log(&mut self, log: Option<RingLog>) {
        let in_flight: Vec<u16> = self.busy().map(|(head, _)| head).collect();
        self.queue.set_log(log, in_flight);
    }

    /// Requests in flight, with their heads.
    pub(crate) fn busy(&self) -> impl Iterator<Item = (u16, &Slot<R>)> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.busy)
    }

    /// The head of a request that some work was started for; `None` when nothing is in flight there.
    #[inline]
    pub(crate) fn in_flight(&self, index: Option<u16>) -> Option<u16> {
        index.filter(|head| self.slots.get(usize::from(*head)).is_some_and(|slot| slot.busy))
    }

    /// Takes the next chain. Returns its head.
    #[inline]
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<u16> {
        let popped = self.queue.pop();
        self.popped(popped, now_ns)
    }

    /// As [`pop`](Self::pop), but only what an earlier life of the ring owes.
    pub(crate) fn pop_owed(&mut self, now_ns: u64) -> Option<u16> {
        let popped = self.queue.pop_owed();
        self.popped(popped, now_ns)
    }

    #[inline]
    fn popped(&mut self, popped: Option<(u16, u64)>, now_ns: u64) -> Option<u16> {
        let (head, epoch) = popped?;
        let slot = &mut self.slots[usize::from(head)];
        if slot.busy {
            self.queue.forget(epoch);
            self.queue.break_down(Broken::HeadInFlight(head));
            return None;
        }
        slot.begin(now_ns);
        slot.epoch = epoch;
        Some(head)
    }

    /// Gives a request's chain back to the driver, with the next publication: `written` bytes are its answer.
    #[inline]
    pub(crate) fn finish(&mut self, head: u16, written: u32) {
        let slot = &mut self.slots[usize::from(head)];
        slot.end();
        self.queue.push(head, written, slot.epoch);
    }

    /// Ends a request without an answer: the ring's next life takes it again.
    pub(crate) fn put_off(&mut self, head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        slot.end();
        self.queue.forget(slot.epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn slot() -> Slot<()> {
        Slot::new(Counters::new(&["kind"], 1).stamp(0), ())
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_request_that_is_dropped_is_found_there() {
        let mut slot = slot();
        slot.begin(1);
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(slot))).unwrap_err();
        assert!(dropped.downcast_ref::<&str>().is_some_and(|why| why.contains("is dropped")));
    }

    #[test]
    fn one_that_ends_or_is_abandoned_may_be_dropped() {
        for end in [Slot::end, Slot::abandon] {
            let mut slot = slot();
            slot.begin(1);
            slot.restart(2);
            end(&mut slot);
        }
    }
}
