//! What one ring has to mark: the buffers of its requests, from when they are popped until they are answered.
//!
//! A request marks all that it could have written, once it is answered. How much of that was written nobody knows exactly: a
//! read that fails has filled some of its buffers, and an error that takes the place of a long answer is shorter than what
//! was there before it.

use super::{DirtyLog, RingLog, pages, settle};
use crate::areas::Areas;
use crate::chain::Chain;

/// Pages, the first and the last.
type Pages = (u64, u64);

/// What a list keeps of its room, in entries: chains of a thousand segments are rare, and there is a list for each head.
const KEPT: usize = 64;

/// The writes of a ring that are not marked yet.
#[derive(Debug)]
pub(crate) struct Writes {
    log: RingLog,
    /// Pages that requests in flight may write, by head.
    by_head: Box<[Vec<Pages>]>,
    /// The same of requests that are answered, up to the next publication.
    ended: Vec<Pages>,
}

impl Writes {
    /// Those of a ring of `size` descriptors of which none is in flight.
    pub(crate) fn new(log: RingLog, size: u16) -> Writes {
        Writes { log, by_head: vec![Vec::new(); size.into()].into(), ended: Vec::new() }
    }

    /// Marks elsewhere from now on.
    pub(crate) fn set_log(&mut self, log: RingLog) {
        self.log = log;
    }

    /// Where it marks.
    pub(crate) fn log(&self) -> &DirtyLog {
        &self.log.log
    }

    /// A request was popped. A driver that lies makes one head available twice: then both have what either may write.
    pub(crate) fn popped(&mut self, head: u16, chain: &Chain) {
        let list = &mut self.by_head[usize::from(head)];
        for (guest_addr, len) in chain.guest_ranges(chain.writable_segments()) {
            let Some((first, last)) = pages(guest_addr, len) else { continue };
            match list.last_mut() {
                Some(before) if before.1 == first || before.1.checked_add(1) == Some(first) => before.1 = last,
                _ => list.push((first, last)),
            }
        }
    }

    /// It is answered: nothing writes to its buffers any more.
    pub(crate) fn ended(&mut self, head: u16) {
        let list = &mut self.by_head[usize::from(head)];
        self.ended.append(list);
        list.shrink_to(KEPT);
    }

    /// Marks what answered requests wrote, and the used elements from the running index `from` up to before `to`, which differs.
    /// To be called when these are written, and before the driver is shown them.
    pub(crate) fn mark_ended(&mut self, areas: &Areas, (from, to): (u16, u16)) {
        settle();
        for pages in self.ended.drain(..) {
            self.log.log.mark(pages);
        }
        self.ended.shrink_to(KEPT);
        let (first, last) = (areas.used_element_at(from), areas.used_element_at(to.wrapping_sub(1)));
        if first <= last {
            self.mark_used(first, last + Areas::USED_ELEMENT - first);
        } else {
            self.mark_used(first, areas.used_bytes() - first);
            self.mark_used(0, last + Areas::USED_ELEMENT);
        }
    }

    /// Marks `len` bytes of the used ring from its byte `offset` on. Whoever wrote them has made a full fence since.
    pub(crate) fn mark_used(&self, offset: u64, len: u64) {
        let at = self.log.used.and_then(|used| used.checked_add(offset));
        if let Some(pages) = at.and_then(|at| pages(at, len)) {
            self.log.log.mark(pages);
        }
    }

    /// Marks all of the used ring: what was written before it was logged, by this life of the ring or one that was killed.
    pub(crate) fn mark_used_ring(&self, areas: &Areas) {
        settle();
        self.mark_used(0, areas.used_bytes());
    }

    /// As [`mark_used`](Writes::mark_used), behind a fence of its own.
    pub(crate) fn mark_used_now(&self, offset: u64, len: u64) {
        settle();
        self.mark_used(offset, len);
    }
}
