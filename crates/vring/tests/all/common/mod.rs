//! The driver's side of a split ring, as plain writes to guest memory.

use std::ptr::copy_nonoverlapping;
use std::sync::Arc;

use vring::{Layout, Mapping, Memory, Region, Segment};

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A region with a mapping of its own.
pub(crate) fn region(guest_addr: u64, len: u64) -> Region {
    Region {
        guest_addr,
        user_addr: guest_addr.wrapping_add(0x7000_0000_0000),
        len,
        mapping: Arc::new(Mapping::anonymous(len as usize).unwrap()),
        offset: 0,
    }
}

pub(crate) fn memory(ranges: &[(u64, u64)]) -> Arc<Memory> {
    let regions = ranges.iter().map(|&(addr, len)| region(addr, len));
    Arc::new(Memory::new(regions.collect()).unwrap())
}

pub(crate) fn put(memory: &Memory, guest_addr: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let left = (bytes.len() - done) as u64;
        let at = guest_addr + done as u64;
        let (ptr, len) = memory.translate(at, left, &mut 0).expect("test address");
        // SAFETY: `translate` found `len` bytes, at most what is left of `bytes`.
        unsafe { copy_nonoverlapping(bytes.as_ptr().add(done), ptr.as_ptr(), len as usize) };
        done += len as usize;
    }
}

pub(crate) fn get(memory: &Memory, guest_addr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        let at = guest_addr + done as u64;
        let (ptr, n) = memory.translate(at, (len - done) as u64, &mut 0).expect("test address");
        // SAFETY: `translate` found `n` bytes, at most what is left of `bytes`.
        unsafe { copy_nonoverlapping(ptr.as_ptr(), bytes.as_mut_ptr().add(done), n as usize) };
        done += n as usize;
    }
    bytes
}

pub(crate) fn put_u16(memory: &Memory, guest_addr: u64, value: u16) {
    put(memory, guest_addr, &value.to_le_bytes());
}

pub(crate) fn get_u16(memory: &Memory, guest_addr: u64) -> u16 {
    u16::from_le_bytes(get(memory, guest_addr, 2).try_into().unwrap())
}

/// One descriptor as bytes.
pub(crate) fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// Where a segment lies for the guest.
pub(crate) fn guest_addr(memory: &Memory, segment: &Segment) -> u64 {
    let at = segment.ptr() as u64;
    let found = memory.regions().iter().find_map(|region| {
        let start = region.mapping.as_ptr() as u64 + region.offset as u64;
        let inside = at >= start && at + segment.len() as u64 <= start + region.len;
        inside.then(|| region.guest_addr + (at - start))
    });
    found.expect("a segment inside memory")
}

/// Segments as guest addresses and lengths.
pub(crate) fn ranges(memory: &Memory, segments: &[Segment]) -> Vec<(u64, u64)> {
    segments.iter().map(|segment| (guest_addr(memory, segment), segment.len() as u64)).collect()
}

/// A ring of `size` at the start of `base`, areas one behind the other.
pub(crate) fn layout_at(base: u64, size: u16) -> Layout {
    let avail = base + 16 * u64::from(size);
    let used = (avail + 6 + 2 * u64::from(size)).next_multiple_of(4);
    Layout { size, desc: base, avail, used, event_idx: true, indirect: true }
}

/// The driver's writes for one ring.
pub(crate) struct Driver {
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    pub(crate) avail_idx: u16,
}

impl Driver {
    /// A driver whose ring starts at `start`, both ways.
    pub(crate) fn new(memory: Arc<Memory>, layout: Layout, start: u16) -> Driver {
        put_u16(&memory, layout.avail + 2, start);
        put_u16(&memory, layout.used + 2, start);
        Driver { memory, layout, avail_idx: start }
    }

    pub(crate) fn set(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = self.layout.desc + 16 * u64::from(index);
        put(&self.memory, at, &descriptor(addr, len, flags, next));
    }

    pub(crate) fn entry(&self, index: u16, head: u16) {
        let slot = u64::from(index % self.layout.size);
        put_u16(&self.memory, self.layout.avail + 4 + 2 * slot, head);
    }

    pub(crate) fn set_avail_idx(&mut self, index: u16) {
        self.avail_idx = index;
        put_u16(&self.memory, self.layout.avail + 2, index);
    }

    /// Makes one chain available.
    pub(crate) fn offer(&mut self, head: u16) {
        self.entry(self.avail_idx, head);
        self.set_avail_idx(self.avail_idx.wrapping_add(1));
    }

    pub(crate) fn set_avail_flags(&self, flags: u16) {
        put_u16(&self.memory, self.layout.avail, flags);
    }

    pub(crate) fn set_used_event(&self, index: u16) {
        let at = self.layout.avail + 4 + 2 * u64::from(self.layout.size);
        put_u16(&self.memory, at, index);
    }

    pub(crate) fn used_flags(&self) -> u16 {
        get_u16(&self.memory, self.layout.used)
    }

    pub(crate) fn used_idx(&self) -> u16 {
        get_u16(&self.memory, self.layout.used + 2)
    }

    pub(crate) fn avail_event(&self) -> u16 {
        let at = self.layout.used + 4 + 8 * u64::from(self.layout.size);
        get_u16(&self.memory, at)
    }

    /// The element for the running index `index`: id and length.
    pub(crate) fn used_element(&self, index: u16) -> (u32, u32) {
        let slot = u64::from(index % self.layout.size);
        let bytes = get(&self.memory, self.layout.used + 4 + 8 * slot, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (word(0), word(4))
    }
}
