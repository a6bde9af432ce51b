//! Memory shared with a server: one memfd, dealt out in areas that each have one owner.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
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
/// Where areas begin in memory that is all a machine has: a PC's firmware lies over parts of the first MiB.
const RAM_START: u64 = 2 << 20;
/// Such memory is a multiple of this, as QEMU wants it.
const RAM_UNIT: u64 = 2 << 20;

/// The region.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
    /// Where the mapping is for the server, and in the file.
    guest_base: u64,
    file_at: u64,
}

// SAFETY: the mapping lives as long as the value, which itself accesses nothing; areas do, and each owns its bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `sizes` bytes for one area each; every page is touched, so that no run pays for that.
    pub(crate) fn areas(sizes: &[usize]) -> Result<(Arc<Self>, Vec<Area>)> {
        Self::map(GUEST_BASE, 0, 1, sizes)
    }

    /// As [`Memory::areas`], in a file that is all the memory of a machine: guest addresses are offsets in it.
    pub(crate) fn areas_in_ram(sizes: &[usize]) -> Result<(Arc<Self>, Vec<Area>)> {
        Self::map(RAM_START, RAM_START, RAM_UNIT, sizes)
    }

    /// Maps areas from `file_at` on, a multiple of [`ALIGNMENT`], of a file that is a multiple of `file_unit` long.
    fn map(guest_base: u64, file_at: u64, file_unit: u64, sizes: &[usize]) -> Result<(Arc<Self>, Vec<Area>)> {
        let rounded = || sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT));
        let bytes = rounded().sum::<usize>().max(ALIGNMENT);
        let file = File::from(memfd_create("bench-guest", MemfdFlags::CLOEXEC).context("cannot make a memfd")?);
        file.set_len((file_at + bytes as u64).next_multiple_of(file_unit)).context("cannot size the memfd")?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping, and the file does not end before it.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, file_at)
                .context("cannot map memory for the server")?
        };
        let start = NonNull::new(start.cast()).context("a mapping is not at address zero")?;
        let memory = Arc::new(Self { file, start, bytes, guest_base, file_at });
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
            guest_phys_addr: self.guest_base,
            memory_size: self.bytes as u64,
            userspace_addr: self.start.as_ptr() as u64,
            mmap_offset: self.file_at,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// A path by which another process of this user can open the file as long as it is open here, and its length in bytes.
    pub(crate) fn path(&self) -> Result<(PathBuf, u64)> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        Ok((path.into(), self.file.metadata().context("cannot look at the memfd")?.len()))
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
        self.memory.guest_base + (self.offset + at) as u64
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
    fn a_machine_finds_what_lies_at_a_guest_address_there_in_the_file() {
        use std::os::unix::fs::FileExt;
        let (memory, mut areas) = Memory::areas_in_ram(&[10, 5000]).unwrap();
        areas[1].bytes_mut(5, 3).copy_from_slice(b"abc");
        let (path, bytes) = memory.path().unwrap();
        assert!(bytes.is_multiple_of(RAM_UNIT));
        let file = File::open(path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes);
        let mut seen = [0; 3];
        file.read_exact_at(&mut seen, areas[1].guest_addr(5)).unwrap();
        assert_eq!(&seen, b"abc");
        assert!(areas[0].guest_addr(0) >= 1 << 20, "below lies firmware");
    }

    #[test]
    #[should_panic(expected = "outside the area")]
    fn an_area_ends_where_the_next_begins() {
        let (_memory, areas) = Memory::areas(&[10, 10]).unwrap();
        areas[0].bytes(4090, 7);
    }
}
