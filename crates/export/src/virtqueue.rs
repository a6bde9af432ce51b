//! A virtqueue and its requests in flight, whatever they are.

use crate::label::Label;
use crate::queue::{Broken, Queue};

/// The place of a request in flight: `R` is the device's part of it.
pub(crate) struct Slot<R> {
    pub(crate) busy: bool,
    /// Started in the turn that is running: the time it took is known only when the turn's batch is published.
    pub(crate) fresh: bool,
    /// What figures count it as.
    pub(crate) kind: usize,
    pub(crate) started_ns: u64,
    epoch: u64,
    pub(crate) request: R,
}

impl<R> Slot<R> {
    /// A place without a request.
    pub(crate) fn new(request: R) -> Slot<R> {
        Slot { busy: false, fresh: false, kind: 0, started_ns: 0, epoch: 0, request }
    }

    /// It has one.
    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64) {
        (self.busy, self.fresh, self.started_ns) = (true, true, now_ns);
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
    /// # Errors
    /// As for [`Queue::new`].
    pub(crate) fn new(
        start: vhost_user::RingStart,
        label: Label,
        request: impl Fn() -> R,
    ) -> Result<Virtqueue<R>, Broken> {
        let queue = Queue::new(start, label)?;
        let slots = (0..queue.size()).map(|_| Slot::new(request())).collect();
        Ok(Virtqueue { queue, slots })
    }

    /// The slot of a chain that was popped: heads lie below the ring's size.
    #[inline]
    pub(crate) fn slot(&mut self, head: u16) -> &mut Slot<R> {
        &mut self.slots[usize::from(head)]
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
        slot.busy = false;
        self.queue.push(head, written, slot.epoch);
    }

    /// Ends a request without an answer: the ring's next life takes it again.
    pub(crate) fn put_off(&mut self, head: u16) {
        let slot = &mut self.slots[usize::from(head)];
        slot.busy = false;
        self.queue.forget(slot.epoch);
    }

    /// When that one of the `counted` requests was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn oldest_ns(&self, counted: impl Fn(&R) -> bool) -> Option<u64> {
        self.busy().filter(|(_, slot)| counted(&slot.request)).map(|(_, slot)| slot.started_ns).min()
    }
}
