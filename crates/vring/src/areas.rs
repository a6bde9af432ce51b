//! The three areas of a split ring in our address space, and the only accesses to them.
//!
//! Both sides write here at once, so every access is one atomic or volatile operation, and a value is judged after it
//! has been loaded into a local: what the guest writes next cannot change a decision.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::error::{Area, RingError};
use crate::layout::Layout;
use crate::memory::Memory;

/// Bytes of one descriptor (virtio 1.3, section 2.7.5).
pub(crate) const DESCRIPTOR_BYTES: usize = 16;
/// `struct virtq_avail` (2.7.6): flags, idx, ring\[size\], used_event.
const AVAIL_IDX: usize = 2;
const AVAIL_RING: usize = 4;
/// `struct virtq_used` (2.7.8): flags, idx, ring\[size\] of 8 bytes, avail_event.
const USED_IDX: usize = 2;
const USED_RING: usize = 4;
const USED_ELEMENT_BYTES: usize = 8;
/// The event fields behind both rings exist only with EVENT_IDX (2.7.7, 2.7.10).
const EVENT_BYTES: usize = 2;

/// One descriptor, read once. All fields are what the guest wrote, unchecked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// A word at any address: indirect tables need no alignment.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Word(u64);

impl Descriptor {
    /// Reads a descriptor with exactly two loads.
    ///
    /// # Safety
    /// 16 bytes at `ptr` are readable.
    #[inline]
    pub(crate) unsafe fn read(ptr: *const u8) -> Descriptor {
        let words = ptr.cast::<Word>();
        // SAFETY: the caller vouches for 16 bytes, and `Word` needs no alignment.
        let (low, high) = unsafe { (words.read_volatile(), words.add(1).read_volatile()) };
        Descriptor::from_words(u64::from_le(low.0), u64::from_le(high.0))
    }

    #[inline]
    fn from_words(low: u64, high: u64) -> Descriptor {
        Descriptor { addr: low, len: high as u32, flags: (high >> 32) as u16, next: (high >> 48) as u16 }
    }

    /// A descriptor from bytes that were copied out of guest memory.
    pub(crate) fn from_bytes(bytes: [u8; DESCRIPTOR_BYTES]) -> Descriptor {
        let both = u128::from_le_bytes(bytes);
        Descriptor::from_words(both as u64, (both >> 64) as u64)
    }
}

/// The areas of one ring. Valid while the memory table it was made from lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    /// The size is a power of two, so this cuts a running index to a slot.
    mask: usize,
    /// Bytes behind the elements of the used ring.
    event: u8,
}

impl Areas {
    /// Checks size, alignment and place of the areas and translates them.
    pub(crate) fn new(memory: &Memory, layout: &Layout) -> Result<Areas, RingError> {
        // 2.7: the queue size is always a power of 2, at most 32768. (A u16's largest power of two is that.)
        if !layout.size.is_power_of_two() {
            return Err(RingError::BadSize { size: layout.size });
        }
        let size = usize::from(layout.size);
        let event = if layout.event_idx { EVENT_BYTES } else { 0 };
        let place = |area, guest_addr, len, align| place(memory, area, guest_addr, len, align);
        // The alignments are those of the table in 2.7.
        Ok(Areas {
            desc: place(Area::Descriptors, layout.desc, DESCRIPTOR_BYTES * size, 16)?,
            avail: place(Area::Available, layout.avail, AVAIL_RING + 2 * size + event, 2)?,
            used: place(Area::Used, layout.used, USED_RING + USED_ELEMENT_BYTES * size + event, 4)?,
            mask: size - 1,
            event: event as u8,
        })
    }

    /// Bytes of one element of the used ring.
    pub(crate) const USED_ELEMENT: u64 = USED_ELEMENT_BYTES as u64;
    /// Bytes of each of the used ring's other fields.
    pub(crate) const USED_FIELD: u64 = 2;
    /// Where in the used ring its flags are.
    pub(crate) const USED_FLAGS_AT: u64 = 0;
    /// Where in the used ring its index is.
    pub(crate) const USED_IDX_AT: u64 = USED_IDX as u64;

