//! From a block to the slot of its current version: one flat array, as a page table is one.
//!
//! An entry is 0 (not cached) or a slot plus one. Memory behind it comes a *leaf* (a page of entries) at a time, and a leaf's
//! counter says how many of its entries are in use: it is raised before an entry appears and lowered after one has gone, so
//! that a leaf of count 0 has only zero entries. It can then be given back, under a mark that keeps entries from appearing;
//! readers need not care, for they see zeroes before, meanwhile and after. A reader that sees count 0 need not look at the
//! leaf, and so brings no memory into being.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::bitmap::Bits;
use super::memory::{Array, Pages};
use super::sync::{AtomicU32, AtomicU64, Padded, yield_now};

/// Of a leaf's counter: memory may be behind it. Set with the first entry, cleared when the memory is given back.
const BACKED: u32 = 1 << 30;
/// Of a leaf's counter: its memory is being given back, and entries have to wait.
const RECLAIMING: u32 = 1 << 31;
/// Of a leaf's counter: entries in use, and attempts to make one.
const COUNT: u32 = BACKED - 1;
/// Leaves that [`Map::trim`] looks at before it marks again those that are in use.
const TRIM_BATCH: usize = 1024;

pub(super) struct Map {
    entries: Array<AtomicU32>,
    leaves: Array<AtomicU32>,
    /// Leaves that may be backed, for `trim` to find.
    backed: Bits,
    backed_count: Padded<AtomicU64>,
    /// Entries of a leaf: a page of them.
    leaf_entries: u64,
}

impl Map {
    /// A map of `blocks`, which may grow to `reserved`.
    ///
    /// # Errors
    ///
    /// The kernel refuses the mappings.
    pub(super) fn new(blocks: u64, reserved: u64) -> io::Result<Map> {
        let reserved = reserved.max(blocks);
        // Memory is given back by whole pages, whatever this machine's are.
        let leaf_entries = (rustix::param::page_size() / size_of::<AtomicU32>()) as u64;
        let map = Map {
            entries: Array::new(0, entries(reserved, leaf_entries)?, Pages::Small)?,
            leaves: Array::new(0, index(reserved.div_ceil(leaf_entries))?, Pages::Small)?,
            backed: Bits::new(blocks.div_ceil(leaf_entries), reserved.div_ceil(leaf_entries))?,
            backed_count: Padded::default(),
            leaf_entries,
        };
        map.extend(blocks)?;
        Ok(map)
    }

    /// Lets blocks up to `blocks` in; one caller at a time.
    ///
    /// # Errors
    ///
    /// As [`Array::extend`].
    pub(super) fn extend(&self, blocks: u64) -> io::Result<()> {
        let leaves = blocks.div_ceil(self.leaf_entries);
        self.backed.extend(leaves)?;
        self.leaves.extend(index(leaves)?)?;
        self.entries.extend(entries(blocks, self.leaf_entries)?)
    }

    /// The entry of `block`: 0, or a slot plus one.
    pub(super) fn load(&self, block: u64) -> u32 {
        if self.leaf(block).load(SeqCst) & COUNT == 0 { 0 } else { self.entry(block).load(SeqCst) }
    }

    /// Makes the entry of a block that has none; false if it has one now.
    pub(super) fn insert(&self, block: u64, new: u32) -> bool {
        self.occupy(block);
        let done = self.entry(block).compare_exchange(0, new, SeqCst, Relaxed).is_ok();
        if !done {
            self.vacate(block);
        }
        done
    }

    /// Changes the entry from `current` (not 0) to `new` (not 0); false if it is not `current` any more.
    pub(super) fn replace(&self, block: u64, current: u32, new: u32) -> bool {
        // The entry's own count stays, with the new slot.
        self.entry(block).compare_exchange(current, new, SeqCst, Relaxed).is_ok()
    }

    /// Changes the entry from `current` (not 0) to 0; false if it is not `current` any more.
    pub(super) fn remove(&self, block: u64, current: u32) -> bool {
        let done = self.entry(block).compare_exchange(current, 0, SeqCst, Relaxed).is_ok();
        if done {
            self.vacate(block);
        }
        done
    }

