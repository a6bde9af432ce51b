//! One mapped range of memory that is shared with a frontend.

use std::io;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use sigbus::Watch;

/// Owns one `mmap`; dropping it unmaps.
///
/// The bytes belong to the guest as much as to us: they change at any time, so nothing ever forms a Rust reference to
/// them. Whoever holds the file behind a [`Mapping::shared`] can shorten it; an access beyond its end then finds that all
/// of the mapping has become zeroed memory of ours alone, and [`Mapping::is_gone`] says so.
#[derive(Debug)]
pub struct Mapping {
    ptr: *mut u8,
    len: usize,
    /// Of shared memory, where the system lets us watch it.
    watch: Option<Watch>,
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
        let ptr = ptr.cast();
        // SAFETY: all of the mapping (a length that is no multiple of the page size the kernel rounds up, here and there),
        // which only raw pointers lead to. `drop` ends the watch first.
        let watch = unsafe { Watch::new(ptr, len) };
        Ok(Mapping { ptr, len, watch })
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
        Ok(Mapping { ptr: ptr.cast(), len, watch: None })
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

    /// Whether the memory behind it went away: its file was shortened, or its file system could not deliver a page. What
    /// is there now is shared with nobody.
    pub fn is_gone(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_gone)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.watch.take());
        // SAFETY: exactly the range that the constructor mapped, and nobody may use it after its owner is gone.
        // It fails only for arguments that the constructor already proved right.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}
