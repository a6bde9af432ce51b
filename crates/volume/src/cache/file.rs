//! The memory that outlives the process: slots' data, and what must be known of them to go on with it.
//!
//! A file on tmpfs, mapped shared: what a thread has stored there stays when the process is killed. One page of header, then a
//! record of 16 bytes for every slot, then (on a page) the 4096 bytes of each slot that has memory. Everything else that the
//! cache knows (map, marks, references, free lists) is made anew.
//!
//! A record with `current` set is the block's version. The writer who put it into the map sets the flag *after* that, then
//! takes the flag of the version it replaces away; until then the record names the replaced slot, which says who is newer if the
//! process ends in between. The next writer of the block waits for that, so there is never more than such a pair. Whoever removes a
//! version takes the flag away first. So at any moment the flagged versions are all that was acknowledged and is not in the
//! lower storage.
//!
//! The file never leaves the machine, and integers are in its own order. What is in it is believed only so far that no value
//! of it leads out of the mapping.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::sync::{AtomicU8, AtomicU32, AtomicU64};
use crate::{BLOCK_BYTES, SectorMask};

/// How large a cache is.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Size of the guest's disk in bytes; a last block that is not whole counts as one.
    pub capacity_bytes: u64,
    /// How many versions with memory (4096 bytes each) there may be; at least 1.
    pub data_slots: u32,
    /// How many versions that are zeroes, and need no memory, there may be beside them; at least 1.
    pub zero_slots: u32,
}

/// "VRINGMEM", read in the machine's order.
const MAGIC: u64 = u64::from_ne_bytes(*b"VRINGMEM");
const LAYOUT: u32 = 1;
/// No slot, in a record.
const NONE: u32 = u32::MAX;

/// Bytes of the first page that are written before it says that it is the head of a memory file. As long as it does not, nothing
/// that the file holds was promised to anybody.
pub const HEADER_REST: std::ops::Range<usize> = size_of::<AtomicU64>()..size_of::<Head>();

/// What the first page of a memory file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The volume whose memory it is.
    pub volume: [u8; 16],
    /// The opening of the volume whose memory it is.
    pub epoch: u64,
    /// The opening that is about to take the memory over; 0: none.
    pub next_epoch: u64,
    /// Size of the guest's disk.
    pub capacity_bytes: u64,
    /// The volume's generation when this was written last; 0: an older program does not say.
    pub generation: u64,
    /// What names the file that the volume is in, and tells it from a copy; zeroes: nothing is known of it.
    pub home: [u64; 2],
    /// How many blocks there are versions of.
    pub current: u64,
}

#[repr(C)]
struct Head {
    magic: AtomicU64,
    layout: AtomicU32,
    data_slots: AtomicU32,
    zero_slots: AtomicU32,
    reserved: AtomicU32,
    volume: [AtomicU64; 2],
    epoch: AtomicU64,
    next_epoch: AtomicU64,
    capacity_bytes: AtomicU64,
    generation: AtomicU64,
    home: [AtomicU64; 2],
}

#[repr(C)]
struct Record {
    block: AtomicU64,
    replaces: AtomicU32,
    sectors: AtomicU8,
    current: AtomicU8,
    reserved: [AtomicU8; 2],
}

/// Where the parts lie.
struct Layout {
    pages: usize,
    bytes: usize,
}

impl Layout {
    fn new(data_slots: u32, zero_slots: u32) -> io::Result<Layout> {
        // A map entry is a slot plus one; half of its range is far beyond any memory.
        let total = u64::from(data_slots) + u64::from(zero_slots);
        if total > 1 << 31 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than 2^31 slots"));
        }
        let page = BLOCK_BYTES as u64;
        let pages = page + (total * size_of::<Record>() as u64).next_multiple_of(page);
        let bytes = pages + u64::from(data_slots) * page;
        let index = |bytes: u64| usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory));
        Ok(Layout { pages: index(pages)?, bytes: index(bytes)? })
    }
}

/// The mapping of a memory file.
pub(super) struct MemoryFile {
    base: NonNull<u8>,
    mapped: usize,
    pages: usize,
    data_slots: u32,
    zero_slots: u32,
}

// SAFETY: the mapping belongs to no thread; header and records are atomics, pages are handed out as pointers.
unsafe impl Send for MemoryFile {}
// SAFETY: as above.
unsafe impl Sync for MemoryFile {}

