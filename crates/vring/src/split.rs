//! The split virtqueue (virtio 1.3, section 2.7), seen from the device.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::areas::{Areas, prefetch};
use crate::chain::Chain;
use crate::crash;
use crate::dirty::{RingLog, Writes};
use crate::error::RingError;
use crate::inflight::{InflightQueue, Recovery};
use crate::layout::Layout;
use crate::memory::Memory;
use crate::position::RingPosition;
use crate::walk::{INDIRECT, Walk};

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (2.7.7): the driver wants no notification. Only without EVENT_IDX.
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY` (2.7.10): the device wants no kick. Only without EVENT_IDX.
const NO_NOTIFY: u16 = 1;

/// How many chains ahead of the one being popped the head descriptor is fetched into the cache, and how many ahead the
/// indirect table that it refers to: the head has to have arrived by then.
const HEADS_AHEAD: u16 = 8;
const TABLES_AHEAD: u16 = 4;

/// One split ring with its one owner.
///
/// The work goes in batches: [`pop`](SplitRing::pop) reads the driver's index only when all it knew of is popped,
/// [`push`](SplitRing::push) only stages, and [`publish`](SplitRing::publish) shows all staged elements at once.
/// Every chain that was popped must be pushed once; that is how the ring knows how many requests are in flight.
/// Heads in flight are below the size but not promised to be unique: a hostile driver can offer one twice.
/// A ring that [tracks](SplitRing::track) its requests can be taken over by another process at any moment.
#[derive(Debug)]
pub struct SplitRing {
    areas: Areas,
    /// The next entry of the available ring to pop.
    next_avail: u16,
    /// The driver's index when it was last read; entries below it may be popped without reading it again.
    seen_avail: u16,
    /// The next slot of the used ring to fill.
    next_used: u16,
    /// The used index as the driver can see it.
    published: u16,
    /// Popped and not yet pushed.
    in_flight: u16,
    /// Where the requests in flight are written down for a later process.
    inflight: Option<InflightQueue>,
    /// What is to be marked in the frontend's dirty log, while it wants that.
    writes: Option<Box<Writes>>,
    /// Heads that an earlier life of the ring took and never showed as used, the oldest last. While there are any, nothing
    /// new is looked at: `next_avail` and `seen_avail` are equal.
    owed: Vec<u16>,
    /// Index of the region that held the last buffer.
    hint: usize,
    /// How many mappings the process had lost when the memory table was last found whole. A table that is new here may
    /// have lost one before: zero.
    lost: usize,
    layout: Layout,
    memory: Arc<Memory>,
}

// SAFETY: the pointers in `areas` lead into mappings that `memory` keeps alive for any thread; everything else is Send.
unsafe impl Send for SplitRing {}

impl SplitRing {
    /// Takes over a ring, which goes on at `position`; where the used ring continues is read from its index.
    ///
    /// # Errors
    /// A size that is not legal, or an area that is misaligned or not inside one region of `memory`.
    pub fn new(memory: Arc<Memory>, layout: Layout, position: RingPosition) -> Result<SplitRing, RingError> {
        let areas = Areas::new(&memory, &layout)?;
        let next_used = areas.used_idx();
        Ok(SplitRing {
            areas,
            next_avail: position.avail(),
            seen_avail: position.avail(),
            next_used,
            published: next_used,
            in_flight: 0,
            inflight: None,
            writes: None,
            owed: Vec::new(),
            hint: 0,
            lost: 0,
            layout,
            memory,
        })
    }

    /// Goes on where the last life of this ring ended, and writes down from now on what the next one will need. To be called
    /// before the first pop.
    ///
    /// What the region says takes precedence over the position that the ring was made with: a frontend whose backend
    /// was killed cannot know how far it had come.
    ///
    /// # Errors
    /// A region that is too small for the ring, that is of an unknown version, or that contradicts itself.
    pub fn track(&mut self, mut inflight: InflightQueue) -> Result<Recovery, RingError> {
        let (recovery, owed) = inflight.recover(self.layout.size, self.published, self.areas.avail_idx())?;
        if matches!(recovery, Recovery::Continued { .. }) {
            // All that was taken is shown or owed, and it was taken in the order of the available ring.
            self.next_avail = self.published.wrapping_add(owed.len() as u16);
            self.seen_avail = self.next_avail;
            self.owed = owed;
            self.owed.reverse();
        }
        self.inflight = Some(inflight);
        Ok(recovery)
    }

    /// Has these requests, which an earlier life of the ring popped, popped again in this order before anything new. To be
    /// called before the first pop, for a ring that does not track its requests.
    ///
    /// # Errors
    /// A head that is no descriptor of the ring.
    pub fn owe(&mut self, heads: &[u16]) -> Result<(), RingError> {
        let size = self.layout.size;
        if let Some(&head) = heads.iter().find(|head| **head >= size) {
            return Err(RingError::HeadOutOfRange { head, size });
        }
        self.owed = heads.iter().rev().copied().collect();
        Ok(())
    }

    /// Gives up what is [owed](SplitRing::owed), the oldest first: it is for the next life of the ring.
    pub fn take_owed(&mut self) -> Vec<u16> {
        let mut heads = std::mem::take(&mut self.owed);
        heads.reverse();
        heads
    }

    /// Requests of an earlier life that have not been popped again yet.
    pub fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Moves the ring to another memory table: the areas are looked up again, and the hold on the old table ends.
    /// Chains that were popped before keep their own hold on it.
    ///
    /// # Errors
    /// As [`SplitRing::new`]; then the ring stays with the table it had.
    pub fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingError> {
        self.areas = Areas::new(&memory, &self.layout)?;
        self.memory = memory;
        self.hint = 0;
        self.lost = 0;
        Ok(())
    }

    /// Whether it marks what it writes in a dirty log.
    #[inline]
    pub fn is_logging(&self) -> bool {
        self.writes.is_some()
    }

    /// Marks what this ring writes in a dirty log from now on, in another one, or in none. Whether it begins by that: then requests
    /// that were popped and not pushed have to be [noted](Self::note_in_flight) one by one.
    ///
    /// With a used ring to log, all of it is marked at once: it may have been written by a life of the ring that was killed
    /// before it could tell.
    pub fn set_log(&mut self, log: Option<RingLog>) -> bool {
        // Whether a log that is new here has been lost is looked at once.
        self.lost = 0;
        let begins = self.writes.is_none() && log.is_some();
        match (&mut self.writes, log) {
            (_, None) => self.writes = None,
            (Some(writes), Some(log)) => writes.set_log(log),
            (None, Some(log)) => self.writes = Some(Box::new(Writes::new(log, self.layout.size))),
        }
        if let Some(writes) = &self.writes {
            writes.mark_used_ring(&self.areas);
        }
        begins
    }

    /// The dirty log is to hear of what this request writes, which was popped before there was one. Its chain is walked once more for
    /// that, instead of keeping each request's addresses while nothing is logged: how many segments it has. A driver may not change a
    /// chain that is in flight (virtio 1.3, 2.7.5); one that does gets marks where it points to now, inside the log like all others.
    pub fn note_in_flight(&mut self, head: u16) -> usize {
        if self.writes.is_none() || head >= self.layout.size {
            return 0;
        }
        let mut chain = Chain::default();
        // What was walked before an error counts.
        let _ = self.walk(head, &mut chain);
        if let Some(writes) = &mut self.writes {
            writes.popped(head, &chain);
        }
        chain.readable_segments().len() + chain.writable_segments().len()
    }

    /// The memory table in use.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Whether [`pop`](SplitRing::pop) would find something, be it an error: for polling, hardly more than a load.
    #[inline]
    pub fn has_pending(&self) -> bool {
        self.next_avail != self.seen_avail
            || self.areas.avail_idx() != self.next_avail
            || !self.owed.is_empty()
            || (sigbus::lost() != self.lost && self.gone().is_some())
    }

    /// How many chains the driver has made available that were not taken, as of now; what an earlier life owes among them.
    pub fn pending(&self) -> usize {
        usize::from(self.areas.avail_idx().wrapping_sub(self.next_avail).min(self.size())) + self.owed.len()
    }

    /// Takes the next chain off the available ring: fills `chain` and returns its head, or `None` when there is none. What an
    /// earlier life of the ring owes comes first, as it came then.
    ///
    /// A chain has at most `2 * max(size, 1024)` segments, as many descriptors of an indirect table, and 4 GiB: a driver may not make chains longer than the ring
    /// (virtio 1.3, 2.7.5.3.1), 1024 is what the kernel takes in one vectored call, and the factor lets each buffer cross
    /// from one memory region into the next. Empty buffers are skipped.
    ///
    /// # Errors
    /// Whatever is wrong with the ring or the chain. Nothing is consumed then, and the content of `chain` is of no use.
    #[inline]
    pub fn pop(&mut self, chain: &mut Chain) -> Result<Option<u16>, RingError> {
        if self.next_avail == self.seen_avail {
            if !self.owed.is_empty() {
                return self.pop_owed(chain);
            }
            if !self.look()? {
                return Ok(None);
            }
        }
        let size = self.layout.size;
        // More than a ring's worth of requests in flight can only come from a driver that reuses descriptors that it
        // does not own, and would make us keep any number of them.
        if self.in_flight >= size {
            return Err(RingError::TooManyInFlight { size });
        }
        let head = self.areas.avail_entry(self.next_avail);
        if head >= size {
            return Err(RingError::HeadOutOfRange { head, size });
        }
        self.look_ahead();
        self.walk(head, chain)?;
        self.next_avail = self.next_avail.wrapping_add(1);
        self.in_flight += 1;
        if let Some(inflight) = &mut self.inflight {
            inflight.take(head);
        }
        if let Some(writes) = &mut self.writes {
            writes.popped(head, chain);
        }
        Ok(Some(head))
    }

    /// As [`pop`](SplitRing::pop), but only what an earlier life of the ring owes; `None` when that is all under way.
    ///
    /// # Errors
    /// Whatever is wrong with the ring's memory or the chain. Nothing is consumed then.
    #[cold]
    pub fn pop_owed(&mut self, chain: &mut Chain) -> Result<Option<u16>, RingError> {
        let Some(&head) = self.owed.last() else {
            return Ok(None);
        };
        self.walk(head, chain)?;
        // Nobody has looked at the ring's memory before.
        let lost = sigbus::lost();
        if lost != self.lost {
            self.check_memory(lost)?;
        }
        // It is marked already, in the place that it had among the others.
        self.owed.pop();
        self.in_flight += 1;
        if let Some(writes) = &mut self.writes {
            writes.popped(head, chain);
        }
        Ok(Some(head))
    }

    /// Follows the chain of `head`, which is below the size.
    #[inline]
    fn walk(&mut self, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        chain.restart(&self.memory);
        Walk {
            areas: &self.areas,
            memory: &self.memory,
            hint: &mut self.hint,
            chain,
            head,
            size: self.layout.size,
            indirect: self.layout.indirect,
            bytes: 0,
            writable: false,
        }
        .direct()
    }

    /// Reads the driver's index; true when there is something new.
    #[inline]
    fn look(&mut self) -> Result<bool, RingError> {
        let index = self.areas.avail_idx();
        // After the index, which may have been what is missing. Zeroes are no ring, whatever they would mean.
        let lost = sigbus::lost();
        if lost != self.lost {
            self.check_memory(lost)?;
        }
        let ahead = index.wrapping_sub(self.next_avail);
        // 2.7.13.3: the index counts entries, of which the ring holds `size`.
        if ahead > self.layout.size {
            return Err(RingError::AvailableRanAhead { index, ahead, size: self.layout.size });
        }
        self.seen_avail = index;
        for i in 0..ahead.min(HEADS_AHEAD) {
            self.areas.prefetch_head(self.next_avail.wrapping_add(i));
        }
        Ok(ahead != 0)
    }

    /// Finds the memory table whole, in a process that has lost `lost` mappings.
    #[cold]
    fn check_memory(&mut self, lost: usize) -> Result<(), RingError> {
        if let Some(gone) = self.gone() {
            return Err(gone);
        }
        self.lost = lost;
        Ok(())
    }

    /// What has gone away of the memory that it uses.
    #[cold]
    fn gone(&self) -> Option<RingError> {
        if let Some(guest_addr) = self.memory.gone() {
            return Some(RingError::MemoryGone { guest_addr });
        }
        self.writes.as_ref().is_some_and(|writes| writes.log().is_gone()).then_some(RingError::LogGone)
    }

    /// Has the CPU fetch what later pops will read.
    ///
    /// The driver wrote it on another CPU, and waiting for a line from there takes several times as long as everything
    /// else a pop does. Only entries that are known to be available are looked at, and only as hints.
    #[inline]
    fn look_ahead(&mut self) {
        let known = self.seen_avail.wrapping_sub(self.next_avail);
        if known > HEADS_AHEAD {
            self.areas.prefetch_head(self.next_avail.wrapping_add(HEADS_AHEAD));
        }
        if self.layout.indirect && known > TABLES_AHEAD {
            let head = self.areas.peek(self.next_avail.wrapping_add(TABLES_AHEAD));
            if head.flags & INDIRECT != 0
                && let Some((table, _)) = self.memory.translate(head.addr, 1, &mut self.hint)
            {
                prefetch(table.as_ptr());
            }
        }
    }

    /// Stages the used element of a chain: `head` as popped, `written` bytes written to its device-writable part.
    ///
    /// The driver does not see it before [`publish`](SplitRing::publish).
    #[inline]
    pub fn push(&mut self, head: u16, written: u32) {
        debug_assert!(head < self.layout.size);
        self.areas.set_used_element(self.next_used, head, written);
        crash::point();
        self.next_used = self.next_used.wrapping_add(1);
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.stage(head);
        }
        if let Some(writes) = &mut self.writes {
            writes.ended(head);
        }
    }

    /// Shows all staged elements to the driver with one store, and says whether it wants a notification for them.
    /// False when nothing is staged.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        if let Some(writes) = &mut self.writes {
            writes.mark_ended(&self.areas, (old, new));
        }
        self.areas.set_used_idx(new);
        crash::point();
        self.published = new;
        // 2.7.7.2 and 2.7.14: the index must be visible before the driver's wish is read. The driver stores its wish
        // and then reads the index; without a full fence on both sides each could miss the other, and a notification
        // would be lost.
        fence(Ordering::SeqCst);
        if let Some(writes) = &self.writes {
            writes.mark_used(Areas::USED_IDX_AT, Areas::USED_FIELD);
        }
        let wanted = if self.layout.event_idx {
            // 2.7.7.2: notify when the used index moved over the entry that the driver named; all modulo 2^16.
            let past_event = new.wrapping_sub(self.areas.used_event()).wrapping_sub(1);
            past_event < new.wrapping_sub(old)
        } else {
            self.areas.avail_flags() & NO_INTERRUPT == 0
        };
        if let Some(inflight) = &mut self.inflight {
            inflight.settle(new);
        }
        wanted
    }

    /// Asks the driver for a kick with its next request; true when requests are already there, for which no kick
    /// will come.
    pub fn enable_kicks(&mut self) -> bool {
        if self.layout.event_idx {
            self.areas.set_avail_event(self.next_avail);
        } else {
            self.areas.set_used_flags(0);
        }
        // 2.7.10.2 and 2.7.13.4.1: the wish must be visible before the index is read again. The driver stores its index
        // and then reads the wish; without a full fence on both sides a request could stay unseen without a kick.
        fence(Ordering::SeqCst);
        if let Some(writes) = &self.writes {
            let at = if self.layout.event_idx { self.areas.avail_event_at() } else { Areas::USED_FLAGS_AT };
            writes.mark_used(at, Areas::USED_FIELD);
        }
        self.areas.avail_idx() != self.next_avail
            || !self.owed.is_empty()
            || (sigbus::lost() != self.lost && self.gone().is_some())
    }

    /// Tells the driver that no kick is needed until [`enable_kicks`](SplitRing::enable_kicks).
    ///
    /// It is a hint that needs no ordering. With EVENT_IDX nothing is written: the driver kicks when it passes the entry
    /// that was named last, and that entry is behind it.
    pub fn disable_kicks(&mut self) {
        if !self.layout.event_idx {
            self.areas.set_used_flags(NO_NOTIFY);
            if let Some(writes) = &self.writes {
                writes.mark_used_now(Areas::USED_FLAGS_AT, Areas::USED_FIELD);
            }
        }
    }

    /// Where the next life of the ring goes on, once nothing is owed: before the next entry to pop.
    pub fn position(&self) -> RingPosition {
        RingPosition::split(self.next_avail)
    }

    /// The next slot of the used ring to fill; ahead of the driver's view while elements are staged.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// The size in descriptors.
    pub fn size(&self) -> u16 {
        self.layout.size
    }

    /// Where the ring lies and what was negotiated.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}
