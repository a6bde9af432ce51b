//! Mappings that outlive their file: when a page of one is gone, zeroed memory takes the place of the whole mapping.

use crate::handler;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Slots of one block. A guest has a handful of memory regions, and at most some hundreds.
const SLOTS: usize = 64;

/// The first block of slots; a block that is full leads to another one. The handler may wait for nobody, so that slots
/// are never moved nor freed.
static FIRST: Block = Block::new();
/// Held by whoever takes or frees a slot.
static WRITING: Mutex<()> = Mutex::new(());
/// How many watched mappings have been replaced.
static LOST: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct Block {
    slots: [Slot; SLOTS],
    next: OnceLock<&'static Block>,
}

/// One watched mapping.
#[derive(Debug)]
struct Slot {
    /// Odd while the two addresses change. The handler looks for a mapping that is in use, whose slot does not change.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0: nobody uses the slot.
    end: AtomicUsize,
    gone: AtomicBool,
}

impl Block {
    const fn new() -> Block {
        Block { slots: [const { Slot::new() }; SLOTS], next: OnceLock::new() }
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
        }
    }

    fn is_free(&self) -> bool {
        self.end.load(Ordering::Relaxed) == 0
    }

    /// Changes the addresses. One writer at a time.
    fn set(&self, start: usize, end: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Start and end of the mapping that holds `address`, if it is this one.
    fn holding(&self, address: usize) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let stable = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        (stable && (start..end).contains(&address)).then_some((start, end))
    }
}

/// A mapping that survives the loss of its pages.
///
/// Whoever shares memory by a file can shorten that file, and then an access to the mapping is a SIGBUS. In a watched
/// mapping the access, and every later one, meets zeroed memory of this process alone instead, and [`Watch::is_gone`] says so.
/// All of the mapping is replaced, also where it still had pages: what its owner does to others with half a mapping is
/// nobody's concern any more. Dropping the value ends the watch, which has to happen before the mapping is unmapped.
#[derive(Debug)]
pub struct Watch(&'static Slot);

impl Watch {
    /// Watches the `len` bytes at `start`. `None` where no handler can be installed, or for a range that is none.
    ///
    /// The handler stays for ever; [`Guard::install`](crate::Guard::install) says what follows from that.
    ///
    /// # Safety
    /// The range is a whole mapping, or whole pages of one, of a size that the kernel maps (a multiple of the huge page
    /// size for huge pages). Until the watch ends it is there, it is readable and writable memory that no Rust reference relies
    /// on, and it may become other memory of that kind at any time.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Option<Watch> {
        let start = start as usize;
        let end = start.checked_add(len).filter(|end| *end > start)?;
        if !handler::install() {
            return None;
        }
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = free_slot();
        slot.gone.store(false, Ordering::Relaxed);
        slot.set(start, end);
        Some(Watch(slot))
    }

    /// Whether the mapping was replaced.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.gone.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.set(0, 0);
    }
}

/// How many watched mappings of this process have been replaced so far. One load: whoever remembers the number need not
/// look at each mapping.
#[inline]
#[must_use]
pub fn lost() -> usize {
    LOST.load(Ordering::Relaxed)
}

fn free_slot() -> &'static Slot {
    let mut block = &FIRST;
    loop {
        if let Some(slot) = block.slots.iter().find(|slot| slot.is_free()) {
            return slot;
        }
        block = block.next.get_or_init(|| Box::leak(Box::new(Block::new())));
    }
}

fn slot_of(address: usize) -> Option<(&'static Slot, usize, usize)> {
    let mut block = &FIRST;
    loop {
        let found = block.slots.iter().find_map(|slot| slot.holding(address).map(|(start, end)| (slot, start, end)));
        if found.is_some() {
            return found;
        }
        block = block.next.get()?;
    }
}

/// In the handler of SIGBUS: puts zeroed memory in the place of the watched mapping that holds `address`. False when there
/// is none, or when the kernel has no memory for it.
pub(crate) fn replace(address: usize) -> bool {
    let Some((slot, start, end)) = slot_of(address) else {
        return false;
    };
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the thread that was interrupted uses this mapping, so that its watch has not ended, and whoever made that
    // has promised that it may become other memory. A system call, as handlers may make them.
    let mapped = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(start),
            end - start,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    slot.gone.store(true, Ordering::Release);
    LOST.fetch_add(1, Ordering::Relaxed);
    true
}
