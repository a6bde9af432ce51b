//! One request's buffers, as addresses of ours.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::memory::Memory;

/// One contiguous piece of a request's buffer in guest memory.
///
/// It has the layout of an `iovec`, so that a list of segments goes to the kernel as it is. The bytes change at any time:
/// copy them (see [`copy`](crate::copy)), never borrow them.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Segment(libc::iovec);

// SAFETY: a segment is an address and a length; every access treats the memory as shared with others who write to it.
unsafe impl Send for Segment {}
// SAFETY: as above; nothing can be changed through a shared segment but the guest's memory, which has many writers anyway.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment over any memory, for callers that put a buffer of their own in the place of the guest's.
    ///
    /// # Safety
    /// The `len` bytes at `ptr` stay readable and writable for as long as the segment or a copy of it is used, and Rust
    /// references to them are not used while it is.
    #[inline]
    pub unsafe fn from_raw_parts(ptr: NonNull<u8>, len: usize) -> Segment {
        Segment(libc::iovec { iov_base: ptr.as_ptr().cast(), iov_len: len })
    }

    /// The first byte.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// The length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // A ring never yields an empty one.
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    /// The list as the kernel wants it.
    #[inline]
    pub fn as_iovecs(segments: &[Segment]) -> &[libc::iovec] {
        // SAFETY: `Segment` is a transparent wrapper of `iovec`, so the slices have one layout.
        unsafe { &*(ptr::from_ref(segments) as *const [libc::iovec]) }
    }

    /// Cuts off the first `bytes`, at most the whole segment.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len());
        // SAFETY: at most the segment's own length, so the result is inside the same memory or one past its end.
        self.0.iov_base = unsafe { self.ptr().add(bytes) }.cast();
        self.0.iov_len -= bytes;
    }

    /// Keeps at most the first `bytes`.
    #[inline]
    pub(crate) fn shorten(&mut self, bytes: usize) {
        self.0.iov_len = self.0.iov_len.min(bytes);
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}+{:#x}", self.ptr(), self.len())
    }
}

/// One descriptor chain, translated.
///
/// It is meant to be reused between pops: no request allocates once its capacity has grown. It keeps the memory table
/// under which it was popped alive, so its segments stay good while the ring moves on to another table; a chain that goes
/// back to a pool calls [`Chain::clear`] when it must not pin an old table.
#[derive(Debug, Default)]
pub struct Chain {
    /// All segments, the device-readable ones first.
    pub segments: Vec<Segment>,
    /// How many of `segments` are device-readable; the rest is device-writable.
    pub readable: usize,
    memory: Option<Arc<Memory>>,
}

impl Chain {
    /// What the device may read.
    ///
    /// A caller that cut `segments` must have kept `readable` true to them.
    #[inline]
    pub fn readable_segments(&self) -> &[Segment] {
        &self.segments[..self.readable.min(self.segments.len())]
    }

    /// What the device may write.
    #[inline]
    pub fn writable_segments(&self) -> &[Segment] {
        &self.segments[self.readable.min(self.segments.len())..]
    }

    /// How many bytes the device may read; at most 4 GiB.
    pub fn readable_bytes(&self) -> u64 {
        sum_bytes(self.readable_segments())
    }

    /// How many bytes the device may write; at most 4 GiB.
    pub fn writable_bytes(&self) -> u64 {
        sum_bytes(self.writable_segments())
    }

    /// The guest physical ranges (address, length in bytes) of segments of this chain, or of parts of them. Buffers of ours are
    /// skipped.
    pub fn guest_ranges<'a>(&'a self, segments: &'a [Segment]) -> impl Iterator<Item = (u64, u64)> + 'a {
        // A segment lies in one region, and so does every part of it.
        let range =
            |segment: &Segment| Some((self.memory.as_ref()?.guest_addr_of(segment.ptr())?, segment.len() as u64));
        segments.iter().filter_map(range)
    }

    /// The memory table that holds the segments; `None` before the first pop and after [`Chain::clear`].
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// Drops the segments and the hold on the memory table; keeps the capacity.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.readable = 0;
        self.memory = None;
    }

    /// Empties the chain for segments of `memory`. A chain that stays with one table touches no reference count.
    #[inline]
    pub(crate) fn restart(&mut self, memory: &Arc<Memory>) {
        self.segments.clear();
        self.readable = 0;
        match &self.memory {
            Some(held) if Arc::ptr_eq(held, memory) => {}
            _ => self.memory = Some(Arc::clone(memory)),
        }
    }
}

#[inline]
fn sum_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.len() as u64).sum()
}
