//! The write-back cache of a volume: the newest version of each block that the lower storage does not have yet.
//!
//! A version is up to eight sectors of one block. It is written once, into a slot that nobody knows, and then published by one
//! compare-and-swap of the block's entry in the map (`map`); a write to a block that is cached makes a new version, with
//! the sectors of the old one that it does not cover. So whoever holds a [pin](Pins) reads memory that nobody writes, and a
//! guest's write, a commit and write-back never wait for each other. There is one wait of a few stores: of two writers of the
//! *same block* the second waits until the first has told the memory file. No lock but that of [`Cache::grow`], against itself.
//!
//! Two sets (`bitmap`) say what is to be done: blocks that are *dirty* (write-back shall take them) and *unlogged* (a
//! commit shall). The order of these steps carries everything else:
//!
//! 1. **A version is published, then its block is marked dirty, then unlogged, then the old version is let go.** A taker clears
//!    a mark and *then* reads the map (all of it sequentially consistent). So a taker that finds no mark comes before the mark,
//!    and will be followed by another; one that clears it finds this version or a newer one.
//! 2. **What a commit takes it marks dirty itself**, for it may have found the version by an older mark, before the thread
//!    that stored it has come to marking anything. So a sweep that begins after a record was sealed finds the mark of every
//!    version in it, or an earlier sweep did and has written the version or a newer one: the log may be cut behind that
//!    record when the sweep's writes are stable.
//! 3. **Eviction.** A version that the lower storage holds, stably, leaves the cache if it is still the block's current one
//!    and nothing older can come back over it: it is in a record that is durable, or the log is empty. Otherwise it is marked
//!    dirty again and stays. A record that is still being written does not count, because it may fail, and the version would
//!    then have no one who logs it.
//! 4. A pin counts up first and then asks the map again, so that a slot that was reused in between is noticed
//!    (`slots`).
//! 5. A version that a writer was told is stored is one that a killed process leaves: it is marked as the block's current one in
//!    the memory file before the writer is told, and the mark goes only when a newer one has it, or the lower storage the data
//!    (`file`, `slots`).
//!
//! What it may cost: 4 KiB for a slot with memory, and 32 bytes for every slot; a page of map for a block that stands alone
//! (given back when empty: [`Cache::trim`]); and marks and counters of at most 66 MiB for each TiB of a disk that was written
//! all over.

mod bitmap;
mod file;
mod map;
mod memory;
mod pins;
mod round;
mod slots;
mod sync;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use displaydoc::Display;
use thiserror::Error;

use self::bitmap::Bits;
use self::file::MemoryFile;
pub use self::file::{CacheOptions, HEADER_REST, Header};
use self::map::Map;
use self::pins::Held;
pub use self::pins::{Pinned, Pins};
pub use self::round::Round;
use self::slots::{Fresh, Logged, Slots};
use crate::{BLOCK_BYTES, SECTOR_BYTES, SectorMask};

/// Blocks that the address space is laid out for at least (16 TiB), so that a disk can grow while readers look.
const RESERVED_BLOCKS_MIN: u64 = 1 << 32;
/// Blocks that it is laid out for at most, if the disk itself is not larger: 512 TiB, half a TiB of address space.
const RESERVED_BLOCKS_MAX: u64 = 1 << 37;
/// A disk may grow to so many times its size.
const RESERVED_GROWTH: u64 = 16;
/// Pages of map beyond one for each slot that may be backed before they are looked through for empty ones.
const BACKED_SPARE: u64 = 16 * 1024;

/// the cache has no free slot; write-back frees some
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub struct Full;

/// What [`Cache::evict`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Versions that left the cache.
    pub removed: usize,
    /// Versions that are current and had to stay; their blocks are dirty again.
    pub kept: usize,
}

/// How full a cache is, or was a moment ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// Slots with memory, in all.
    pub data_slots: u32,
    /// Slots with memory that are free.
    pub data_slots_free: u32,
    /// Slots for zeroes that are free.
    pub zero_slots_free: u32,
    /// Blocks that write-back has yet to take.
    pub dirty_blocks: u64,
    /// Blocks that a commit would have to take.
    pub unlogged_blocks: u64,
}

/// The newest versions of blocks, and what is yet to be done with them; how it works is told at the [module](self).
pub struct Cache {
    map: Map,
    slots: Slots,
    dirty: Bits,
    unlogged: Bits,
    blocks: AtomicU64,
    growing: Mutex<()>,
    /// Pages of map that may be backed before empty ones are looked for.
    backed_max: u64,
}

