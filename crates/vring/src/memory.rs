//! The memory table: guest physical addresses to addresses of ours.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::MemoryError;
use crate::mapping::Mapping;

/// One contiguous range of guest memory and where we mapped it.
#[derive(Clone, Debug)]
pub struct Region {
    /// The first guest physical address.
    pub guest_addr: u64,
    /// The same byte's virtual address in the frontend (vhost-user gives ring addresses in these).
    pub user_addr: u64,
    /// The length in bytes, at least 1.
    pub len: u64,
    /// The mapping that holds the bytes.
    pub mapping: Arc<Mapping>,
    /// Where the region starts in the mapping, in bytes.
    pub offset: usize,
}

impl Region {
    /// The last guest physical address. Never overflows once [`Memory::new`] accepted the region.
    fn last(&self) -> u64 {
        self.guest_addr + (self.len - 1)
    }

    fn check(&self) -> Result<(), MemoryError> {
        let (guest_addr, user_addr, len) = (self.guest_addr, self.user_addr, self.len);
        let Some(tail) = len.checked_sub(1) else {
            return Err(MemoryError::Empty { guest_addr });
        };
        if guest_addr.checked_add(tail).is_none() || user_addr.checked_add(tail).is_none() {
            return Err(MemoryError::Wraps { guest_addr, user_addr, len });
        }
        let room = self.mapping.len().saturating_sub(self.offset) as u64;
        if len > room {
            return Err(MemoryError::BeyondMapping { guest_addr, len, room });
        }
        Ok(())
    }
}

/// What a translation needs of a region, without the way through two `Arc`s.
#[derive(Clone, Copy, Debug)]
struct Span {
    guest_addr: u64,
    len: u64,
    host: NonNull<u8>,
}

/// An immutable memory table, sorted by guest address and free of overlaps.
///
/// It is shared as `Arc<Memory>`; a changed table is a new value, and the mappings of the old one live until its last
/// user lets go.
#[derive(Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
    spans: Vec<Span>,
    /// The same, sorted by address of ours.
    by_host: Vec<Span>,
}

// SAFETY: the pointers in `spans` point into the mappings that `regions` keeps alive, and `Mapping` is Send and Sync.
unsafe impl Send for Memory {}
// SAFETY: as above; the table itself never changes.
unsafe impl Sync for Memory {}

impl Memory {
    /// Builds a table; the regions may come in any order.
    ///
    /// # Errors
    /// A region that is empty, wraps around the address space, reaches beyond its mapping, or overlaps another one in
    /// guest physical addresses or in bytes of a mapping. Frontend addresses may overlap: a frontend may show one range to
    /// its guest twice, but it is to be mapped twice then, or [`Memory::guest_addr_of`] could not tell the two apart.
    pub fn new(mut regions: Vec<Region>) -> Result<Memory, MemoryError> {
        regions.iter().try_for_each(Region::check)?;
        regions.sort_by_key(|region| region.guest_addr);
        for pair in regions.windows(2) {
            if pair[0].last() >= pair[1].guest_addr {
                return Err(MemoryError::Overlap {
                    guest_addr: pair[1].guest_addr,
                    other_guest_addr: pair[0].guest_addr,
                    other_len: pair[0].len,
                });
            }
        }
        let spans: Vec<Span> = regions
            .iter()
            .map(|region| Span {
                guest_addr: region.guest_addr,
                len: region.len,
                // SAFETY: `check` proved that `offset` lies inside the mapping, which starts at a non-null address.
                host: unsafe { NonNull::new_unchecked(region.mapping.as_ptr().add(region.offset)) },
            })
            .collect();
        let mut by_host = spans.clone();
        by_host.sort_by_key(|span| span.host);
        for pair in by_host.windows(2) {
            if pair[0].offset_of(pair[1].host).is_some() {
                let (guest_addr, other_guest_addr) = (pair[1].guest_addr, pair[0].guest_addr);
                return Err(MemoryError::SharedBytes { guest_addr, other_guest_addr });
            }
        }
        Ok(Memory { regions, spans, by_host })
    }

