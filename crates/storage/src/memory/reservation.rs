//! Address space that nothing else is put into.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::NonNull;

/// A range of address space, which costs no memory. Whatever is mapped into it goes with it.
#[derive(Debug)]
pub(super) struct Reservation {
    start: NonNull<u8>,
    bytes: usize,
    /// The first multiple of the page size in it.
    base: NonNull<u8>,
    /// Bytes behind `base`.
    pub(super) room_bytes: u64,
}

impl Reservation {
    /// `room_bytes` from a multiple of `page_bytes` on, or `None` when there is no such address space (RLIMIT_AS).
    pub(super) fn new(room_bytes: u64, page_bytes: u64) -> Result<Option<Reservation>, Errno> {
        let bytes = usize::try_from(room_bytes.saturating_add(page_bytes)).map_err(|_| Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new address space at a place of the kernel's choice.
        let Ok(start) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }) else {
            return Ok(None);
        };
        let start = start.cast::<u8>();
        let base = start.wrapping_add(start.align_offset(page_bytes as usize));
        let (Some(start), Some(base)) = (NonNull::new(start), NonNull::new(base)) else {
            return Err(Errno::NOMEM);
        };
        Ok(Some(Reservation { start, bytes, base, room_bytes }))
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the whole reservation, and nobody uses it any more: who does holds its owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
