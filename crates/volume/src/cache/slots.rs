//! Slots: where versions of blocks lie, and who still needs one.
//!
//! A slot has a count of references: one of the map's while it names the slot, and one a pin. At 0 it lies on its free list
//! and belongs to nobody; whoever takes it from there writes it alone, and raises the count from 0 by a plain store before the
//! map names it. [`Slots::acquire`] never raises a count from 0, so a thread that comes with a slot's number out of an old map
//! entry finds it free, or holds on to something that it must yet recognise: it looks at the map again ([`super::Cache::pin`]
//! does). Until it has lowered the count again the slot is not reused.
//!
//! The last to lower a count has seen all that was done with the slot (its decrement acquires what the others released), hands
//! it to the list (release), and the next owner takes it from there (acquire). So no write to a version overtakes a read of
//! the one before.
//!
//! What a slot's version is lies in the memory file (`file`), which outlives the process; what is counted here does not.
//! A version is *installed* when its record is current and that of the version before it no longer is. Installs of one block follow
//! each other: whoever has replaced a version waits, if need be, for the few stores that its writer still has to do.
//!
//! Free lists are stacks: what was used last is warm, and what was never needed has no memory.

use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::file::MemoryFile;
use super::memory::{Array, Pages, Zeroed};
use super::sync::{AtomicU8, AtomicU32, AtomicU64, Padded, yield_now};
use crate::SectorMask;

/// How far a version is on its way into the log. Changed under the committer's lock only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// In no record.
    No,
    /// In a record that may yet fail.
    InFlight,
    /// In a record that is durable.
    Durable,
}

impl Logged {
    fn from_u8(value: u8) -> Logged {
        match value {
            0 => Logged::No,
            1 => Logged::InFlight,
            _ => Logged::Durable,
        }
    }
}

/// What is known of a slot.
#[derive(Default)]
#[repr(C, align(16))]
struct Slot {
    refs: AtomicU32,
    /// Of a free slot: the one below it on the stack, plus one.
    below: AtomicU32,
    /// Of a free slot: how many lie on the stack up to it.
    depth: AtomicU32,
    logged: AtomicU8,
    installed: AtomicU8,
}

// SAFETY: made of atomic integers, for which 0 is a value.
unsafe impl Zeroed for Slot {}

pub(super) struct Slots {
    known: Array<Slot>,
    file: MemoryFile,
    free_data: Stack,
    free_zero: Stack,
}

/// A slot that belongs to one thread. Dropped, it is free again.
pub(super) struct Fresh<'a> {
    slots: &'a Slots,
    slot: u32,
    /// Whether it has its first reference, and others may come by.
    armed: bool,
}

impl Slots {
    /// The slots of a memory file. `keep` is asked about each version in it, as (block, slot); versions that it does not want,
    /// and those that a newer one was to replace, are forgotten. Those that stay have the reference of the map.
    ///
    /// # Errors
    ///
    /// The kernel refuses a mapping.
    pub(super) fn new(file: MemoryFile, mut keep: impl FnMut(u64, u32) -> bool) -> io::Result<Slots> {
        let total = file.total_slots();
        let slots = Slots {
            known: Array::new(total as usize, total as usize, Pages::Any)?,
            file,
            free_data: Stack::default(),
            free_zero: Stack::default(),
        };
        for (block, slot) in slots.file.survivors() {
            if keep(block, slot) {
                let known = slots.slot(slot);
                known.refs.store(1, Relaxed);
                known.installed.store(1, Relaxed);
            }
        }
        // Those that were replaced go before those that replaced them are settled: killed in between, the next look sees the same.
        for slot in (0..total).rev() {
            if slots.slot(slot).refs.load(Relaxed) == 0 {
                slots.file.clear_current(slot);
                slots.free(slot);
            }
        }
        for slot in 0..total {
            slots.file.settle(slot);
        }
        Ok(slots)
    }

    /// The memory that the slots live in.
    pub(super) fn file(&self) -> &MemoryFile {
        &self.file
    }

