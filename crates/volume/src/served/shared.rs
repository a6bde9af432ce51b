//! What all rings of a volume and its write-back thread share.

use super::batch::Batch;
use super::commit::Committer;
use super::figures::{Counters, add};
use super::line::{Line, Need};
use super::options::{Barriers, LoggedOptions};
use super::passes::Passes;
use super::poke::{Poke, Wish};
use crate::cache::{Cache, Evicted, Pins};
use crate::format::{Tail, Uuid};
use crate::{BLOCK_BYTES, SectorMask};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use storage::kit::{Jobs, WORK};
use storage::{Storage, StorageError};
use values::SyncMode;

/// Where things lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Byte of the lower storage where the disk begins: block n lies `n * 4096` bytes behind it.
    pub(super) data_offset: u64,
    /// Byte of the log's storage where its records begin.
    pub(super) log_offset: u64,
    /// Bytes for records: a multiple of 4096.
    pub(super) log_bytes: u64,
    /// Seeds the records' checksums.
    pub(super) log_uuid: Uuid,
}

/// What an opened volume consists of.
pub(super) struct Parts {
    /// Contents that are not written back yet; nothing of it is in the log.
    pub(super) cache: Arc<Cache>,
    /// Where the disk's blocks are written back to.
    pub(super) lower: Arc<dyn Storage>,
    /// Where records go: the same as `lower` unless the log is on a storage of its own.
    pub(super) log: Arc<dyn Storage>,
    /// Where superblocks are: the same as `lower` unless the disk is apart, and then the same as `log`.
    pub(super) home: Arc<dyn Storage>,
    pub(super) layout: Layout,
    /// Size of the disk, in bytes.
    pub(super) capacity_bytes: u64,
    /// Of this opening, as the superblock has it.
    pub(super) epoch: u64,
    /// Of the superblock: the log is empty there.
    pub(super) tail: Tail,
}

/// See the module.
pub(super) struct Shared {
    pub(super) cache: Arc<Cache>,
    pub(super) lower: Arc<dyn Storage>,
    pub(super) log: Arc<dyn Storage>,
    pub(super) home: Arc<dyn Storage>,
    pub(super) layout: Layout,
    pub(super) barriers: Barriers,
    pub(super) poke: Poke,
    pub(super) figures: Counters,
    pub(super) committer: Committer,
    pub(super) line: Line,
    pub(super) passes: Passes,
    /// Long copies into the cache and out of it.
    pub(super) jobs: Jobs,
    pub(super) epoch: u64,
    /// See [`Shared::told_beside`].
    pub(super) told_beside: AtomicU64,
    capacity_bytes: AtomicU64,
    sync: AtomicU8,
    /// Why the volume serves nothing any more.
    dead: OnceLock<String>,
    dirty_bytes_max: u64,
    half_of_slots: u32,
}

impl Shared {
    pub(super) fn new(parts: Parts, options: &LoggedOptions) -> Shared {
        let figures = parts.cache.figures();
        Shared {
            committer: Committer::new(parts.layout.log_bytes, parts.tail),
            line: Line::new(),
            passes: Passes::default(),
            jobs: Jobs::on(&WORK),
            poke: Poke::default(),
            figures: Counters::default(),
            barriers: options.barriers,
            epoch: parts.epoch,
            told_beside: AtomicU64::default(),
            capacity_bytes: AtomicU64::new(parts.capacity_bytes),
            sync: AtomicU8::new(to_bits(options.sync)),
            dead: OnceLock::new(),
            dirty_bytes_max: u64::from(figures.data_slots) * BLOCK_BYTES as u64,
            half_of_slots: figures.data_slots / 2,
            cache: parts.cache,
            lower: parts.lower,
            log: parts.log,
            home: parts.home,
            layout: parts.layout,
        }
    }