impl Cache {
    /// An empty cache, whose memory ends with it and is used when it is first needed.
    ///
    /// # Errors
    ///
    /// The kernel refuses the mappings (a disk larger than the address space, limits of the process), or there would be more
    /// than 2^31 slots.
    pub fn new(options: &CacheOptions) -> io::Result<Cache> {
        Cache::over(MemoryFile::anonymous(options)?, options.capacity_bytes)
    }

    /// The cache of what is in a memory file.
    fn over(file: MemoryFile, capacity_bytes: u64) -> io::Result<Cache> {
        let blocks = blocks_of(capacity_bytes);
        let reserved =
            blocks.saturating_mul(RESERVED_GROWTH).clamp(RESERVED_BLOCKS_MIN, RESERVED_BLOCKS_MAX).max(blocks);
        let total_slots = u64::from(file.total_slots());
        let (map, dirty, unlogged) =
            (Map::new(blocks, reserved)?, Bits::new(blocks, reserved)?, Bits::new(blocks, reserved)?);
        let slots = Slots::new(file, |block, slot| {
            // A disk does not shrink; a block beyond its end is nothing that was stored here.
            let kept = block < blocks && map.insert(block, slot + 1);
            if kept {
                dirty.mark(block);
                unlogged.mark(block);
            }
            kept
        })?;
        Ok(Cache {
            map,
            slots,
            dirty,
            unlogged,
            blocks: AtomicU64::new(blocks),
            growing: Mutex::new(()),
            backed_max: BACKED_SPARE + total_slots,
        })
    }

    /// Says in the memory file that the volume's opening `epoch` is about to take it over, before the volume does.
    pub fn announce(&self, epoch: u64) {
        self.slots.file().set_next_epoch(epoch);
    }

    /// Says in the memory file that it belongs to the volume's opening `epoch`, after the volume does.
    pub fn settle_epoch(&self, epoch: u64) {
        // In this order: killed in between, the file belongs to the same opening twice.
        self.slots.file().set_epoch(epoch);
        self.slots.file().set_next_epoch(0);
    }

    /// Says in the memory file of which file the volume is: a copy has the same name.
    pub fn belongs_to(&self, home: [u64; 2]) {
        self.slots.file().set_home(home);
    }

    /// Says in the memory file that the volume has this generation, after the volume does: an older one is a backup.
    pub fn note_generation(&self, generation: u64) {
        self.slots.file().set_generation(generation);
    }