    /// A slot with memory, for the caller alone.
    pub(super) fn take_data(&self) -> Option<Fresh<'_>> {
        self.free_data.pop(&self.known).map(|slot| Fresh { slots: self, slot, armed: false })
    }

    /// A slot that stands for zeroes, for the caller alone.
    pub(super) fn take_zero(&self) -> Option<Fresh<'_>> {
        self.free_zero.pop(&self.known).map(|slot| Fresh { slots: self, slot, armed: false })
    }

    /// How many slots with memory are free, or were a moment ago.
    pub(super) fn data_slots_free(&self) -> u32 {
        self.free_data.depth(&self.known)
    }

    /// How many slots without memory are free, or were a moment ago.
    pub(super) fn zero_slots_free(&self) -> u32 {
        self.free_zero.depth(&self.known)
    }

    /// Takes a reference, unless the slot is free.
    pub(super) fn acquire(&self, slot: u32) -> bool {
        let refs = &self.slot(slot).refs;
        let mut count = refs.load(Relaxed);
        loop {
            if count == 0 {
                return false;
            }
            // Acquire: what its owner wrote before the count was raised from 0, and what the map said before the count was
            // lowered, are seen from here on.
            match refs.compare_exchange(count, count + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => count = now,
            }
        }
    }

    /// Gives a reference back, with the last one the slot.
    pub(super) fn release(&self, slot: u32) {
        if self.slot(slot).refs.fetch_sub(1, AcqRel) == 1 {
            self.free(slot);
        }
    }

    /// Whether the slot stands for a block of zeroes.
    pub(super) fn is_zeroes(&self, slot: u32) -> bool {
        slot >= self.file.data_slots()
    }

    /// The memory of a slot: 4096 bytes, aligned to as many; `None` for zeroes. Who has a reference may read them.
    pub(super) fn data(&self, slot: u32) -> Option<*mut u8> {
        self.file.page(slot)
    }

    /// Which sectors the version has; who has a reference may ask.
    pub(super) fn sectors(&self, slot: u32) -> SectorMask {
        // Written before the slot was published, and read by who found it published.
        self.file.sectors(slot)
    }

    pub(super) fn logged(&self, slot: u32) -> Logged {
        Logged::from_u8(self.slot(slot).logged.load(Relaxed))
    }

    pub(super) fn set_logged(&self, slot: u32, logged: Logged) {
        self.slot(slot).logged.store(logged as u8, Relaxed);
    }

    /// Whether the version is the one that a killed process would leave; who has a reference may ask.
    pub(super) fn is_installed(&self, slot: u32) -> bool {
        self.slot(slot).installed.load(Acquire) != 0
    }

    /// Waits until the version is installed; who has a reference may.
    pub(super) fn wait_installed(&self, slot: u32) {
        while !self.is_installed(slot) {
            // Its writer has put it into the map and has a few stores to do, unless it was interrupted there.
            yield_now();
        }
    }

    /// The map names `slot`, which has replaced `old`: from here on it is what a killed process leaves. The caller has the
    /// reference that the map had to `old`.
    pub(super) fn install(&self, slot: u32, old: Option<u32>) {
        if let Some(old) = old {
            self.wait_installed(old);
        }
        self.file.set_current(slot);
        if let Some(old) = old {
            self.file.clear_current(old);
            self.file.settle(slot);
        }
        self.slot(slot).installed.store(1, Release);
    }

    fn free(&self, slot: u32) {
        let stack = if self.is_zeroes(slot) { &self.free_zero } else { &self.free_data };
        stack.push(&self.known, slot);
    }

    fn slot(&self, slot: u32) -> &Slot {
        self.known.at(slot as usize)
    }
}

impl Fresh<'_> {
    /// The slot's number.
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    /// The slot's memory, which only the caller may write; `None` for zeroes.
    pub(super) fn data(&self) -> Option<*mut u8> {
        self.slots.data(self.slot)
    }

    /// Says what the version is, and takes the reference of the map that is about to name it. May be said again until the map
    /// does: a thread that comes by with an old map entry may hold a reference meanwhile, but looks at nothing.
    pub(super) fn describe(&mut self, block: u64, sectors: SectorMask, replaces: Option<u32>) {
        let known = self.slots.slot(self.slot);
        self.slots.file.describe(self.slot, block, sectors, replaces);
        known.installed.store(0, Relaxed);
        known.logged.store(Logged::No as u8, Relaxed);
        if !self.armed {
            known.refs.store(1, Release);
            self.armed = true;
        }
    }

    /// The map names the slot now, in the place of `old`; it is no longer the caller's.
    pub(super) fn published(self, old: Option<u32>) {
        debug_assert!(self.armed, "a slot in the map without a reference");
        self.slots.install(self.slot, old);
        std::mem::forget(self);
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.slots.release(self.slot);
        } else {
            self.slots.free(self.slot);
        }
    }
}

/// Free slots, the last freed on top.
///
/// The head holds the top slot plus one (0: none) and a number that every change counts up, so that a head that was seen is
/// not taken for a later one with the same top. That number has 32 bits: it misleads only who sleeps in between for exactly a
/// multiple of 2^32 changes.
#[derive(Default)]
struct Stack {
    head: Padded<AtomicU64>,
}

impl Stack {
    fn push(&self, known: &Array<Slot>, slot: u32) {
        let mut head = self.head.0.load(Acquire);
        loop {
            let top = top(head);
            let depth = top.map_or(0, |top| known.at(top as usize).depth.load(Relaxed));
            let pushed = known.at(slot as usize);
            pushed.below.store(top.map_or(0, |top| top + 1), Relaxed);
            // If the top has changed meanwhile this is nonsense, and not used.
            pushed.depth.store(depth.wrapping_add(1), Relaxed);
            match self.head.0.compare_exchange(head, changed(head, slot + 1), AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop(&self, known: &Array<Slot>) -> Option<u32> {
        let mut head = self.head.0.load(Acquire);
        loop {
            let slot = top(head)?;
            let below = known.at(slot as usize).below.load(Relaxed);
            match self.head.0.compare_exchange(head, changed(head, below), AcqRel, Acquire) {
                Ok(_) => return Some(slot),
                Err(now) => head = now,
            }
        }
    }

    fn depth(&self, known: &Array<Slot>) -> u32 {
        top(self.head.0.load(Acquire)).map_or(0, |top| known.at(top as usize).depth.load(Relaxed))
    }
}

/// The slot that a head names.
fn top(head: u64) -> Option<u32> {
    (head as u32).checked_sub(1)
}

/// The head after `head` that names `entry` (a slot plus one, or 0).
fn changed(head: u64, entry: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(entry)
}