    /// Calls `each` with every block of the range that has an entry, ascending, until it says false; true if it never did.
    pub(super) fn walk(&self, blocks: Range<u64>, mut each: impl FnMut(u64) -> bool) -> bool {
        let mut block = blocks.start;
        while block < blocks.end {
            let leaf_end = (block / self.leaf_entries + 1) * self.leaf_entries;
            let end = leaf_end.min(blocks.end);
            if self.leaf(block).load(SeqCst) & COUNT != 0 {
                for block in block..end {
                    if self.entry(block).load(SeqCst) != 0 && !each(block) {
                        return false;
                    }
                }
            }
            block = end;
        }
        true
    }

    /// How many leaves may be backed by memory.
    pub(super) fn backed(&self) -> u64 {
        self.backed_count.0.load(Relaxed)
    }

    /// Gives the memory of all empty leaves back. One caller at a time.
    pub(super) fn trim(&self) {
        let mut from = Some(0);
        let mut in_use = Vec::new();
        while let Some(at) = from {
            let taken = self.backed.take(at, u64::MAX, TRIM_BATCH, |leaf| {
                if !self.reclaim(leaf) {
                    in_use.push(leaf);
                }
                true
            });
            from = taken.next;
            for leaf in in_use.drain(..) {
                self.backed.mark(leaf);
            }
            self.backed.discount(taken.bits);
        }
    }

    /// Gives the memory of the leaf of `block` back if that is empty. Any thread.
    pub(super) fn trim_at(&self, block: u64) {
        let leaf = block / self.leaf_entries;
        if self.leaf(block).load(Relaxed) & (COUNT | RECLAIMING) == 0 {
            self.reclaim(leaf);
        }
    }

    /// False if the leaf is in use.
    fn reclaim(&self, leaf: u64) -> bool {
        let first = leaf * self.leaf_entries;
        let counter = self.leaf(first);
        // Acquire: the entries that became 0 before the count did are seen as 0.
        match counter.compare_exchange(BACKED, RECLAIMING, Acquire, Relaxed) {
            Ok(_) => {
                // Blocks are indices of an array that exists, so they fit.
                let (first, count) = (first as usize, self.leaf_entries as usize);
                // SAFETY: a leaf is a page (`leaf_entries`), and the mapping begins on one; with count 0 all its entries are
                // 0, and the mark keeps `occupy`, without which no entry changes from 0, out.
                unsafe { self.entries.give_back(first, count) };
                self.backed_count.0.fetch_sub(1, Relaxed);
                // Release: who raises the count again changes entries after this.
                counter.store(0, Release);
                true
            }
            // Nothing is behind it, or another thread is at it.
            Err(state) => state & COUNT == 0,
        }
    }

    fn occupy(&self, block: u64) {
        let counter = self.leaf(block);
        loop {
            let state = counter.load(Relaxed);
            if state & RECLAIMING != 0 {
                // The length of one madvise, which is begun only for leaves that nobody used.
                yield_now();
                continue;
            }
            if counter.compare_exchange(state, (state + 1) | BACKED, SeqCst, Relaxed).is_ok() {
                if state & BACKED == 0 {
                    self.backed_count.0.fetch_add(1, Relaxed);
                    self.backed.mark(block / self.leaf_entries);
                }
                return;
            }
        }
    }

    fn vacate(&self, block: u64) {
        self.leaf(block).fetch_sub(1, Release);
    }

    fn leaf(&self, block: u64) -> &AtomicU32 {
        self.leaves.at(usize::try_from(block / self.leaf_entries).unwrap_or(usize::MAX))
    }

    fn entry(&self, block: u64) -> &AtomicU32 {
        self.entries.at(usize::try_from(block).unwrap_or(usize::MAX))
    }
}

/// Whole leaves for so many blocks, in entries.
fn entries(blocks: u64, leaf_entries: u64) -> io::Result<usize> {
    blocks.div_ceil(leaf_entries).checked_mul(leaf_entries).map_or_else(|| index(u64::MAX), index)
}

/// As a number of elements. 32 bits of address space are too few for a cache of any disk, and say so here.
fn index(count: u64) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::ErrorKind::OutOfMemory.into())
}
