//! The dirty log: a map of the pages that a device wrote, by which a frontend moves a guest that runs.
//!
//! vhost-user, "Migration": one bit for each page of [`PAGE_BYTES`] from guest address 0 on, eight to a byte, the lowest
//! first. The frontend takes and clears bits at any time, and copies the pages. So a bit is set *behind* the write that
//! it tells of: set before it, the frontend could take the bit, copy the old page, and never hear of the new one.

mod writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use crate::error::LogError;
use crate::mapping::Mapping;
use crate::memory::Memory;

pub(crate) use writes::Writes;

/// Bytes of guest memory that one bit stands for (`VHOST_LOG_PAGE`, vhost-user, "Migration"; linux/vhost.h).
pub const PAGE_BYTES: u64 = 0x1000;
/// Pages that one byte of the log stands for.
const PAGES_A_BYTE: u64 = 8;

/// A log that is mapped. Threads may mark in it at the same time, and its frontend clears it meanwhile.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
    /// Where in the mapping it begins, in bytes.
    start: usize,
    /// Its length in bytes, at least 1.
    bytes: usize,
}

/// What one ring logs: its requests' buffers, and the used ring if the frontend asks for that as well.
#[derive(Clone, Debug)]
pub struct RingLog {
    /// Where it is marked.
    pub log: Arc<DirtyLog>,
    /// Guest address by which the used ring is logged (`log_guest_addr` with `VHOST_VRING_F_LOG` in SET_VRING_ADDR). It may be
    /// one that no memory region has. `None`: the used ring is not logged.
    pub used: Option<u64>,
}

impl DirtyLog {
    /// A log of `bytes` bytes that begins at byte `start` of `mapping`.
    ///
    /// # Errors
    /// It is empty, or ends behind the mapping.
    pub fn new(mapping: Mapping, start: usize, bytes: usize) -> Result<DirtyLog, LogError> {
        let room = mapping.len().saturating_sub(start);
        if bytes == 0 || bytes > room {
            return Err(LogError { bytes, room });
        }
        Ok(DirtyLog { mapping, start, bytes })
    }

    /// Whether every one of the `len` bytes at `guest_addr` has its bit in the log.
    pub fn covers(&self, guest_addr: u64, len: u64) -> bool {
        pages(guest_addr, len).is_none_or(|(_, last)| last / PAGES_A_BYTE < self.bytes as u64)
    }

    /// Whether the memory behind it went away ([`Mapping::is_gone`]): what is marked since nobody sees.
    pub fn is_gone(&self) -> bool {
        self.mapping.is_gone()
    }

    /// Marks all of this memory: what of it was written nobody knows.
    pub fn mark_all(&self, memory: &Memory) {
        settle();
        memory.regions().iter().filter_map(|region| pages(region.guest_addr, region.len)).for_each(|it| self.mark(it));
    }

    /// Marks pages `first` to `last`, of which those behind the log's end are dropped: nothing is written outside the log.
    ///
    /// What was written to the pages must be ordered by [`settle`] before.
    fn mark(&self, (first, last): (u64, u64)) {
        // A mapping is shorter than 2^61 bytes.
        let last = last.min(self.bytes as u64 * PAGES_A_BYTE - 1);
        let mut page = first;
        while page <= last {
            let from = page % PAGES_A_BYTE;
            let to = (last - page + from).min(PAGES_A_BYTE - 1);
            // Bits `from` to `to`, the last included.
            let bits = (0xff_u8 << from) & (0xff_u8 >> (PAGES_A_BYTE - 1 - to));
            let byte = self.byte((page / PAGES_A_BYTE) as usize);
            // Most pages are marked already, and a look costs a tenth of an atomic change.
            if byte.load(Ordering::Relaxed) & bits != bits {
                byte.fetch_or(bits, Ordering::Release);
            }
            page += PAGES_A_BYTE - from;
        }
    }

    /// All bytes of its mapping, which no other thread uses.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn around(&self) -> Vec<u8> {
        // SAFETY: the whole mapping.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), self.mapping.len()) }.to_vec()
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        debug_assert!(at < self.bytes);
        // SAFETY: callers stay below the log's length, and `new` found all of it inside the mapping. The frontend accesses it
        // atomically, in words: every processor that this runs on keeps accesses of different sizes to one byte in one order.
        unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(self.start + at)) }
    }
}

/// Orders all that this thread wrote, or saw written, before the marks that follow.
///
/// A mark that finds its bit set writes nothing. So the frontend, which clears the bit and then copies the page, and this
/// thread, which writes the page and then looks at the bit, need a full fence each: either the bit is seen cleared here and is
/// set again, or the page is seen as it is now there.
#[inline]
fn settle() {
    fence(Ordering::SeqCst);
}

/// First and last page of these bytes; `None` when there are none. What would lie behind the address space is left out.
fn pages(guest_addr: u64, len: u64) -> Option<(u64, u64)> {
    let tail = len.checked_sub(1)?;
    Some((guest_addr / PAGE_BYTES, guest_addr.saturating_add(tail) / PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: usize = 4096;

    fn log(start: usize, bytes: usize) -> DirtyLog {
        DirtyLog::new(Mapping::anonymous(ROOM).unwrap(), start, bytes).unwrap()
    }

    proptest! {
        /// As the specification writes it: `log[page / 8] |= 1 << page % 8`.
        #[test]
        fn every_page_is_marked_and_nothing_else(
            start in 0..40_usize,
            bytes in 1..40_usize,
            ranges in proptest::collection::vec((0..350_u64, 0..4096_u64, 0..600_000_u64), 0..4),
            before: u8,
        ) {
            let log = log(start, bytes);
            log.byte(0).store(before, Ordering::Relaxed);
            let mut expected = vec![0; ROOM];
            expected[start] = before;
            for (page, offset, len) in ranges {
                let at = page * PAGE_BYTES + offset;
                prop_assert_eq!(log.covers(at, len), len == 0 || (at + len - 1) / PAGE_BYTES < 8 * bytes as u64);
                if let Some(pages) = pages(at, len) {
                    log.mark(pages);
                }
                for page in (at..at + len).map(|byte| (byte / PAGE_BYTES) as usize) {
                    if page / 8 < bytes {
                        expected[start + page / 8] |= 1 << (page % 8);
                    }
                }
            }
            prop_assert_eq!(log.around(), expected);
        }
    }

    #[test]
    fn addresses_behind_the_log_are_dropped_whatever_they_are() {
        let log = log(8, 2);
        for at in [16 * PAGE_BYTES, 17 * PAGE_BYTES, 1 << 40, u64::MAX - PAGE_BYTES, u64::MAX] {
            for len in [1, PAGE_BYTES, u64::MAX] {
                assert!(!log.covers(at, len), "{at:#x}");
                log.mark(pages(at, len).unwrap());
            }
        }
        assert_eq!(log.around(), [0; ROOM]);
        log.mark(pages(15 * PAGE_BYTES, u64::MAX).unwrap());
        assert_eq!(log.around()[8..11], [0, 0x80, 0]);
    }

    #[test]
    fn a_log_lies_in_its_mapping() {
        for (start, bytes, room) in
            [(0, 0, ROOM), (0, ROOM + 1, ROOM), (ROOM, 1, 0), (ROOM + 1, 1, 0), (1, ROOM, ROOM - 1)]
        {
            let refused = DirtyLog::new(Mapping::anonymous(ROOM).unwrap(), start, bytes);
            assert_eq!(refused.err(), Some(LogError { bytes, room }));
        }
        assert!(DirtyLog::new(Mapping::anonymous(ROOM).unwrap(), ROOM - 1, 1).is_ok());
    }
}
