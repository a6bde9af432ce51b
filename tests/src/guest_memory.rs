//! Memory that a frontend shares with the server: one region of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use vhost::VhostUserMemoryRegionInfo;

/// Addresses in the frontend differ from the guest's by this, so that a mix-up of the two shows.
pub const USER_BASE: u64 = 0x7f00_0000_0000;

/// One region of guest memory, sparse until it is touched.
#[derive(Debug)]
pub struct GuestMemory {
    file: File,
    start: NonNull<u8>,
    guest_addr: u64,
    bytes: u64,
}

// SAFETY: the mapping lives as long as the value, and every access to it is atomic.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps `bytes` bytes that the guest sees at `guest_addr`.
    pub fn new(guest_addr: u64, bytes: u64) -> Result<Self> {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        let len = usize::try_from(bytes)?;
        // SAFETY: a fresh mapping of a file that is as long.
        let start = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
                .context("cannot map guest memory")?
        };
        let start = NonNull::new(start.cast()).context("a mapping is not at address zero")?;
        Ok(Self { file, start, guest_addr, bytes })
    }

    /// First guest address.
    pub fn guest_addr(&self) -> u64 {
        self.guest_addr
    }

    /// The region as vhost-user names it.
    pub fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.guest_addr,
            memory_size: self.bytes,
            userspace_addr: USER_BASE + self.guest_addr,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// Shortens the file behind it. What is beyond its end must not be touched any more.
    pub fn shrink(&self, bytes: u64) -> Result<()> {
        Ok(self.file.set_len(bytes)?)
    }

    /// The place of `len` bytes at `guest_addr`. A test that reaches outside is wrong, so it panics.
    fn place(&self, guest_addr: u64, len: usize) -> *mut u8 {
        let at = guest_addr.checked_sub(self.guest_addr).expect("an address of this region");
        assert!(at + len as u64 <= self.bytes, "{len} bytes at {guest_addr:#x} are outside the region");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    fn byte(&self, guest_addr: u64) -> &AtomicU8 {
        // SAFETY: one byte inside the mapping, which lives as long as `self`; all accesses are atomic.
        unsafe { AtomicU8::from_ptr(self.place(guest_addr, 1)) }
    }

    fn word(&self, guest_addr: u64) -> &AtomicU16 {
        assert!(guest_addr.is_multiple_of(2));
        // SAFETY: two aligned bytes inside the mapping (it begins at a page, and guest addresses of regions do too).
        unsafe { AtomicU16::from_ptr(self.place(guest_addr, 2).cast()) }
    }

    /// Writes bytes, one by one, as a guest that does not care who looks.
    pub fn write(&self, guest_addr: u64, data: &[u8]) {
        for (at, byte) in data.iter().enumerate() {
            self.byte(guest_addr + at as u64).store(*byte, Ordering::Relaxed);
        }
    }

    /// Reads bytes.
    pub fn read(&self, guest_addr: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| self.byte(guest_addr + at).load(Ordering::Relaxed)).collect()
    }

    /// Reads one byte.
    pub fn read_byte(&self, guest_addr: u64) -> u8 {
        self.byte(guest_addr).load(Ordering::Relaxed)
    }

    /// Reads a 16-bit field that orders what lies behind it. Rings are little-endian, as is every machine served.
    pub fn load(&self, guest_addr: u64) -> u16 {
        u16::from_le(self.word(guest_addr).load(Ordering::SeqCst))
    }

    /// Writes a 16-bit field that orders what was written before it.
    pub fn store(&self, guest_addr: u64, value: u16) {
        self.word(guest_addr).store(value.to_le(), Ordering::SeqCst);
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody can hold a reference into it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes as usize) };
        debug_assert!(unmapped.is_ok());
    }
}