impl MemoryFile {
    /// Makes the file one without versions, whatever it was. It is as large as it will be at once, so that no store into it can
    /// find the memory gone.
    ///
    /// # Errors
    ///
    /// There is no room for it, or it cannot be mapped.
    pub(super) fn create(
        file: &OwnedFd,
        options: &CacheOptions,
        volume: [u8; 16],
        epoch: u64,
    ) -> io::Result<MemoryFile> {
        let layout = Layout::new(options.data_slots.max(1), options.zero_slots.max(1))?;
        // Killed from here on, it is a file of zeroes, and so it is blank.
        ftruncate(file, 0)?;
        fallocate(file, FallocateFlags::empty(), 0, layout.bytes as u64)?;
        MemoryFile::begin(file, options, volume, epoch)
    }

    /// Memory without a name, which comes with the first touch.
    ///
    /// # Errors
    ///
    /// As [`MemoryFile::create`].
    pub(super) fn anonymous(options: &CacheOptions) -> io::Result<MemoryFile> {
        let layout = Layout::new(options.data_slots.max(1), options.zero_slots.max(1))?;
        let file = memfd_create(c"volume", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, layout.bytes as u64)?;
        MemoryFile::begin(&file, options, [0; 16], 0)
    }

    fn begin(file: &OwnedFd, options: &CacheOptions, volume: [u8; 16], epoch: u64) -> io::Result<MemoryFile> {
        let (data_slots, zero_slots) = (options.data_slots.max(1), options.zero_slots.max(1));
        let memory = MemoryFile::map(file, data_slots, zero_slots)?;
        let head = memory.head();
        head.layout.store(LAYOUT, Relaxed);
        head.data_slots.store(data_slots, Relaxed);
        head.zero_slots.store(zero_slots, Relaxed);
        let (halves, _) = volume.as_chunks::<8>();
        for (to, half) in head.volume.iter().zip(halves) {
            to.store(u64::from_ne_bytes(*half), Relaxed);
        }
        head.epoch.store(epoch, Relaxed);
        head.capacity_bytes.store(options.capacity_bytes, Relaxed);
        // Last: with it the file is one of ours.
        head.magic.store(MAGIC, Release);
        Ok(memory)
    }

