//! Guest memory: one memfd that a server maps too. It outlives the server.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vhost::VhostUserMemoryRegionInfo;

/// Addresses in the frontend differ from the guest's by this, so that a mix-up of the two shows.
pub(super) const USER_BASE: u64 = 0x7f00_0000_0000;

/// Guest memory from guest address 0 on, sparse until it is touched.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping lives as long as the value. It is only copied from and to, or accessed atomically, never borrowed.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `bytes` bytes of fresh memory.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes as u64)?;
        // SAFETY: a fresh mapping of a file that is as long.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
                .context("cannot map guest memory")?
        };
        let start = NonNull::new(start.cast()).context("a mapping is not at address zero")?;
        Ok(Self { file, start, bytes })
    }

    /// The region as vhost-user names it.
    pub(super) fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: self.bytes as u64,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// The place of `len` bytes at guest address `at`. Addresses are ours, not a guest's: a wrong one is a mistake here.
    fn place(&self, at: u64, len: usize) -> *mut u8 {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(len));
        assert!(end.is_some_and(|end| end <= self.bytes), "{len} bytes at {at:#x} are outside guest memory");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    /// Writes bytes.
    pub(super) fn write(&self, at: u64, data: &[u8]) {
        // SAFETY: the place is inside the mapping and no part of `data`. A server that looks at it too early reads a mix.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.place(at, data.len()), data.len()) };
    }

    /// Fills `data` with the bytes at `at`.
    pub(super) fn read(&self, at: u64, data: &mut [u8]) {
        // SAFETY: the place is inside the mapping and no part of `data`. Any bytes will do, whoever writes them now.
        unsafe { ptr::copy_nonoverlapping(self.place(at, data.len()), data.as_mut_ptr(), data.len()) };
    }

    /// Sets `len` bytes at `at` to `value`.
    pub(super) fn fill(&self, at: u64, len: usize, value: u8) {
        // SAFETY: inside the mapping.
        unsafe { ptr::write_bytes(self.place(at, len), value, len) };
    }

    fn word(&self, at: u64) -> &AtomicU16 {
        assert!(at.is_multiple_of(2), "a field at {at:#x} is not aligned");
        // SAFETY: two aligned bytes inside the mapping, which begins at a page. Ring fields are only accessed like this.
        unsafe { AtomicU16::from_ptr(self.place(at, 2).cast()) }
    }

    /// Reads a field of a ring that orders what lies behind it. Rings are little-endian (virtio 1.3, 2.7).
    pub(super) fn load(&self, at: u64) -> u16 {
        u16::from_le(self.word(at).load(Ordering::SeqCst))
    }

    /// Writes a field of a ring that orders what was written before it.
    pub(super) fn store(&self, at: u64, value: u16) {
        self.word(at).store(value.to_le(), Ordering::SeqCst);
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody can hold a reference into it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let memory = SharedMemory::new(4096).unwrap();
        memory.write(4000, &[1, 2, 3]);
        memory.fill(4003, 2, 9);
        memory.store(4006, 0x1234);
        let mut found = [0; 8];
        memory.read(4000, &mut found);
        assert_eq!(found, [1, 2, 3, 9, 9, 0, 0x34, 0x12]);
        assert_eq!(memory.load(4006), 0x1234);
    }

    #[test]
    #[should_panic(expected = "outside guest memory")]
    fn nothing_beyond_its_end_is_touched() {
        SharedMemory::new(4096).unwrap().write(4090, &[0; 7]);
    }
}