    /// This table and one more region (vhost-user ADD_MEM_REG).
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn with(&self, region: Region) -> Result<Memory, MemoryError> {
        let mut regions = self.regions.clone();
        regions.push(region);
        Memory::new(regions)
    }

    /// This table without the one region that has exactly these addresses and this length (vhost-user REM_MEM_REG).
    ///
    /// # Errors
    /// [`MemoryError::NotFound`] when there is no such region.
    pub fn without(&self, guest_addr: u64, user_addr: u64, len: u64) -> Result<Memory, MemoryError> {
        let found = self
            .regions
            .iter()
            .position(|region| region.guest_addr == guest_addr && region.user_addr == user_addr && region.len == len);
        let Some(index) = found else {
            return Err(MemoryError::NotFound { guest_addr, user_addr, len });
        };
        let mut regions = self.regions.clone();
        regions.remove(index);
        Memory::new(regions)
    }

    /// The regions, sorted by guest address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The longest range of ours that starts at `guest_addr`, at most `len` bytes: its address and its length in bytes,
    /// which is shorter than `len` when the region ends first. `None` when no region holds `guest_addr`.
    ///
    /// `hint` is the index of the region that answered last, any value at first; requests cluster, so it saves the search.
    /// The pointer is good while this table lives, and the bytes behind it change at any time.
    #[inline]
    pub fn translate(&self, guest_addr: u64, len: u64, hint: &mut usize) -> Option<(NonNull<u8>, u64)> {
        if let Some(found) = self.spans.get(*hint).and_then(|s| s.find(guest_addr, len)) {
            return Some(found);
        }
        self.search(guest_addr, len, hint)
    }

    #[inline(never)]
    fn search(&self, guest_addr: u64, len: u64, hint: &mut usize) -> Option<(NonNull<u8>, u64)> {
        let after = self.spans.partition_point(|span| span.guest_addr <= guest_addr);
        let index = after.checked_sub(1)?;
        let found = self.spans[index].find(guest_addr, len)?;
        *hint = index;
        Some(found)
    }

    /// The guest physical address of the byte at `host`, or `None` when no region holds it: the inverse of
    /// [`translate`](Memory::translate), for logging what was written.
    ///
    /// Requests carry host pointers only. A list of guest addresses beside them would have to be trimmed, split and handed to
    /// other threads along with every list of segments; a host pointer survives all that, and while no writes are logged this
    /// costs nothing. The answer is unique, and the address that the guest used: no two regions share bytes of a mapping.
    #[inline]
    pub fn guest_addr_of(&self, host: *const u8) -> Option<u64> {
        let host = NonNull::new(host.cast_mut())?;
        let after = self.by_host.partition_point(|span| span.host <= host);
        let span = &self.by_host[after.checked_sub(1)?];
        Some(span.guest_addr + span.offset_of(host)?)
    }

    /// The guest address of a region whose memory went away ([`Mapping::is_gone`]), if there is one.
    pub fn gone(&self) -> Option<u64> {
        self.regions.iter().find(|region| region.mapping.is_gone()).map(|region| region.guest_addr)
    }

    /// The guest physical address of a frontend's virtual address, or `None` when no region holds it.
    ///
    /// Where frontend addresses overlap, the region with the lowest guest address answers: the bytes are the same.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            (offset < region.len).then(|| region.guest_addr + offset)
        })
    }
}

impl Span {
    /// How far into the span this address of ours is.
    #[inline]
    fn offset_of(&self, host: NonNull<u8>) -> Option<u64> {
        let offset = (host.as_ptr() as u64).checked_sub(self.host.as_ptr() as u64)?;
        (offset < self.len).then_some(offset)
    }

    #[inline]
    fn find(&self, guest_addr: u64, len: u64) -> Option<(NonNull<u8>, u64)> {
        // An address below the region wraps to an offset of at least 2^64 - guest_addr, and the region, which does not
        // wrap, is not that long: one comparison refuses both sides.
        let offset = guest_addr.wrapping_sub(self.guest_addr);
        if offset >= self.len {
            return None;
        }
        // SAFETY: `offset` is below the region's length, and `Memory::new` proved the region to lie inside its mapping.
        let ptr = unsafe { self.host.add(offset as usize) };
        Some((ptr, len.min(self.len - offset)))
    }
}
