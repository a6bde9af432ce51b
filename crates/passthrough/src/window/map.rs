//! One mapping of a file, and what all of a tree's may take.

use crate::sync::Counted;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use sigbus::{Gone, Guard};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Mappings of one tree. A process may have 65,530 by default (`vm.max_map_count`).
const COUNT_MAX: usize = 1024;
/// Bytes of address space for the mappings of one tree. When every page was read, its page tables take 64 MiB.
const BYTES_MAX: u64 = 32 << 30;

/// What the mappings of a tree have in common.
#[derive(Debug)]
pub(crate) struct Windows {
    pub(super) guard: Guard,
    /// Bytes of a page of memory, a power of two.
    pub(super) page: u64,
    count: Arc<AtomicUsize>,
    bytes: AtomicU64,
}

impl Windows {
    /// `None` where nothing is mapped: because it is not wanted, or because a copy from a mapping could not survive that a
    /// file shrinks.
    pub(crate) fn new(wanted: bool) -> Option<Arc<Windows>> {
        let guard = if wanted { Guard::install() } else { None }?;
        let page = rustix::param::page_size() as u64;
        Some(Arc::new(Windows { guard, page, count: Arc::default(), bytes: AtomicU64::new(0) }))
    }

    /// How many files are mapped.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// A range of address space that is counted.
#[derive(Debug)]
struct Share {
    windows: Arc<Windows>,
    bytes: u64,
    _counted: Counted,
}

impl Share {
    fn new(windows: &Arc<Windows>, bytes: u64) -> Option<Share> {
        let counted = Counted::within(&windows.count, COUNT_MAX)?;
        let grow = |all: u64| all.checked_add(bytes).filter(|&all| all <= BYTES_MAX);
        windows.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        Some(Share { windows: Arc::clone(windows), bytes, _counted: counted })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.windows.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The first bytes of a file, and address space for what it may grow to, readable at an address of ours.
#[derive(Debug)]
pub(super) struct Map {
    at: NonNull<u8>,
    share: Share,
}

// SAFETY: the pages are only read, through raw pointers and while the map is borrowed; other processes write to them anyway.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes, a multiple of a page; the file may be shorter. `None` beyond the bounds, and where the kernel has
    /// something against it (a security module may).
    pub(super) fn new(windows: &Arc<Windows>, file: BorrowedFd<'_>, len: u64) -> Option<Map> {
        let share = Share::new(windows, len)?;
        let bytes = usize::try_from(len).ok()?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }.ok()?;
        let map = Map { at: NonNull::new(at.cast())?, share };
        // What is not in memory is read as a call would read it: what was asked for, and not its neighbourhood too.
        // SAFETY: advice for a mapping of ours that changes none of its bytes.
        let _ = unsafe { madvise(at, bytes, Advice::Random) };
        Some(map)
    }

    /// Bytes that are mapped.
    pub(super) fn len(&self) -> u64 {
        self.share.bytes
    }

    fn address(&self, offset: u64, len: u64) -> Option<*const u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        // What is inside a mapping fits into an address.
        inside.then(|| self.at.as_ptr().cast_const().wrapping_add(offset as usize))
    }

    /// The byte at `offset`.
    ///
    /// # Errors
    /// [`Gone`] when it is not mapped, or its page is not there.
    pub(super) fn byte(&self, offset: u64) -> Result<u8, Gone> {
        let at = self.address(offset, 1).ok_or(Gone)?;
        // SAFETY: the address is inside a mapping of ours, which lives as long as `self`.
        unsafe { self.share.windows.guard.byte(at) }
    }

    /// Copies `len` bytes from `offset` on into the pieces, which have room for them.
    ///
    /// # Errors
    /// As [`Map::byte`], for any of them and for the pieces.
    ///
    /// # Safety
    /// The pieces are memory that may be overwritten, which no reference relies on and which stays what it is meanwhile.
    pub(super) unsafe fn copy(&self, into: &[libc::iovec], offset: u64, len: usize) -> Result<(), Gone> {
        let mut from = self.address(offset, len as u64).ok_or(Gone)?;
        let mut left = len;
        for piece in into {
            let some = piece.iov_len.min(left);
            // SAFETY: `from` has at least `left` bytes of our mapping before it; the piece is the caller's promise.
            unsafe { self.share.windows.guard.copy(piece.iov_base.cast(), from, some)? };
            from = from.wrapping_add(some);
            left -= some;
        }
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever used it has borrowed this value.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len() as usize) };
    }
}
