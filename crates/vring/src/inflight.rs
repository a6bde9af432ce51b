//! The inflight region of one ring: which requests were taken and not yet shown as used, in memory that outlives us.
//!
//! The layout is that of vhost-user, "Inflight I/O tracking", for split virtqueues. The frontend keeps the memory while
//! this process dies and another one begins; [`SplitRing::track`](crate::SplitRing::track) makes a ring write here, and go
//! on from what it finds.
//!
//! A process may be killed between any two stores. What is true at every such moment:
//! - A request is marked after it was popped and before anything is done about it, and requests are marked in the order of
//!   the available ring. So what is marked or shown is where the available ring begins, and nothing of it lies behind.
//! - A mark is taken off only after the used index has shown its request. Until then the request is done again, which is
//!   harmless: its driver has not been told of anything.
//! - Between the used index's store and that of [`USED_IDX`] some marks of the batch that was shown may be left. How many
//!   requests that batch has is the difference of the two, and which ones is the list from [`LAST_BATCH_HEAD`] on, which was
//!   complete before the used index moved.
//!
//! So every store here is a release: none of them may become visible before one that the program makes earlier.
//!
//! Nothing is read back but after a start, when nothing is believed: the frontend can write here at any time.

use std::num::NonZeroU8;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use displaydoc::Display;
use thiserror::Error;

use crate::crash;
use crate::mapping::Mapping;

/// `QueueRegionSplit`: features (u64), version, desc_num, last_batch_head, used_idx (u16 each), desc\[desc_num\].
/// All in the host's byte order.
const FEATURES: usize = 0;
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const DESC: usize = 16;

/// `DescStateSplit`: inflight (u8), padding (five bytes), next (u16), counter (u64).
const INFLIGHT: usize = 0;
/// In the padding of the first entry, which nobody else reads: what the next backend has to know of the device
/// ([`InflightQueue::note`]).
const NOTE: usize = DESC + 1;
const NEXT: usize = 6;
const COUNTER: usize = 8;
const DESC_BYTES: usize = 16;

/// The version of the layout above. 0 is memory that nobody has written to.
const KNOWN_VERSION: u16 = 1;
/// A queue's region begins at a multiple of this. The specification leaves it open; it is what libvhost-user and DPDK do.
const REGION_ALIGN: usize = 64;
/// What the region's largest field needs.
const FIELD_ALIGN: usize = 8;

/// What is wrong with an inflight region.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub enum InflightError {
    /// a queue's region at byte {offset} of its mapping is not aligned to 8 bytes
    Misaligned {
        /// Where it begins in its mapping, in bytes.
        offset: usize,
    },
    /// a queue's region of {bytes} bytes at byte {offset} does not lie inside its mapping of {len} bytes
    BeyondMapping {
        /// Where it begins in its mapping, in bytes.
        offset: usize,
        /// Its length in bytes.
        bytes: usize,
        /// Length of the mapping in bytes.
        len: usize,
    },
    /// it has room for {entries} descriptors, and the ring has {size}
    TooSmall {
        /// Descriptors that it can hold.
        entries: u16,
        /// Size of the ring in descriptors.
        size: u16,
    },
    /// it has version {version} with features {features:#x}, and only version 1 without features is known here
    UnknownVersion {
        /// The version in it.
        version: u16,
        /// The features in it.
        features: u64,
    },
    /// its list of the requests that were shown last leads to descriptor {head}, which is outside the ring or in the list before
    BadList {
        /// The descriptor's index.
        head: u16,
    },
}

/// What a ring found in its inflight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing: nobody has used it.
    Fresh,
    /// The traces of a life of the ring before its driver set it up anew. Nothing of them is owed to anybody.
    Stale,
    /// The ring goes on where its last life ended.
    Continued {
        /// Requests that were taken and never shown as used. [`SplitRing::pop`](crate::SplitRing::pop) gives them first.
        owed: u16,
    },
}

/// What an inflight region says of the device ([`InflightQueue::note`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Nothing: no ring has used the region since it was made new.
    Unused,
    /// A ring has used it, and its backend left no word: it knew of none, or was killed while the device changed.
    Missing,
    /// This number, whose meaning is the device's.
    Left(NonZeroU8),
}

/// One ring's part of the inflight region.
#[derive(Debug)]
pub struct InflightQueue {
    fields: Fields,
    /// How many descriptors have an entry.
    entries: u16,
    /// The place of the next request in the order of all.
    counter: u64,
    /// The head that was staged last.
    last_batch_head: u16,
    /// The heads that were staged since the last publication.
    batch: Vec<u16>,
    /// Keeps the memory mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointer in `fields` leads into the mapping, which the value keeps alive for any thread.
unsafe impl Send for InflightQueue {}

impl InflightQueue {
    /// Bytes that the region of one queue of `queue_size` descriptors takes, up to where the next queue's begins.
    pub const fn bytes(queue_size: u16) -> usize {
        (DESC + DESC_BYTES * queue_size as usize).next_multiple_of(REGION_ALIGN)
    }

