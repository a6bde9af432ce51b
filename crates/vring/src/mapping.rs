//! One mapped range of memory that is shared with a frontend.

use std::io;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Owns one `mmap`; dropping it unmaps.
///
/// The bytes belong to the guest as much as to us: they change at any time, so nothing ever forms a Rust reference to
/// them. Whoever holds the file behind a [`Mapping::shared`] can shorten it, and a later access beyond its end raises
/// SIGBUS; the owner of the file descriptor has to judge that (the kernel offers file seals for it).
#[derive(Debug)]
pub struct Mapping {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: shared use only hands out the address; every access goes through raw pointers as memory that others change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from byte `offset` on, readable and writable, shared with all who map the same file.
    ///
    /// # Errors
    /// What `mmap(2)` says: among others `EINVAL` for a `len` of 0 or an `offset` that is not a multiple of the page
    /// size, `ENOMEM` when the address space or the limit on mappings is used up.
    pub fn shared(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Mapping> {
        // SAFETY: without MAP_FIXED the kernel picks a range that nothing else uses.
        let ptr = unsafe {
            mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )
        }?;
        Ok(Mapping { ptr: ptr.cast(), len })
    }

    /// Maps `len` bytes of zeroed anonymous memory, for tests and for storage in memory.
    ///
    /// # Errors
    /// What `mmap(2)` says: `EINVAL` for a `len` of 0, `ENOMEM` when memory or address space is used up.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        // SAFETY: without MAP_FIXED the kernel picks a range that nothing else uses.
        let ptr = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )
        }?;
        Ok(Mapping { ptr: ptr.cast(), len })
    }

    /// The first byte of the mapping.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The length in bytes; never 0.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // The kernel refuses an empty mapping.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that the constructor mapped, and nobody may use it after its owner is gone.
        // It fails only for arguments that the constructor already proved right.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}
