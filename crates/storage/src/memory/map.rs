//! Address space for contents that may grow under running readers.
//!
//! Growing a mapping may move it, and nobody can tell the workers in the middle of a copy. So more address space is reserved
//! than is needed at first, and growth maps further memory behind what is there: the base never changes. Reserved address
//! space costs no memory.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// Reserved for growth, in bytes, whatever the size at first.
const RESERVE_MIN: u64 = 256 << 30;
/// Reserved for growth, as a multiple of the size at first.
const RESERVE_FACTOR: u64 = 4;

/// Where the memory comes from.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Private pages, given as they are first written.
    Anonymous {
        /// Accept more than there is room for.
        overcommit: bool,
    },
    /// Private huge pages, all reserved when they are mapped.
    Huge,
    /// A shared file.
    File { fd: OwnedFd, read_only: bool },
}

/// Contents at a fixed address.
#[derive(Debug)]
pub(crate) struct Map {
    /// Start of the reservation, for giving it back.
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    /// Start of the contents, a multiple of `page_bytes`.
    base: NonNull<u8>,
    page_bytes: u64,
    /// Most bytes of contents that fit behind `base`.
    room_bytes: u64,
    backing: Backing,
}

// SAFETY: the map is address space; what is in it is only touched through raw pointers by whoever holds an Operation on it.
unsafe impl Send for Map {}
// SAFETY: as above; `&Map` gives out nothing but addresses, and growth does not change what is mapped.
unsafe impl Sync for Map {}

impl Map {
    /// Reserves address space and maps `size_bytes`. `page_bytes` is the unit of the backing, a power of two.
    pub(crate) fn new(backing: Backing, size_bytes: u64, page_bytes: u64) -> Result<Map, Errno> {
        let size = size_bytes.checked_next_multiple_of(page_bytes).ok_or(Errno::NOMEM)?;
        let generous = size.saturating_mul(RESERVE_FACTOR).max(RESERVE_MIN);
        let mut map = Map::reserve(backing, generous, page_bytes)?;
        if map.room_bytes < size {
            map = Map::reserve(map.into_backing(), size, page_bytes)?;
        }
        if map.room_bytes < size {
            return Err(Errno::NOMEM);
        }
        map.grow(0, size_bytes)?;
        Ok(map)
    }

