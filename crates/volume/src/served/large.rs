//! Large reads of what the cache has in part: other threads copy, part by part.
//!
//! The rings of a worker wait while it copies, so that it leaves what is large to others. And a guest may ask for gigabytes into the same
//! few pages, thousands of times at once: so a read holds no more versions at a time than a small one does.

use super::cursor::Cursor;
use super::overlay::{covered, lay_over, touched};
use crate::BLOCK_BYTES;
use crate::cache::{Cache, Pins};
use libc::iovec;
use std::sync::Arc;
use storage::kit::ON_THE_SPOT_MAX;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Versions that a read holds at a time.
const PINS_MAX: usize = (ON_THE_SPOT_MAX / BLOCK) as usize;

/// Bytes of one read that a thread copies before it takes its next job.
const JOB_BYTES: u64 = 16 << 20;

/// What comes next, as the results of jobs say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Next {
    /// Nothing: all is read.
    End,
    /// The lower storage has something of the part.
    Below,
    /// Another job.
    Job,
}

/// A read that goes part by part. A part ends behind as many versions as may be held, or with the read.
pub(super) struct LargeRead {
    pins: Pins,
    /// The part that the lower storage reads, or has read; empty before the first. In bytes of the disk.
    pub(super) from: u64,
    pub(super) to: u64,
    end: u64,
    /// Where the part is in the task's buffers.
    cursor: Cursor,
}

impl LargeRead {
    pub(super) fn new(cache: &Arc<Cache>, offset: u64, end: u64) -> LargeRead {
        LargeRead { pins: Pins::new(cache), from: offset, to: offset, end, cursor: Cursor::default() }
    }

    /// Copies what is pinned of the part over what the lower storage has read, and then all parts of which the cache has
    /// everything.
    ///
    /// # Safety
    /// The buffers are valid for writes; they may change meanwhile.
    pub(super) unsafe fn proceed(&mut self, cache: &Cache, buffers: &[iovec]) -> Next {
        let stop = self.to.saturating_add(JOB_BYTES);
        loop {
            // SAFETY: vouched for.
            unsafe { lay_over(&self.pins, buffers, self.cursor, self.from, self.to) };
            self.pins.clear();
            self.cursor = self.cursor.skip(buffers, (self.to - self.from) as usize);
            self.from = self.to;
            if self.from == self.end {
                return Next::End;
            }
            if self.from >= stop {
                return Next::Job;
            }
            self.to = self.pin_part(cache);
            if covered(&self.pins, self.from, self.to) < self.to - self.from {
                return Next::Below;
            }
        }
    }

    /// Pins the versions of the next part, and gives its end.
    fn pin_part(&mut self, cache: &Cache) -> u64 {
        for block in touched(self.from, self.end - self.from) {
            if cache.pin(block, &mut self.pins) && self.pins.len() == PINS_MAX {
                return self.end.min((block + 1) * BLOCK);
            }
        }
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SectorMask;
    use crate::cache::CacheOptions;

    /// What a read of the lower storage would find.
    const BELOW: u8 = 0xbb;

    /// Reads `sectors` from the first on, with a few blocks in the cache, and checks every byte; gives how often it read below.
    fn check(cached: impl Fn(u64) -> Option<SectorMask>, offset: u64, end: u64) -> usize {
        let options = CacheOptions { capacity_bytes: 64 << 20, data_slots: 8192, zero_slots: 8192 };
        let cache = Arc::new(Cache::new(&options).unwrap());
        for block in 0..8192 {
            // SAFETY: a slot is a whole block.
            let fill = |to: *mut u8| unsafe { to.write_bytes(block as u8 % 128, BLOCK_BYTES) };
            match cached(block) {
                Some(sectors) => cache.store(block, sectors, fill).unwrap(),
                None if block % 97 == 96 => cache.zero(block).unwrap(),
                None => {}
            }
        }
        let mut memory = vec![0xee; (end - offset) as usize];
        let half = memory.len() / 2 + 100;
        let list = |memory: &mut [u8]| {
            memory
                .chunks_mut(half)
                .map(|c| iovec { iov_base: c.as_mut_ptr().cast(), iov_len: c.len() })
                .collect::<Vec<_>>()
        };
        let buffers = list(&mut memory);
        let mut read = LargeRead::new(&cache, offset, end);
        let mut below = 0;
        loop {
            // SAFETY: the buffers are `memory`.
            let next = unsafe { read.proceed(&cache, &buffers) };
            assert!(read.pins.len() <= PINS_MAX);
            match next {
                Next::End => break,
                Next::Job => {}
                Next::Below => {
                    below += 1;
                    let mut part = Vec::new();
                    storage::kit::range(&buffers, read.from - offset, read.to - read.from, &mut part);
                    assert_eq!(storage::kit::total(&part), read.to - read.from);
                    for buffer in part {
                        // SAFETY: a part of `memory`.
                        unsafe { buffer.iov_base.cast::<u8>().write_bytes(BELOW, buffer.iov_len) };
                    }
                }
            }
        }
        assert!(read.pins.is_empty());
        for (at, byte) in memory.iter().enumerate() {
            let at = offset + at as u64;
            let (block, sector) = (at / BLOCK, (at % BLOCK / 512) as usize);
            let expected = match cached(block) {
                Some(sectors) if !SectorMask::span(sector, 1).without(sectors).is_empty() => BELOW,
                Some(_) => block as u8 % 128,
                None if block % 97 == 96 => 0,
                None => BELOW,
            };
            assert_eq!(*byte, expected, "byte {at}");
        }
        below
    }

    #[test]
    fn parts_hold_a_bounded_number_of_versions_and_make_up_the_whole() {
        const END: u64 = 32 << 20;
        assert_eq!(check(|_| Some(SectorMask::ALL), 512, END - 512), 0);
        // Zeroes here and there, 84 in all.
        assert_eq!(check(|_| None, 0, END), 1);
        assert_eq!(check(|_| Some(SectorMask::span(2, 4)), 1536, END), 8192 / PINS_MAX);
        // Every other block, and zeroes between some: 98 versions in 194 blocks.
        assert_eq!(check(|block| (block % 2 == 0).then_some(SectorMask::ALL), 4096, END), 9);
        // Islands: parts that are in the cache, and parts that begin in one and end in the next.
        assert_eq!(check(|block| (block / 700 % 2 == 0).then_some(SectorMask::ALL), 1024, END), 6);
    }
}
