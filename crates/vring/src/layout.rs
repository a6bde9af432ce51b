//! Where a ring lies, how large it is, and how long its chains may be.

/// The largest legal ring, in descriptors (virtio 1.3, section 2.7).
pub const QUEUE_SIZE_MAX: u16 = 32768;

/// How many segments a chain may have in a ring of `size` descriptors, and how many descriptors, empty ones included, in an
/// indirect table.
///
/// 2.7.5.3.1 forbids chains longer than the ring, but drivers with indirect tables on small rings are known to make longer
/// ones; 1024 is what the kernel takes in one vectored call, and what other devices accept. The factor leaves room for
/// each descriptor to cross from one memory region into the next. Without a bound, a guest could have us keep half a
/// megabyte for each request of a small ring.
pub(crate) const fn segments_max(size: u16) -> usize {
    const ALWAYS: u16 = 1024;
    2 * (if size > ALWAYS { size } else { ALWAYS }) as usize
}

/// Where a ring lies and what was negotiated for it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Size in descriptors: a power of two, 1 to [`QUEUE_SIZE_MAX`].
    pub size: u16,
    /// Guest physical address of the descriptor table, a multiple of 16.
    pub desc: u64,
    /// Guest physical address of the available ring, a multiple of 2.
    pub avail: u64,
    /// Guest physical address of the used ring, a multiple of 4.
    pub used: u64,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
}