    /// The region of a queue of `queue_size` descriptors that begins at byte `offset` of `mapping`.
    ///
    /// # Errors
    /// A place that is misaligned or not inside the mapping.
    pub fn new(mapping: Arc<Mapping>, offset: usize, queue_size: u16) -> Result<InflightQueue, InflightError> {
        let (bytes, len) = (Self::bytes(queue_size), mapping.len());
        let beyond = InflightError::BeyondMapping { offset, bytes, len };
        if offset.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(beyond);
        }
        // SAFETY: `offset` is inside the mapping.
        let base = unsafe { mapping.as_ptr().add(offset) };
        if !(base as usize).is_multiple_of(FIELD_ALIGN) {
            return Err(InflightError::Misaligned { offset });
        }
        Ok(InflightQueue {
            fields: Fields { base: NonNull::new(base).ok_or(beyond)?, mask: 0 },
            entries: queue_size,
            counter: 0,
            last_batch_head: 0,
            batch: Vec::new(),
            _mapping: mapping,
        })
    }

    /// How many descriptors have an entry: the largest ring that can be tracked.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Makes it as if nobody had ever used it: its driver has given all requests up. No ring may be using it.
    pub fn reset(&mut self) {
        self.fields.set_u16(VERSION, 0);
    }

    /// What [`InflightQueue::set_note`] left here, since the region was last made new.
    pub fn note(&self) -> Note {
        match (self.fields.u16(VERSION), NonZeroU8::new(self.fields.u8(NOTE))) {
            (0, _) => Note::Unused,
            (_, None) => Note::Missing,
            (_, Some(number)) => Note::Left(number),
        }
    }

    /// Leaves a number for the next backend, whose meaning is the device's; `None` takes it away. A ring may be using the
    /// region, and forgets the number when it begins anew.
    pub fn set_note(&self, note: Option<NonZeroU8>) {
        self.fields.set_u8(NOTE, note.map_or(0, NonZeroU8::get));
    }

    /// Finds out what an earlier life of a ring of `size` descriptors left behind, and makes the region agree with the used
    /// ring, whose index is `used_idx`. `avail_idx` is the driver's index. With the answer come the heads that are owed, in
    /// the order in which they were taken.
    pub(crate) fn recover(
        &mut self,
        size: u16,
        used_idx: u16,
        avail_idx: u16,
    ) -> Result<(Recovery, Vec<u16>), InflightError> {
        if size > self.entries {
            return Err(InflightError::TooSmall { entries: self.entries, size });
        }
        // A power of two, as the ring has made sure.
        self.fields.mask = usize::from(size) - 1;
        let (version, features) = (self.fields.u16(VERSION), self.fields.u64(FEATURES));
        if version == 0 {
            self.begin(used_idx);
            return Ok((Recovery::Fresh, Vec::new()));
        }
        if version != KNOWN_VERSION || features != 0 {
            return Err(InflightError::UnknownVersion { version, features });
        }
        // No life of this ring shows more than a ring's worth at once.
        let batch = used_idx.wrapping_sub(self.fields.u16(USED_IDX));
        if batch > size {
            self.begin(used_idx);
            return Ok((Recovery::Stale, Vec::new()));
        }
        let available = avail_idx.wrapping_sub(used_idx);
        let shown = match self.last_batch(batch, size) {
            Ok(shown) => shown,
            // Nothing is owed, whatever the list says: a driver that sets its ring up anew may meet an index that lies just
            // behind its own.
            Err(_) if available == 0 || !(0..size).any(|head| self.fields.is_marked(head)) => {
                self.begin(used_idx);
                return Ok((Recovery::Stale, Vec::new()));
            }
            Err(error) => return Err(error),
        };
        let mut owed: Vec<(u64, u16)> = (0..size)
            .zip(&shown)
            .filter(|&(head, shown)| !shown && self.fields.is_marked(head))
            .map(|(head, _)| (self.fields.counter(head), head))
            .collect();
        // What was taken and not shown is among what the driver made available and has not got back.
        if owed.len() > usize::from(available) {
            self.begin(used_idx);
            return Ok((Recovery::Stale, Vec::new()));
        }
        for (head, _) in (0..size).zip(&shown).filter(|&(_, shown)| *shown) {
            self.fields.mark(head, false);
        }
        // A larger ring may have been here before, and may come again.
        self.clear(size);
        self.fields.set_u16(USED_IDX, used_idx);
        owed.sort_unstable();
        self.counter = owed.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok((Recovery::Continued { owed: owed.len() as u16 }, owed.into_iter().map(|(_, head)| head).collect()))
    }

