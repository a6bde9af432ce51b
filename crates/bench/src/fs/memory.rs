//! Memory shared with a server: one memfd, dealt out in areas that each have one owner.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vhost::VhostUserMemoryRegionInfo;

/// Areas begin at multiples of this, as pages do in a guest.
const ALIGNMENT: usize = 4096;
/// Guest addresses differ from ours, so that a server that mixes them up shows.
const GUEST_BASE: u64 = 1 << 30;

/// The region.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping lives as long as the value, which itself accesses nothing; areas do, and each owns its bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `sizes` bytes for one area each; every page is touched, so that no run pays for that.
    pub(crate) fn areas(sizes: &[usize]) -> Result<(Arc<Self>, Vec<Area>)> {
        let rounded = || sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT));
        let bytes = rounded().sum::<usize>().max(ALIGNMENT);
        let file = File::from(memfd_create("bench-guest", MemfdFlags::CLOEXEC).context("cannot make a memfd")?);
        file.set_len(bytes as u64).context("cannot size the memfd")?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping of a file that is as long.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
                .context("cannot map memory for the server")?
        };
        let start = NonNull::new(start.cast()).context("a mapping is not at address zero")?;
        let memory = Arc::new(Self { file, start, bytes });
        let mut next = 0;
        let areas = rounded().map(|len| {
            let area = Area { memory: Arc::clone(&memory), offset: next, len };
            next += len;
            area
        });
        let areas = areas.collect();
        Ok((memory, areas))
    }

    /// The region as vhost-user names it.
    pub(crate) fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_BASE,
            memory_size: self.bytes as u64,
            userspace_addr: self.start.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping; every area holds the value alive, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A part of the memory with one owner on our side.
///
/// Offsets outside it are a mistake of this crate and panic: none of them comes from the server.
#[derive(Debug)]
pub(crate) struct Area {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
}

impl Area {
    /// Where byte `at` is for the server's requests.
    pub(crate) fn guest_addr(&self, at: usize) -> u64 {
        GUEST_BASE + (self.offset + at) as u64
    }

    /// Where byte `at` is for SET_VRING_ADDR.
    pub(crate) fn user_addr(&self, at: usize) -> u64 {
        self.memory.start.as_ptr() as u64 + (self.offset + at) as u64
    }

    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{len} bytes at {at} are outside the area");
        // SAFETY: inside the area, as just checked, and the area is inside the mapping.
        unsafe { self.memory.start.as_ptr().add(self.offset + at) }
    }

    /// A 16-bit field at the even offset `at`.
    pub(crate) fn u16(&self, at: usize) -> &AtomicU16 {
        assert!(at.is_multiple_of(2));
        // SAFETY: two aligned bytes inside the mapping (areas begin at pages), which lives as long as `self`.
        unsafe { AtomicU16::from_ptr(self.place(at, 2).cast()) }
    }

    /// Bytes that no request in flight lets the server write.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: inside the mapping; the owner writes through `&mut self` only, and the server under test writes
        // only what requests in flight name.
        unsafe { std::slice::from_raw_parts(self.place(at, len), len) }
    }

    /// Bytes that no request in flight names.
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: as `bytes`, and `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.place(at, len), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_lie_side_by_side_in_the_memory_that_is_shared() {
        use std::os::unix::fs::FileExt;
        let (memory, mut areas) = Memory::areas(&[10, 5000]).unwrap();
        assert_eq!(areas[1].guest_addr(0), GUEST_BASE + 4096);
        assert_eq!(areas[1].user_addr(3) - areas[0].user_addr(0), 4099);
        assert_eq!(memory.info().memory_size, 3 * 4096);
        areas[1].bytes_mut(1, 3).copy_from_slice(b"abc");
        let mut seen = [0; 3];
        memory.file().read_exact_at(&mut seen, 4097).unwrap();
        assert_eq!(&seen, b"abc");
        assert_eq!(areas[0].bytes(0, 4096), [0; 4096]);
    }

    #[test]
    #[should_panic(expected = "outside the area")]
    fn an_area_ends_where_the_next_begins() {
        let (_memory, areas) = Memory::areas(&[10, 10]).unwrap();
        areas[0].bytes(4090, 7);
    }
}