    /// The file as it is.
    ///
    /// # Errors
    ///
    /// It is not a memory file of this layout, or has been cut short; or it cannot be mapped.
    pub(super) fn open(file: impl AsFd) -> io::Result<MemoryFile> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if size < BLOCK_BYTES as u64 {
            return Err(invalid("not the memory of a volume"));
        }
        // The header alone, to know the rest.
        let (data_slots, zero_slots) = {
            let first = MemoryFile::map(&file, 0, 0)?;
            let head = first.head();
            if head.magic.load(Acquire) != MAGIC {
                return Err(invalid("not the memory of a volume"));
            }
            if head.layout.load(Relaxed) != LAYOUT {
                return Err(invalid("the memory of a volume, left by another version of vringd"));
            }
            (head.data_slots.load(Relaxed), head.zero_slots.load(Relaxed))
        };
        let layout = Layout::new(data_slots, zero_slots).map_err(|_| invalid("the memory of a volume, damaged"))?;
        if size < layout.bytes as u64 {
            return Err(invalid("the memory of a volume, cut short"));
        }
        MemoryFile::map(&file, data_slots, zero_slots)
    }

    /// Maps header, records and pages for so many slots, which the file has room for.
    fn map(file: impl AsFd, data_slots: u32, zero_slots: u32) -> io::Result<MemoryFile> {
        let layout = Layout::new(data_slots, zero_slots)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the kernel has room for it.
        let base = unsafe { mmap(std::ptr::null_mut(), layout.bytes, access, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MemoryFile { base, mapped: layout.bytes, pages: layout.pages, data_slots, zero_slots })
    }

    /// What the first page says, and how many blocks there are versions of.
    pub(super) fn header(&self) -> Header {
        let head = self.head();
        let mut volume = [0; 16];
        for (half, from) in volume.as_chunks_mut::<8>().0.iter_mut().zip(&head.volume) {
            *half = from.load(Relaxed).to_ne_bytes();
        }
        Header {
            volume,
            epoch: head.epoch.load(Relaxed),
            next_epoch: head.next_epoch.load(Relaxed),
            capacity_bytes: head.capacity_bytes.load(Relaxed),
            generation: head.generation.load(Relaxed),
            home: [head.home[0].load(Relaxed), head.home[1].load(Relaxed)],
            current: self.survivors().len() as u64,
        }
    }

    pub(super) fn set_epoch(&self, epoch: u64) {
        self.head().epoch.store(epoch, Release);
    }

    pub(super) fn set_next_epoch(&self, epoch: u64) {
        self.head().next_epoch.store(epoch, Release);
    }

    pub(super) fn set_generation(&self, generation: u64) {
        self.head().generation.store(generation, Release);
    }

    pub(super) fn set_home(&self, home: [u64; 2]) {
        for (to, half) in self.head().home.iter().zip(home) {
            to.store(half, Release);
        }
    }

    pub(super) fn set_capacity(&self, capacity_bytes: u64) {
        self.head().capacity_bytes.store(capacity_bytes, Release);
    }

    pub(super) fn data_slots(&self) -> u32 {
        self.data_slots
    }

    pub(super) fn total_slots(&self) -> u32 {
        self.data_slots + self.zero_slots
    }

    /// Versions of blocks, one a block, as (block, slot), ascending: of two, the one that was to replace the other.
    pub(super) fn survivors(&self) -> Vec<(u64, u32)> {
        let mut current: Vec<(u64, u32)> = (0..self.total_slots())
            .filter(|&slot| self.is_current(slot) && !self.sectors(slot).is_empty())
            .map(|slot| (self.record(slot).block.load(Relaxed), slot))
            .collect();
        current.sort_unstable();
        current
            .chunk_by(|left, right| left.0 == right.0)
            .filter_map(|versions| {
                let replaced =
                    |slot| versions.iter().any(|&(_, other)| self.record(other).replaces.load(Relaxed) == slot);
                // A file that we did not write might have them go round in a circle.
                versions.iter().find(|&&(_, slot)| !replaced(slot)).or(versions.first()).copied()
            })
            .collect()
    }

    /// Keeps `slot` alone for its block, as a version that replaces none.
    pub(super) fn settle(&self, slot: u32) {
        self.record(slot).replaces.store(NONE, Release);
    }

    /// Says what the slot's version is to be, which is not current yet; `replaces`: the slot of the version before it.
    pub(super) fn describe(&self, slot: u32, block: u64, sectors: SectorMask, replaces: Option<u32>) {
        let record = self.record(slot);
        record.block.store(block, Relaxed);
        record.sectors.store(sectors.0, Relaxed);
        record.replaces.store(replaces.unwrap_or(NONE), Relaxed);
    }

    /// Sets the flag: after what the version consists of.
    pub(super) fn set_current(&self, slot: u32) {
        self.record(slot).current.store(1, Release);
    }

    pub(super) fn clear_current(&self, slot: u32) {
        self.record(slot).current.store(0, Release);
    }

    pub(super) fn is_current(&self, slot: u32) -> bool {
        self.record(slot).current.load(Acquire) != 0
    }

    /// Which sectors the version has.
    pub(super) fn sectors(&self, slot: u32) -> SectorMask {
        SectorMask(self.record(slot).sectors.load(Relaxed))
    }

    /// The memory of a slot: 4096 bytes, aligned to as many; `None` for one that stands for zeroes.
    pub(super) fn page(&self, slot: u32) -> Option<*mut u8> {
        (slot < self.data_slots).then(|| {
            // SAFETY: the layout has so many pages from `pages` on, all in the mapping.
            unsafe { self.base.add(self.pages + slot as usize * BLOCK_BYTES) }.as_ptr()
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a page for it and is aligned to one; it is made of atomics, so that any bytes are a value
        // and anybody may change them.
        unsafe { self.base.cast().as_ref() }
    }

    fn record(&self, slot: u32) -> &Record {
        assert!(slot < self.total_slots(), "slot {slot} of {}", self.total_slots());
        // SAFETY: the layout has a record for every slot behind the first page, at a multiple of its size; made of atomics, as
        // above.
        unsafe { self.base.add(BLOCK_BYTES + slot as usize * size_of::<Record>()).cast().as_ref() }
    }

    /// A copy of all of it, as a killed process would leave it.
    #[cfg(test)]
    pub(super) fn left_behind(&self) -> OwnedFd {
        let file = memfd_create(c"left", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, self.mapped as u64).unwrap();
        // SAFETY: our mapping; the test has made sure that nobody stores into it meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.mapped) };
        assert_eq!(rustix::io::pwrite(&file, bytes, 0).unwrap(), self.mapped);
        file
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody borrows any more; `Pins` keep the cache, and with it this.
        let _ignored = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}
