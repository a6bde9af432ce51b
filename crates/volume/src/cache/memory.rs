//! Arrays whose address space is reserved at once and whose memory comes with the first touch.
//!
//! The map and the bitmaps have a place for every block of the disk, and a disk has many more blocks than the cache has slots.
//! An anonymous mapping costs a page only where somebody wrote, reads as zeroes elsewhere, and never moves when the disk grows,
//! so that readers need no lock against growth.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use super::sync::{AtomicU32, AtomicU64};

/// What an [`Array`] may hold.
///
/// # Safety
///
/// Zero bytes are a value of the type, the type has no drop, and shared references to it may be used by all threads.
pub(super) unsafe trait Zeroed: Sync {}

// SAFETY: an atomic integer of zero bytes is 0.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU64 {}

/// Whether the kernel may back the memory with huge pages: sensible where all of it is used, a waste where few pages are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    Any,
    Small,
}

/// A fixed place for up to `reserved` elements, of which the first `len` may be used. They begin as zero bytes.
pub(super) struct Array<T> {
    base: NonNull<T>,
    bytes: usize,
    reserved: usize,
    len: AtomicUsize,
    elements: PhantomData<T>,
}

// SAFETY: the mapping belongs to no thread, and what is in it may be shared (`Zeroed`).
unsafe impl<T: Zeroed> Send for Array<T> {}
// SAFETY: as above; `extend` only changes protection, towards more.
unsafe impl<T: Zeroed> Sync for Array<T> {}

impl<T: Zeroed> Array<T> {
    /// Reserves address space for `reserved` elements and opens the first `len`.
    ///
    /// # Errors
    ///
    /// The array is larger than the address space, or the kernel refuses the mapping.
    pub(super) fn new(len: usize, reserved: usize, pages: Pages) -> io::Result<Array<T>> {
        let reserved = reserved.max(len).max(1);
        let bytes = reserved.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping, wherever the kernel has room for it.
        let address = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let Some(base) = NonNull::new(address.cast::<T>()) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        // From here on `Drop` unmaps, whatever fails.
        let array = Array { base, bytes, reserved, len: AtomicUsize::new(0), elements: PhantomData };
        if pages == Pages::Small {
            // A kernel without huge pages refuses, and has no need of the advice.
            // SAFETY: the advice changes how our own mapping is backed, not what is in it.
            let _ignored = unsafe { madvise(address, bytes, Advice::LinuxNoHugepage) };
        }
        array.extend(len)?;
        Ok(array)
    }

    /// Opens the elements up to `len`; one caller at a time. A smaller `len` than before changes nothing.
    ///
    /// # Errors
    ///
    /// More than was reserved, or the kernel has no memory to promise.
    pub(super) fn extend(&self, len: usize) -> io::Result<()> {
        if len <= self.len() {
            return Ok(());
        }
        if len > self.reserved {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: a part of our mapping (`len <= reserved`) becomes readable and writable; the kernel rounds up to whole pages,
        // which the mapping consists of.
        unsafe {
            mprotect(self.base.as_ptr().cast(), len * size_of::<T>(), MprotectFlags::READ | MprotectFlags::WRITE)
        }?;
        // Release: who sees the length may touch the memory.
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// How many elements may be used.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// The element `index`.
    ///
    /// # Panics
    ///
    /// If it is not below [`Array::len`].
    pub(super) fn at(&self, index: usize) -> &T {
        let len = self.len();
        assert!(index < len, "element {index} of an array of {len}");
        // SAFETY: the element lies in the open part of the mapping, which lives as long as `self`; zero bytes are a value of T
        // and T may be shared (`Zeroed`).
        unsafe { self.base.add(index).as_ref() }
    }

    /// Gives the memory of `count` elements from `first` on back: they are zero bytes again.
    ///
    /// # Safety
    ///
    /// The elements lie on whole pages, all of their bytes are zero, and nobody changes one of them meanwhile.
    pub(super) unsafe fn give_back(&self, first: usize, count: usize) {
        assert!(first.checked_add(count).is_some_and(|end| end <= self.reserved), "{count} elements from {first}");
        // SAFETY: within the reservation, so within the mapping.
        let address = unsafe { self.base.add(first) }.as_ptr().cast::<c_void>();
        // SAFETY: whole pages of zeroes are replaced by pages of zeroes, and no write is under way (the caller's promise). If the
        // kernel refuses, they stay.
        let _ignored = unsafe { madvise(address, count * size_of::<T>(), Advice::LinuxDontNeed) };
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody borrows any more; its elements need no drop (`Zeroed`).
        let _ignored = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