    /// Bytes of the used ring.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.avail_event_at() + u64::from(self.event)
    }

    /// Where in the used ring the element for the running index `index` is.
    pub(crate) fn used_element_at(&self, index: u16) -> u64 {
        (USED_RING + USED_ELEMENT_BYTES * (usize::from(index) & self.mask)) as u64
    }

    /// Where in the used ring the device's event field is, with EVENT_IDX.
    pub(crate) fn avail_event_at(&self) -> u64 {
        (USED_RING + USED_ELEMENT_BYTES * (self.mask + 1)) as u64
    }

    /// Descriptor `index`; the caller has checked that it is below the size.
    #[inline]
    pub(crate) fn descriptor(&self, index: u16) -> Descriptor {
        debug_assert!(usize::from(index) <= self.mask);
        let slot = usize::from(index) & self.mask;
        // SAFETY: `slot` is below the size, and `new` found the whole table inside memory.
        unsafe { Descriptor::read(self.desc.as_ptr().add(slot * DESCRIPTOR_BYTES)) }
    }

    /// The head descriptor of the running index `index`, as a hint only: neither the entry nor the descriptor is judged,
    /// both may change before they are popped, and the mask keeps the access inside the table whatever they hold.
    #[inline]
    pub(crate) fn peek(&self, index: u16) -> Descriptor {
        // SAFETY: as in `descriptor`.
        unsafe { Descriptor::read(self.peek_ptr(index)) }
    }

    /// Asks the CPU for the head descriptor of the running index `index`.
    #[inline]
    pub(crate) fn prefetch_head(&self, index: u16) {
        prefetch(self.peek_ptr(index));
    }

    #[inline]
    fn peek_ptr(&self, index: u16) -> *const u8 {
        let slot = usize::from(self.avail_entry(index)) & self.mask;
        // SAFETY: `slot` is below the size, and `new` found the whole table inside memory.
        unsafe { self.desc.as_ptr().add(slot * DESCRIPTOR_BYTES) }
    }

    #[inline]
    pub(crate) fn avail_flags(&self) -> u16 {
        u16::from_le(self.avail_u16(0).load(Ordering::Relaxed))
    }

    /// Acquire: entries and descriptors that the driver wrote before it moved the index (2.7.13.3) are visible after.
    #[inline]
    pub(crate) fn avail_idx(&self) -> u16 {
        u16::from_le(self.avail_u16(AVAIL_IDX).load(Ordering::Acquire))
    }

    /// The available ring's entry for the running index `index`.
    #[inline]
    pub(crate) fn avail_entry(&self, index: u16) -> u16 {
        let slot = usize::from(index) & self.mask;
        u16::from_le(self.avail_u16(AVAIL_RING + 2 * slot).load(Ordering::Relaxed))
    }

    /// Only with EVENT_IDX.
    #[inline]
    pub(crate) fn used_event(&self) -> u16 {
        let at = AVAIL_RING + 2 * (self.mask + 1);
        u16::from_le(self.avail_u16(at).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn used_idx(&self) -> u16 {
        u16::from_le(self.used_u16(USED_IDX).load(Ordering::Relaxed))
    }

    /// Release: elements and data that we wrote before are visible to a driver that sees the index (2.7.8.2).
    #[inline]
    pub(crate) fn set_used_idx(&self, index: u16) {
        self.used_u16(USED_IDX).store(index.to_le(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn set_used_flags(&self, flags: u16) {
        self.used_u16(0).store(flags.to_le(), Ordering::Relaxed);
    }

    /// Only with EVENT_IDX.
    #[inline]
    pub(crate) fn set_avail_event(&self, index: u16) {
        let at = USED_RING + USED_ELEMENT_BYTES * (self.mask + 1);
        self.used_u16(at).store(index.to_le(), Ordering::Relaxed);
    }

    /// Writes the used ring's element for the running index `index`.
    #[inline]
    pub(crate) fn set_used_element(&self, index: u16, head: u16, written: u32) {
        let slot = usize::from(index) & self.mask;
        // SAFETY: `slot` is below the size, `new` found the whole ring inside memory and aligned to 4, and an element
        // starts 4 bytes behind a multiple of 8.
        let (id, len) = unsafe {
            let element = self.used.as_ptr().add(USED_RING + USED_ELEMENT_BYTES * slot);
            let words = element.cast::<u32>();
            (AtomicU32::from_ptr(words), AtomicU32::from_ptr(words.add(1)))
        };
        id.store(u32::from(head).to_le(), Ordering::Relaxed);
        len.store(written.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn avail_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: every offset used above lies inside the area and is even, and `new` checked place and alignment.
        unsafe { AtomicU16::from_ptr(self.avail.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn used_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as in `avail_u16`.
        unsafe { AtomicU16::from_ptr(self.used.as_ptr().add(offset).cast()) }
    }
}

/// Asks the CPU to bring the line at `ptr` into its cache; nothing where the compiler has no stable way to say so.
#[inline]
pub(crate) fn prefetch(ptr: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ptr;
}

/// Finds an area in memory; it must lie in one region, because it is addressed as one range from then on.
fn place(memory: &Memory, area: Area, guest_addr: u64, len: usize, align: u64) -> Result<NonNull<u8>, RingError> {
    let len = len as u64;
    let misaligned = RingError::Misaligned { area, guest_addr, align };
    if !guest_addr.is_multiple_of(align) {
        return Err(misaligned);
    }
    match memory.translate(guest_addr, len, &mut 0) {
        Some((ptr, found)) if found == len => {
            // A frontend that maps regions at odd places could misalign ours although the guest's is fine.
            if (ptr.as_ptr() as u64).is_multiple_of(align) { Ok(ptr) } else { Err(misaligned) }
        }
        _ => Err(RingError::AreaOutsideMemory { area, guest_addr, len }),
    }
}
