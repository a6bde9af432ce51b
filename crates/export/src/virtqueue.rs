//! A virtqueue and its requests in flight, whatever they are.

use crate::counters::{Counters, Stamp};
use crate::queue::{Broken, Queue};
use crate::turns::BATCH_MAX;
use std::sync::Arc;

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

    /// Its number among the ring's slots.
    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.stamp.slot()
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

/// Segments of requests in flight that are walked again before other rings have their turn, some more or less.
const NOTED_MAX: usize = 4096;

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

    /// A dirty log that has just begun is to hear of what requests in flight write: of some, from head `from` on. Where to go on, if
    /// there are more.
    pub(crate) fn note_in_flight(&mut self, from: u16) -> Option<u16> {
        let mut noted = 0;
        for head in from..self.queue.size() {
            if !self.slots[usize::from(head)].busy {
                continue;
            }
            if noted >= NOTED_MAX {
                return Some(head);
            }
            // Its chain may be long and empty: no more heads than a turn takes.
            noted += self.queue.note_in_flight(head).max(NOTED_MAX / BATCH_MAX);
        }
        None
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
    use crate::label::Label;
    use crate::queue::tests::{describe, shared, start};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use vring::{DirtyLog, LOG_PAGE_BYTES, Layout, RingLog};

    /// Descriptors of each request's table, and where these tables and the bytes that they name are.
    const TABLE: u64 = 2048;
    const TABLES: u64 = 0x1_0000;
    const DATA: u64 = 0x8_0000;
    const REQUESTS: u16 = 5;

    /// A ring whose driver has offered [`REQUESTS`] long ones, each of which writes a page of its own.
    fn long_requests() -> Virtqueue<()> {
        let (file, mapping) = shared(0x10_0000);
        let layout = Layout { size: 16, desc: 0, avail: 0x200, used: 0x400, event_idx: false, indirect: true };
        let put = |at: u64, bytes: &[u8]| assert_eq!(rustix::io::pwrite(&file, bytes, at).unwrap(), bytes.len());
        for head in 0..REQUESTS {
            // The flags INDIRECT, WRITE and NEXT.
            let table = TABLES + u64::from(head) * TABLE * 16;
            describe(&file, u64::from(head) * 16, (table, TABLE as u32 * 16), 4, 0);
            let page = DATA + u64::from(head) * LOG_PAGE_BYTES;
            for at in 0..TABLE {
                let next = if at + 1 < TABLE { 1 } else { 0 };
                describe(&file, table + at * 16, (page, 1), 2 | next, at as u16 + 1);
            }
            put(0x204 + u64::from(head) * 2, &head.to_le_bytes());
        }
        put(0x202, &REQUESTS.to_le_bytes());
        let queue = Queue::new(start(Arc::new(mapping), layout), Label::of_nobody()).unwrap();
        Virtqueue::new(queue, &Counters::new(&["kind"], 1), || ())
    }

    #[test]
    fn a_log_that_begins_hears_of_all_requests_in_flight_a_portion_at_a_time() {
        let mut ring = long_requests();
        (0..REQUESTS).for_each(|head| assert_eq!(ring.pop(1), Some(head)));
        let (file, mapping) = shared(LOG_PAGE_BYTES);
        let log = Arc::new(DirtyLog::new(mapping, 0, 64).unwrap());
        assert!(ring.queue.set_log(Some(RingLog { log, used: None })), "it begins");
        assert_eq!(ring.note_in_flight(0), Some(2));
        // What ends before its portion is not walked.
        ring.finish(2, TABLE as u32);
        assert_eq!(ring.note_in_flight(2), None);
        (0..REQUESTS).filter(|head| *head != 2).for_each(|head| ring.finish(head, TABLE as u32));
        ring.queue.publish();
        let mut marks = [0; 8];
        rustix::io::pread(&file, &mut marks, DATA / LOG_PAGE_BYTES / 8).unwrap();
        assert_eq!(marks, [0b1_1011, 0, 0, 0, 0, 0, 0, 0]);
    }

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
