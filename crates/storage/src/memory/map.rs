//! Address space for contents that may grow under running readers.
//!
//! Growing a mapping may move it, and nobody can tell the workers in the middle of a copy. So more address space is reserved
//! than is needed at first, and growth maps further memory behind what is there: the base never changes. Reserved address
//! space costs no memory.

use super::reservation::Reservation;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Reserved for growth, in bytes, whatever the size at first.
const RESERVE_MIN: u64 = 256 << 30;
/// Reserved for growth, as a multiple of the size at first.
const RESERVE_FACTOR: u64 = 4;
/// How the files without a name are shown in /proc/PID/maps.
const NAME: &str = "vringd-storage";

/// Where the memory comes from. All of it is shared, so that another program can go on with the contents.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Pages of a file without a name, given as they are first written.
    Anonymous {
        /// The file.
        fd: Arc<OwnedFd>,
        /// Accept more than there is room for.
        overcommit: bool,
    },
    /// Huge pages of such a file, all reserved when they are mapped.
    Huge { fd: Arc<OwnedFd> },
    /// A file that has a name.
    File { fd: Arc<OwnedFd>, read_only: bool },
}

impl Backing {
    /// Memory that nobody has written to.
    pub(crate) fn anonymous(overcommit: bool) -> Result<Backing, Errno> {
        Ok(Backing::Anonymous { fd: rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?.into(), overcommit })
    }

    /// As [`Backing::anonymous`], from the system's default pool of huge pages.
    pub(crate) fn huge() -> Result<Backing, Errno> {
        Ok(Backing::Huge { fd: rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?.into() })
    }
}

impl Backing {
    /// Its descriptor, for whoever goes on with the contents.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        match self {
            Backing::Anonymous { fd, .. } | Backing::Huge { fd } | Backing::File { fd, .. } => fd.clone(),
        }
    }
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Backing::Anonymous { fd, .. } | Backing::Huge { fd } | Backing::File { fd, .. } => fd.as_fd(),
        }
    }
}

/// Contents at a fixed address.
#[derive(Debug)]
pub(crate) struct Map {
    /// Holds the contents; their start is its base.
    reservation: Reservation,
    page_bytes: u64,
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
        let reservation = match Reservation::new(generous, page_bytes)? {
            Some(reservation) => reservation,
            None => Reservation::new(size, page_bytes)?.ok_or(Errno::NOMEM)?,
        };
        let map = Map { reservation, page_bytes, backing };
        map.grow(0, size_bytes)?;
        Ok(map)
    }

    /// Start of the contents.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.reservation.base()
    }

    /// Most bytes it can grow to.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.reservation.room_bytes
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Maps the pages between two sizes. A file has them already; one without a name gets them, unless it was handed over
    /// with them.
    pub(crate) fn grow(&self, from_bytes: u64, to_bytes: u64) -> Result<(), Errno> {
        let from = from_bytes.next_multiple_of(self.page_bytes);
        let to = to_bytes.checked_next_multiple_of(self.page_bytes).ok_or(Errno::NOMEM)?;
        if to > self.room_bytes() {
            return Err(Errno::NOMEM);
        }
        if to <= from {
            return Ok(());
        }
        let at = self.as_ptr().wrapping_add(from as usize).cast();
        let len = (to - from) as usize;
        let write = ProtFlags::READ | ProtFlags::WRITE;
        let (fd, protection) = match &self.backing {
            Backing::Anonymous { fd, overcommit } => {
                if !overcommit {
                    // The kernel accounts for pages of a shared file as they are written, which is too late to refuse.
                    // Private memory it judges when it is mapped: let it judge the same amount of that.
                    // SAFETY: `from..to` lies inside the reservation and behind everything that is in use.
                    unsafe { mmap_anonymous(at, len, write, MapFlags::PRIVATE | MapFlags::FIXED) }?;
                }
                lengthen(fd, to)?;
                (fd, write)
            }
            Backing::Huge { fd } => {
                lengthen(fd, to)?;
                (fd, write)
            }
            Backing::File { fd, read_only: true } => (fd, ProtFlags::READ),
            Backing::File { fd, read_only: false } => (fd, write),
        };
        // SAFETY: `from..to` lies inside the reservation and behind everything that is in use.
        unsafe { mmap(at, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, from) }?;
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

    /// Fills a range with zeroes and gives whole pages back, where that cannot make a later write fail: pages that belong
    /// to no file system come back as they are written, but pages of a file or from the pool of huge pages may be gone to
    /// somebody else by then.
    ///
    /// # Safety
    /// As for [`zero`](Self::zero).
    pub(crate) unsafe fn unmap(&self, offset: u64, len: u64) {
        let (first, last) =
            (offset.next_multiple_of(self.page_bytes), (offset + len) / self.page_bytes * self.page_bytes);
        let come_back = matches!(self.backing, Backing::Anonymous { .. });
        if !come_back || first >= last {
            // SAFETY: promised by our caller.
            return unsafe { self.zero(offset, len) };
        }
        let at = self.as_ptr().wrapping_add(first as usize).cast();
        // SAFETY: `first..last` lies inside the mapped range; the pages read as zeroes afterwards.
        unsafe {
            self.zero(offset, first - offset);
            self.zero(last, offset + len - last);
            if madvise(at, (last - first) as usize, Advice::LinuxRemove).is_err() {
                self.zero(first, last - first);
            }
        }
    }
}

/// Makes a file at least this long.
fn lengthen(fd: &OwnedFd, size_bytes: u64) -> Result<(), Errno> {
    let present_bytes = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
    if present_bytes < size_bytes { rustix::fs::ftruncate(fd, size_bytes) } else { Ok(()) }
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
        let map = Map::new(Backing::anonymous(true).unwrap(), 5000, 4096).unwrap();
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
        let map = Map::new(Backing::anonymous(true).unwrap(), 5 * 4096, 4096).unwrap();
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
    fn what_was_handed_over_is_found_again() {
        let map = Map::new(Backing::anonymous(false).unwrap(), 3 * 4096, 4096).unwrap();
        // SAFETY: mapped.
        unsafe { map.as_ptr().add(4097).write(9) };
        let fd = map.backing().descriptor();
        drop(map);
        let again = Map::new(Backing::Anonymous { fd, overcommit: false }, 3 * 4096, 4096).unwrap();
        assert_eq!((byte(&again, 4096), byte(&again, 4097)), (0, 9));
    }

    #[test]
    fn huge_pages_have_a_size() {
        assert!(huge_page_bytes() >= 1 << 16 && huge_page_bytes().is_power_of_two());
    }
}