    /// Size of the disk, in bytes.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    /// A larger size, once everything behind it has grown.
    pub(super) fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Ordering::Release);
    }

    pub(super) fn sync_mode(&self) -> SyncMode {
        from_bits(self.sync.load(Ordering::Relaxed))
    }

    pub(super) fn set_sync_mode(&self, mode: SyncMode) {
        self.sync.store(to_bits(mode), Ordering::Relaxed);
    }

    /// A batch to fill.
    pub(super) fn batch(&self) -> Box<Batch> {
        let new = || Box::new(Batch::new(&self.cache, &self.layout.log_uuid, self.epoch, self.layout.log_bytes));
        self.committer.spare().unwrap_or_else(new)
    }

    /// Memory for dirty data, in bytes.
    pub(super) fn cache_bytes(&self) -> u64 {
        self.dirty_bytes_max
    }

    /// Bytes in memory that are not written back, about.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.cache.figures().dirty_blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// Whether the disk is a storage of its own, all of it.
    pub(super) fn is_apart(&self) -> bool {
        !Arc::ptr_eq(&self.home, &self.lower)
    }

    /// Writers or a commit wait for what only a sweep can give them.
    pub(super) fn short_of_room(&self) -> bool {
        self.line.len() > 0 || self.committer.is_parked()
    }

    pub(super) fn wrote_back(&self, bytes: u64) {
        add(&self.figures.written_back_bytes, bytes);
    }

    pub(super) fn write_back_failed(&self, error: &StorageError) {
        add(&self.figures.write_back_errors, 1);
        tracing::debug!(%error, "a write-back failed and will be tried again");
    }

    /// A flush of this storage, that of the data or of the superblocks, has failed. Where the log lies there too, a page cache may have
    /// told it of a log write, and tells nobody a second time.
    pub(super) fn flush_failed(&self, of: &Arc<dyn Storage>) {
        if Arc::ptr_eq(of, &self.log) && !of.describe().direct {
            self.committer.doubt(libc::EIO);
            self.poke.ask(Wish::Mend);
        }
    }

    /// Somebody beside the write-back thread has failed to make something stable on the storage of the data or of the superblocks. A page cache may have
    /// told them what write-back has lost, and tells nobody a second time.
    pub(super) fn told_beside(&self) {
        self.told_beside.fetch_add(1, Ordering::SeqCst);
    }

    /// As [`told_beside`](Self::told_beside), by a write to the log.
    pub(super) fn log_write_failed(&self) {
        if Arc::ptr_eq(&self.home, &self.log) {
            self.told_beside();
        }
    }

    pub(super) fn sweep_ended(&self) {
        add(&self.figures.sweeps, 1);
    }

    /// Takes what is on stable lower storage out of the cache, as far as the eviction rule lets it go, and calls parked
    /// writers. For the write-back thread.
    pub(super) fn settle(&self, pins: &mut Pins) -> Evicted {
        let evicted = self.committer.evict(&self.cache, pins);
        self.slots_freed();
        evicted
    }

    /// To be called by whoever may have freed slots: lets that many parked writers go on.
    pub(super) fn slots_freed(&self) {
        if !self.line.wanted() {
            return;
        }
        let free = self.cache.figures();
        let called = self.line.call(free.data_slots_free as usize, free.zero_slots_free as usize);
        for writer in called {
            writer.complete(0);
        }
    }

    /// A writer found no slot: it stands in line and the write-back thread hears of it.
    pub(super) fn park_writer(&self, need: Need, again: bool, writer: engine::Reply) {
        add(&self.figures.parked_writers, u64::from(!again));
        self.line.park(need, again, writer);
        self.poke.ask(Wish::Parked);
        if self.is_dead() {
            return self.answer_parked_writers();
        }
        self.slots_freed();
    }

    /// Something was stored: tells the write-back thread when that gives it a reason to look, which costs a few loads when not.
    pub(super) fn changed(&self) {
        self.poke.first_change();
        if self.is_half_dirty() {
            self.poke.ask_once(Wish::Dirty);
        }
    }

    /// Whether more than half of the slots are in use: half of them are for those who write while the other half is written back.
    pub(super) fn is_half_dirty(&self) -> bool {
        self.cache.figures().data_slots_free < self.half_of_slots
    }

    /// Commits so far.
    pub(super) fn commits(&self) -> u64 {
        self.figures.commits.load(Ordering::Relaxed)
    }

    /// Why the volume serves nothing any more, if so.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.get().is_some()
    }

    /// The reason.
    pub(super) fn death(&self) -> Option<&str> {
        self.dead.get().map(String::as_str)
    }

    /// From now on every request gets an error; those that are parked get it now.
    pub(super) fn fail(&self, reason: &str) {
        if self.dead.set(reason.to_owned()).is_ok() {
            tracing::error!(reason, "the volume has failed: every request gets an error from now on");
        }
        self.committer.fail();
        self.passes.end(-libc::EIO);
        self.answer_parked_writers();
    }

    fn answer_parked_writers(&self) {
        for writer in self.line.call(usize::MAX, usize::MAX) {
            writer.complete(-libc::EIO);
        }
    }
}

/// The blocks that a range touches, one by one: number, sectors, and where the range's bytes for them begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) block: u64,
    pub(super) sectors: SectorMask,
    /// First byte of those sectors, in the block.
    pub(super) start: usize,
    /// Bytes of those sectors, which are neighbours.
    pub(super) len: usize,
}

impl Part {
    /// The part of `offset..end` (multiples of 512) that lies in its first block; `None` for an empty range.
    pub(super) fn first(offset: u64, end: u64) -> Option<Part> {
        if offset >= end {
            return None;
        }
        let block_bytes = BLOCK_BYTES as u64;
        let start = (offset % block_bytes) as usize;
        let len = (end - offset).min(block_bytes - start as u64) as usize;
        Some(Part { block: offset / block_bytes, sectors: SectorMask::span(start / 512, len / 512), start, len })
    }
}

fn to_bits(mode: SyncMode) -> u8 {
    match mode {
        SyncMode::Standard => 0,
        SyncMode::Always => 1,
        SyncMode::Disabled => 2,
    }
}

/// Only ever given what [`to_bits`] made; anything else is the careful mode.
fn from_bits(bits: u8) -> SyncMode {
    match bits {
        0 => SyncMode::Standard,
        2 => SyncMode::Disabled,
        _ => SyncMode::Always,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_fall_apart_into_blocks() {
        let mut parts = Vec::new();
        let (mut at, end) = (3584, 3584 + 512 + 4096 + 1024);
        while let Some(part) = Part::first(at, end) {
            at += part.len as u64;
            parts.push((part.block, part.sectors.0, part.start, part.len));
        }
        assert_eq!(parts, [(0, 0x80, 3584, 512), (1, 0xff, 0, 4096), (2, 0x03, 0, 1024)]);
        assert_eq!(Part::first(512, 512), None);
    }
}
