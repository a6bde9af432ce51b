//! Memory at an address that O_DIRECT takes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// A zeroed allocation with a chosen alignment.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to this value alone; the pointer is not shared.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    /// `None` when there is no memory, or for an alignment that is no power of two.
    pub fn new(len: usize, align: usize) -> Option<AlignedBuffer> {
        let layout = Layout::from_size_align(len.max(1), align).ok()?;
        // SAFETY: the layout's size is not zero.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(AlignedBuffer { pointer, layout })
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Its length, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) };
    }
}