    /// Lets blocks up to a larger capacity in.
    ///
    /// # Errors
    ///
    /// The capacity is smaller than it is, or more than sixteen times what it was at [`Cache::new`] (16 TiB are always
    /// possible), or the kernel has no memory to promise. The capacity is then what it was.
    pub fn grow(&self, capacity_bytes: u64) -> io::Result<()> {
        // Nothing in here panics half-way; a poisoned lock protects what a whole one does.
        let _growing = self.growing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let blocks = blocks_of(capacity_bytes);
        if blocks < self.blocks.load(Relaxed) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the cache of a volume does not shrink"));
        }
        self.map.extend(blocks)?;
        self.dirty.extend(blocks)?;
        self.unlogged.extend(blocks)?;
        self.slots.file().set_capacity(capacity_bytes);
        self.blocks.store(blocks, Release);
        Ok(())
    }

    /// Whether the cache has a version of any of the blocks: a look, without a promise for the next moment.
    pub fn touches(&self, blocks: Range<u64>) -> bool {
        !self.map.walk(self.inside(blocks), |_| false)
    }

    /// Stores sectors of a block. `fill` is called once, with the 4096 bytes of the new version, and writes the `sectors` of
    /// them; the others may hold anything and are not looked at. Stored is what a later [`Cache::pin`] sees, and what a later
    /// commit and a later sweep take. No sectors: nothing happens.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was stored.
    ///
    /// # Panics
    ///
    /// If the block lies outside the capacity: what a guest may ask is checked before.
    pub fn store(&self, block: u64, sectors: SectorMask, fill: impl FnOnce(*mut u8)) -> Result<(), Full> {
        self.check(block);
        if sectors.is_empty() {
            return Ok(());
        }
        let fresh = self.slots.take_data().ok_or(Full)?;
        let Some(data) = fresh.data() else { return Err(Full) };
        fill(data);
        self.install(block, fresh, sectors);
        Ok(())
    }

    /// Stores a block of zeroes, which takes no memory.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was stored.
    ///
    /// # Panics
    ///
    /// If the block lies outside the capacity.
    pub fn zero(&self, block: u64) -> Result<(), Full> {
        self.check(block);
        if let Some(slot) = slot_of(self.map.load(block))
            && self.slots.is_zeroes(slot)
            && self.hold(block, slot)
        {
            // It reads as zeroes already; but who stored that version may not have come to the end of it yet.
            self.slots.wait_installed(slot);
            self.dirty.mark(block);
            self.unlogged.mark(block);
            self.slots.release(slot);
            return Ok(());
        }
        let fresh = self.slots.take_zero().ok_or(Full)?;
        self.install(block, fresh, SectorMask::ALL);
        Ok(())
    }

    fn install(&self, block: u64, fresh: Fresh<'_>, sectors: SectorMask) {
        let old = self.publish(block, fresh, sectors);
        self.mark(block, old);
    }

    /// Makes a version of which `sectors` are written the current one, and gives the slot of the one before it.
    fn publish(&self, block: u64, mut fresh: Fresh<'_>, sectors: SectorMask) -> Option<u32> {
        let entry = fresh.slot() + 1;
        let old = loop {
            let current = self.map.load(block);
            let Some(old) = slot_of(current) else {
                fresh.describe(block, sectors, None);
                if self.map.insert(block, entry) {
                    break None;
                }
                continue;
            };
            if sectors.is_all() {
                // Nothing of the old one is needed: whatever the map names when the swap succeeds is what is let go.
                fresh.describe(block, sectors, Some(old));
                if self.map.replace(block, current, entry) {
                    break Some(old);
                }
                continue;
            }
            if !self.hold(block, old) {
                continue;
            }
            let merged = sectors.with(self.slots.sectors(old));
            self.merge(&fresh, old, merged.without(sectors));
            fresh.describe(block, merged, Some(old));
            let done = self.map.replace(block, current, entry);
            // The pin of this loop. It kept the slot from being reused, so that the swap could not mistake it.
            self.slots.release(old);
            if done {
                break Some(old);
            }
        };
        fresh.published(old);
        old
    }

    /// Says that the block has a new version, and lets the one before it go.
    fn mark(&self, block: u64, old: Option<u32>) {
        self.dirty.mark(block);
        self.unlogged.mark(block);
        if let Some(old) = old {
            self.slots.release(old);
        }
    }

    /// Copies `sectors` of the version in `old`, which is held, into a version that is not published.
    fn merge(&self, fresh: &Fresh<'_>, old: u32, sectors: SectorMask) {
        let Some(to) = fresh.data() else { return };
        let from = self.slots.data(old);
        for (first, count) in sectors.runs() {
            let (offset, bytes) = (first * SECTOR_BYTES, count * SECTOR_BYTES);
            debug_assert!(offset + bytes <= BLOCK_BYTES);
            match from {
                // SAFETY: runs of a mask lie in the block, and both slots have the memory of one. The new one is the caller's
                // alone; the old one is held, so nobody writes it; they are two slots, so they do not overlap.
                Some(from) => unsafe { to.add(offset).copy_from_nonoverlapping(from.add(offset), bytes) },
                // SAFETY: as above.
                None => unsafe { to.add(offset).write_bytes(0, bytes) },
            }
        }
    }

    /// Pins the current version of a block; false if there is none, and the lower storage has all of it.
    ///
    /// # Panics
    ///
    /// If `into` are pins of another cache.
    pub fn pin(&self, block: u64, into: &mut Pins) -> bool {
        assert!(into.are_of(self), "pins of another cache");
        let slot = if block < self.blocks.load(Acquire) { self.current(block) } else { None };
        if let Some(slot) = slot {
            into.held.push(Held { block, slot });
        }
        slot.is_some()
    }

    /// The slot of the current version, held.
    fn current(&self, block: u64) -> Option<u32> {
        loop {
            let slot = slot_of(self.map.load(block))?;
            if self.hold(block, slot) {
                return Some(slot);
            }
        }
    }

    /// Holds the slot if the map still says that it is the block's. If not, the map has changed.
    fn hold(&self, block: u64, slot: u32) -> bool {
        if !self.slots.acquire(slot) {
            return false;
        }
        let held = self.map.load(block) == slot + 1;
        if !held {
            self.slots.release(slot);
        }
        held
    }

    /// Takes versions that are in no record, at most `max` (at least 1), and pins them, ascending, as far as `round` has still to
    /// go. They count as in flight until [`Cache::logged`] or [`Cache::unlog`]. When the round is done, all versions stored before
    /// it began are in a record or have been taken, unless some were unlogged again meanwhile. None may be taken although
    /// [`Cache::has_unlogged`] was true, when what was marked has been discarded: then the round is done, and nothing is left to log.
    ///
    /// One caller at a time, of this, of [`Cache::logged`], [`Cache::unlog`] and [`Cache::evict`].
    ///
    /// # Panics
    ///
    /// If `into` are pins of another cache.
    pub fn take_unlogged(&self, max: usize, round: &mut Round, into: &mut Pins) -> usize {
        assert!(into.are_of(self), "pins of another cache");
        let count = Cell::new(0);
        let mut take = |block| {
            let Some(slot) = self.current(block) else { return false };
            let unlogged = self.slots.logged(slot) == Logged::No;
            if unlogged {
                // Step 2 of the module.
                self.dirty.mark(block);
                self.slots.set_logged(slot, Logged::InFlight);
                into.held.push(Held { block, slot });
                count.set(count.get() + 1);
            } else {
                // A mark that came late: another call found the version by an older mark of its block.
                self.slots.release(slot);
            }
            unlogged
        };
        let mut bits = 0;
        if let Some(from) = round.ahead() {
            let ahead = self.unlogged.take(from, u64::MAX, max, &mut take);
            bits += ahead.bits;
            round.comes_to(ahead.next);
        }
        if let Some(rest) = round.behind() {
            let behind = self.unlogged.take(rest.start, rest.end, max - count.get(), &mut take);
            bits += behind.bits;
            round.comes_to(behind.next);
        }
        // After the pins were made: until now `has_unlogged` said yes.
        self.unlogged.discount(bits);
        count.get()
    }

    /// The record with these versions is durable. Before anybody is told.
    pub fn logged(&self, pins: &Pins) {
        assert!(pins.are_of(self), "pins of another cache");
        for held in &pins.held {
            self.slots.set_logged(held.slot, Logged::Durable);
        }
    }

    /// The record with these versions was not written: they are unlogged again.
    pub fn unlog(&self, pins: &Pins) {
        assert!(pins.are_of(self), "pins of another cache");
        for held in &pins.held {
            self.slots.set_logged(held.slot, Logged::No);
            // If it is not current any more, the one that is has its own mark, and this one says nothing wrong.
            self.unlogged.mark(held.block);
        }
    }

    /// Takes the current versions of dirty blocks from `from` on, at most `max` (at least 1), ascending, and pins them: for
    /// write-back alone. Returns the block to go on from, or `None` when the pass has come to its end. A call may pin fewer
    /// than `max`, even none, and not be the last one.
    ///
    /// # Panics
    ///
    /// If `into` are pins of another cache.
    pub fn take_dirty(&self, from: u64, max: usize, into: &mut Pins) -> Option<u64> {
        assert!(into.are_of(self), "pins of another cache");
        if from == 0 && self.map.backed() > self.backed_max {
            self.map.trim();
        }
        let taken = self.dirty.take(from, u64::MAX, max.max(1), |block| {
            match self.current(block) {
                Some(slot) => into.held.push(Held { block, slot }),
                None => into.gone.push(block),
            }
            true
        });
        self.dirty.discount(taken.bits);
        taken.next
    }

    /// The lower storage did not take these versions: their blocks are dirty again.
    pub fn dirty_again(&self, pins: &Pins) {
        assert!(pins.are_of(self), "pins of another cache");
        for block in pins.held.iter().map(|held| held.block).chain(pins.gone.iter().copied()) {
            self.dirty.mark(block);
        }
    }

    /// The lower storage holds these versions, stably: those that nothing older can come back over leave the cache (step 3 of
    /// the [module](self)). `log_is_empty`: no record is durable or under way that recovery would look at. The pins are let
    /// go. Under the same lock as [`Cache::take_unlogged`].
    ///
    /// # Panics
    ///
    /// If these are pins of another cache.
    pub fn evict(&self, pins: &mut Pins, log_is_empty: bool) -> Evicted {
        assert!(pins.are_of(self), "pins of another cache");
        let mut evicted = Evicted::default();
        for &Held { block, slot } in &pins.held {
            if self.map.load(block) != slot + 1 {
                // A newer version has its own marks; a discarded one needs none.
                continue;
            }
            let may_go = match self.slots.logged(slot) {
                Logged::Durable => true,
                Logged::No => log_is_empty,
                Logged::InFlight => false,
            };
            if !may_go || !self.slots.is_installed(slot) {
                self.dirty.mark(block);
                evicted.kept += 1;
                continue;
            }
            // Before the map lets a version in that knows nothing of this one. The lower storage has it.
            self.slots.file().clear_current(slot);
            if self.map.remove(block, slot + 1) {
                // The map's reference; ours follows.
                self.slots.release(slot);
                self.unmark_unlogged(block);
                evicted.removed += 1;
            }
        }
        for &block in &pins.gone {
            self.unmark_unlogged(block);
        }
        pins.clear();
        evicted
    }

    /// Takes the mark of a block that has no version any more away; without this, marks of writes that nobody flushed would
    /// pile up until somebody does.
    fn unmark_unlogged(&self, block: u64) {
        if self.unlogged.unmark(block) {
            // A version that came in between may have found the mark and relied on it.
            if self.map.load(block) != 0 {
                self.unlogged.mark(block);
            }
            self.unlogged.discount(1);
        }
    }

    /// Forgets the blocks' versions: the guest has discarded them, and what they hold does not matter any more.
    pub fn drop_range(&self, blocks: Range<u64>) {
        self.map.walk(self.inside(blocks), |block| {
            while let Some(slot) = self.current(block) {
                self.slots.wait_installed(slot);
                // Before the map lets a version in that knows nothing of this one.
                self.slots.file().clear_current(slot);
                let removed = self.map.remove(block, slot + 1);
                self.slots.release(slot);
                if removed {
                    // The map's reference.
                    self.slots.release(slot);
                    if self.map.backed() > self.backed_max {
                        self.map.trim_at(block);
                    }
                    break;
                }
            }
            true
        });
    }

    /// Whether a version may be in no record: never false while one that was stored before the question is neither logged nor
    /// taken. False says nothing about records that are under way.
    pub fn has_unlogged(&self) -> bool {
        self.unlogged.marks() > 0
    }

    /// How full the cache is.
    pub fn figures(&self) -> CacheFigures {
        CacheFigures {
            data_slots: self.slots.file().data_slots(),
            data_slots_free: self.slots.data_slots_free(),
            zero_slots_free: self.slots.zero_slots_free(),
            dirty_blocks: self.dirty.marks(),
            unlogged_blocks: self.unlogged.marks(),
        }
    }

    /// Gives memory of the map back that no version needs. For write-back, when it has nothing else to do.
    pub fn trim(&self) {
        self.map.trim();
    }

    fn inside(&self, blocks: Range<u64>) -> Range<u64> {
        blocks.start..blocks.end.min(self.blocks.load(Acquire))
    }

    fn check(&self, block: u64) {
        let blocks = self.blocks.load(Acquire);
        assert!(block < blocks, "block {block} of a disk of {blocks}");
    }
}