    /// A reservation of `room` bytes, or an empty one when there is no such address space (RLIMIT_AS).
    fn reserve(backing: Backing, room: u64, page_bytes: u64) -> Result<Map, Errno> {
        let bytes = usize::try_from(room.saturating_add(page_bytes)).map_err(|_| Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new address space at a place of the kernel's choice.
        let Ok(start) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }) else {
            let nothing = NonNull::dangling();
            return Ok(Map { reserved: nothing, reserved_bytes: 0, base: nothing, page_bytes, room_bytes: 0, backing });
        };
        let start = start.cast::<u8>();
        let base = start.wrapping_add(start.align_offset(page_bytes as usize));
        let (Some(reserved), Some(base)) = (NonNull::new(start), NonNull::new(base)) else {
            return Err(Errno::NOMEM);
        };
        Ok(Map { reserved, reserved_bytes: bytes, base, page_bytes, room_bytes: room, backing })
    }

    fn into_backing(mut self) -> Backing {
        std::mem::replace(&mut self.backing, Backing::Huge)
    }

    /// Start of the contents.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Most bytes it can grow to.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Maps the pages between two sizes. A file has them already.
    pub(crate) fn grow(&self, from_bytes: u64, to_bytes: u64) -> Result<(), Errno> {
        let from = from_bytes.next_multiple_of(self.page_bytes);
        let to = to_bytes.checked_next_multiple_of(self.page_bytes).ok_or(Errno::NOMEM)?;
        if to > self.room_bytes {
            return Err(Errno::NOMEM);
        }
        if to <= from {
            return Ok(());
        }
        let at = self.as_ptr().wrapping_add(from as usize).cast();
        let len = (to - from) as usize;
        let write = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: `from..to` lies inside the reservation and behind everything that is in use.
        unsafe {
            match &self.backing {
                Backing::Anonymous { overcommit } => {
                    let mut flags = MapFlags::PRIVATE | MapFlags::FIXED;
                    flags.set(MapFlags::NORESERVE, *overcommit);
                    mmap_anonymous(at, len, write, flags)?;
                }
                Backing::Huge => {
                    mmap_anonymous(at, len, write, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::HUGETLB)?;
                }
                Backing::File { fd, read_only } => {
                    let protection = if *read_only { ProtFlags::READ } else { write };
                    mmap(at, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, from)?;
                }
            }
        }
        Ok(())
    }

    /// Fills a range with zeroes, keeping its pages.
    ///
    /// # Safety
    /// The range is mapped for writing.
    pub(crate) unsafe fn zero(&self, offset: u64, len: u64) {
        // SAFETY: promised by our caller.
        unsafe { self.as_ptr().add(offset as usize).write_bytes(0, len as usize) };
    }

    /// Fills a range with zeroes and gives whole pages back, where that cannot make a later write fail: private pages come
    /// back as they are written, but pages of a file or from the pool of huge pages may be gone to somebody else by then.
    ///
    /// # Safety
    /// As for [`zero`](Self::zero).
    pub(crate) unsafe fn unmap(&self, offset: u64, len: u64) {
        let (first, last) =
            (offset.next_multiple_of(self.page_bytes), (offset + len) / self.page_bytes * self.page_bytes);
        let private = matches!(self.backing, Backing::Anonymous { .. });
        if !private || first >= last {
            // SAFETY: promised by our caller.
            return unsafe { self.zero(offset, len) };
        }
        let at = self.as_ptr().wrapping_add(first as usize).cast();
        // SAFETY: `first..last` lies inside the mapped range; the pages read as zeroes afterwards.
        unsafe {
            self.zero(offset, first - offset);
            self.zero(last, offset + len - last);
            if madvise(at, (last - first) as usize, Advice::LinuxDontNeed).is_err() {
                self.zero(first, last - first);
            }
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.reserved_bytes > 0 {
            // SAFETY: the whole reservation, and nobody copies any more: who does holds the map.
            let _ = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        }
    }
}

/// Size of the system's default huge pages, in bytes.
pub(crate) fn huge_page_bytes() -> u64 {
    let about = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = about.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.map_or(2 << 20, |kib| kib << 10).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(map: &Map, at: u64) -> u8 {
        // SAFETY: tests ask for mapped bytes.
        unsafe { map.as_ptr().add(at as usize).read_volatile() }
    }

    #[test]
    fn growth_keeps_the_base_and_the_contents() {
        let map = Map::new(Backing::Anonymous { overcommit: true }, 5000, 4096).unwrap();
        let base = map.as_ptr();
        // SAFETY: mapped.
        unsafe { map.as_ptr().add(4999).write(7) };
        map.grow(5000, 1 << 30).unwrap();
        assert_eq!(map.as_ptr(), base);
        assert_eq!((byte(&map, 4999), byte(&map, 5000), byte(&map, (1 << 30) - 1)), (7, 0, 0));
        assert_eq!(map.grow(1 << 30, map.room_bytes() + 1), Err(Errno::NOMEM));
    }

    #[test]
    fn unmapping_zeroes_exactly_the_range() {
        let map = Map::new(Backing::Anonymous { overcommit: true }, 5 * 4096, 4096).unwrap();
        for (offset, len) in [(512, 512), (512, 4 * 4096), (4096, 8192), (4095, 2), (0, 5 * 4096), (4096 - 512, 1024)] {
            // SAFETY: mapped.
            unsafe {
                map.as_ptr().write_bytes(0xaa, 5 * 4096);
                map.unmap(offset, len);
            }
            for at in 0..5 * 4096 {
                let expected = if (offset..offset + len).contains(&at) { 0 } else { 0xaa };
                assert_eq!(byte(&map, at), expected, "byte {at} of {offset}+{len}");
            }
        }
    }

    #[test]
    fn huge_pages_have_a_size() {
        assert!(huge_page_bytes() >= 1 << 16 && huge_page_bytes().is_power_of_two());
    }
}