    /// Begins anew at `used_idx`. The version comes last: a region that is only half written has none.
    fn begin(&mut self, used_idx: u16) {
        self.reset();
        self.clear(0);
        self.set_note(None);
        self.fields.set_u64(FEATURES, 0);
        self.fields.set_u16(DESC_NUM, self.entries);
        self.fields.set_u16(LAST_BATCH_HEAD, 0);
        self.fields.set_u16(USED_IDX, used_idx);
        self.fields.set_u16(VERSION, KNOWN_VERSION);
    }

    /// Takes off all marks from entry `first` on, be they of this ring's heads or not.
    fn clear(&mut self, first: u16) {
        for entry in first..self.entries {
            self.fields.set_u8(DESC + DESC_BYTES * usize::from(entry) + INFLIGHT, 0);
        }
    }

    /// For each head of a ring of `size`, whether it is among the `batch` heads that were staged last.
    fn last_batch(&self, batch: u16, size: u16) -> Result<Vec<bool>, InflightError> {
        let mut listed = vec![false; usize::from(size)];
        let mut head = self.fields.u16(LAST_BATCH_HEAD);
        for _ in 0..batch {
            match listed.get_mut(usize::from(head)) {
                Some(listed) if !*listed => *listed = true,
                _ => return Err(InflightError::BadList { head }),
            }
            head = self.fields.next(head);
        }
        Ok(listed)
    }

    /// The request of `head` was popped; nothing has been done about it yet.
    #[inline]
    pub(crate) fn take(&mut self, head: u16) {
        self.fields.set_counter(head, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.fields.mark(head, true);
    }

    /// The request of `head` is in the used ring and will be shown with the next publication.
    #[inline]
    pub(crate) fn stage(&mut self, head: u16) {
        self.fields.set_next(head, self.last_batch_head);
        self.fields.set_u16(LAST_BATCH_HEAD, head);
        self.last_batch_head = head;
        self.batch.push(head);
    }

    /// The used ring's index has become `used_idx`, and so all that was staged is shown.
    #[inline]
    pub(crate) fn settle(&mut self, used_idx: u16) {
        let fields = self.fields;
        for head in self.batch.drain(..) {
            fields.mark(head, false);
        }
        fields.set_u16(USED_IDX, used_idx);
    }
}

/// The region's bytes, and the only accesses to them.
#[derive(Clone, Copy, Debug)]
struct Fields {
    /// Aligned to `FIELD_ALIGN`.
    base: NonNull<u8>,
    /// Cuts a head to an entry of the ring that is tracked, which has no more of them than the region.
    mask: usize,
}

impl Fields {
    /// Where a field of the entry of `head` is.
    #[inline]
    fn entry(self, head: u16, field: usize) -> usize {
        debug_assert!(usize::from(head) <= self.mask);
        DESC + DESC_BYTES * (usize::from(head) & self.mask) + field
    }

    #[inline]
    fn mark(self, head: u16, inflight: bool) {
        self.set_u8(self.entry(head, INFLIGHT), u8::from(inflight));
    }

    /// Any value but 0 counts: what is marked in doubt is only done again.
    fn is_marked(self, head: u16) -> bool {
        self.u8(self.entry(head, INFLIGHT)) != 0
    }

    #[inline]
    fn set_next(self, head: u16, next: u16) {
        self.set_u16(self.entry(head, NEXT), next);
    }

    fn next(self, head: u16) -> u16 {
        self.u16(self.entry(head, NEXT))
    }

    #[inline]
    fn set_counter(self, head: u16, counter: u64) {
        self.set_u64(self.entry(head, COUNTER), counter);
    }

    fn counter(self, head: u16) -> u64 {
        self.u64(self.entry(head, COUNTER))
    }

    #[inline]
    fn set_u8(self, offset: usize, value: u8) {
        self.u8_at(offset).store(value, Ordering::Release);
        crash::point();
    }

    #[inline]
    fn set_u16(self, offset: usize, value: u16) {
        self.u16_at(offset).store(value, Ordering::Release);
        crash::point();
    }

    #[inline]
    fn set_u64(self, offset: usize, value: u64) {
        self.u64_at(offset).store(value, Ordering::Release);
        crash::point();
    }

    fn u8(self, offset: usize) -> u8 {
        self.u8_at(offset).load(Ordering::Acquire)
    }

    fn u16(self, offset: usize) -> u16 {
        self.u16_at(offset).load(Ordering::Acquire)
    }

    fn u64(self, offset: usize) -> u64 {
        self.u64_at(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn u8_at(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: every offset above lies inside the region, which `InflightQueue::new` found inside its mapping.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(offset)) }
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as in `u8_at`; the base is aligned to 8 bytes and the offset to the field's size.
        unsafe { AtomicU16::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `u16_at`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

#[cfg(test)]
mod tests;