/// What a file that may be a volume's memory holds. Changes nothing.
///
/// # Errors
///
/// It is not such a file, is of another layout or cut short; or it cannot be mapped (it must be open for reading and writing).
pub fn peek(file: impl AsFd) -> io::Result<Header> {
    Ok(MemoryFile::open(file)?.header())
}

/// An empty cache in `file`, which is on tmpfs: its versions are there for [`recover`] when the process is killed. Whatever the
/// file held is gone. All of its memory is taken at once: 4 KiB and 16 bytes for a slot with memory, 16 bytes for one without.
///
/// # Errors
///
/// As [`Cache::new`], or there is no room for the file.
#[allow(clippy::needless_pass_by_value)] // Whoever hands it over has no further use of it.
pub fn create(file: OwnedFd, options: &CacheOptions, volume: [u8; 16], epoch: u64) -> io::Result<Cache> {
    Cache::over(MemoryFile::create(&file, options, volume, epoch)?, options.capacity_bytes)
}

/// A cache with what a killed process left in `file`: the newest version of each block, all of them dirty and in no record.
/// Whether they belong to the volume as it is now, the caller has found out by [`peek`].
///
/// # Errors
///
/// As [`peek`] and [`Cache::new`], or the file is another volume's.
#[allow(clippy::needless_pass_by_value)] // As above.
pub fn recover(file: OwnedFd, volume: [u8; 16], capacity_bytes: u64) -> io::Result<Cache> {
    let memory = MemoryFile::open(&file)?;
    if memory.header().volume != volume {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory of another volume"));
    }
    memory.set_capacity(capacity_bytes);
    Cache::over(memory, capacity_bytes)
}

/// Blocks of a disk.
fn blocks_of(capacity_bytes: u64) -> u64 {
    capacity_bytes.div_ceil(BLOCK_BYTES as u64)
}

/// The slot that an entry of the map names.
fn slot_of(entry: u32) -> Option<u32> {
    entry.checked_sub(1)
}
