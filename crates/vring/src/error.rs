//! What can be wrong with a memory table or with a ring.

use std::fmt;

use displaydoc::Display;
use thiserror::Error;

use crate::inflight::InflightError;

/// Why a memory table was refused.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// memory region at guest address {guest_addr:#x} is empty
    Empty {
        /// First guest physical address.
        guest_addr: u64,
    },
    /// memory region of {len:#x} bytes wraps around the address space (guest address {guest_addr:#x}, user address {user_addr:#x})
    Wraps {
        /// First guest physical address.
        guest_addr: u64,
        /// First address in the frontend.
        user_addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// memory region of {len:#x} bytes at guest address {guest_addr:#x} exceeds its mapping, which has {room:#x} bytes from its offset on
    BeyondMapping {
        /// First guest physical address.
        guest_addr: u64,
        /// Length of the region in bytes.
        len: u64,
        /// Bytes that the mapping holds from the region's offset on.
        room: u64,
    },
    /// memory region at guest address {guest_addr:#x} overlaps the one at {other_guest_addr:#x} with {other_len:#x} bytes
    Overlap {
        /// First guest physical address of the higher region.
        guest_addr: u64,
        /// First guest physical address of the lower region.
        other_guest_addr: u64,
        /// Length of the lower region in bytes.
        other_len: u64,
    },
    /// memory regions at guest addresses {other_guest_addr:#x} and {guest_addr:#x} share bytes of one mapping
    SharedBytes {
        /// First guest physical address of one.
        guest_addr: u64,
        /// First guest physical address of the other.
        other_guest_addr: u64,
    },
    /// no memory region has guest address {guest_addr:#x}, user address {user_addr:#x} and {len:#x} bytes
    NotFound {
        /// First guest physical address asked for.
        guest_addr: u64,
        /// First address in the frontend asked for.
        user_addr: u64,
        /// Length in bytes asked for.
        len: u64,
    },
}

/// a dirty log of {bytes} bytes does not lie in its mapping, which has {room} bytes from its offset on
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub struct LogError {
    /// Length of the log in bytes.
    pub bytes: usize,
    /// Bytes that the mapping holds from the log's offset on.
    pub room: usize,
}

/// One of the three areas of a split virtqueue (virtio 1.3, section 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The descriptor table (2.7.5).
    Descriptors,
    /// The available ring (2.7.6).
    Available,
    /// The used ring (2.7.8).
    Used,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Area::Descriptors => "descriptor table",
            Area::Available => "available ring",
            Area::Used => "used ring",
        })
    }
}

/// What is wrong with a ring. After any of these from [`pop`](crate::SplitRing::pop) the ring cannot be trusted further.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub enum RingError {
    /// ring size {size} is not a power of two between 1 and 32768
    BadSize {
        /// The size asked for, in descriptors.
        size: u16,
    },
    /// {area} at {guest_addr:#x} is not aligned to {align} bytes
    Misaligned {
        /// Which area.
        area: Area,
        /// Its guest physical address.
        guest_addr: u64,
        /// What the specification demands, in bytes.
        align: u64,
    },
    /// {area} of {len} bytes at {guest_addr:#x} does not lie inside one memory region
    AreaOutsideMemory {
        /// Which area.
        area: Area,
        /// Its guest physical address.
        guest_addr: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// the memory at {guest_addr:#x} is gone: the frontend shortened the file behind it, or that could not deliver a page
    MemoryGone {
        /// First guest physical address of the memory region.
        guest_addr: u64,
    },
    /// the dirty log is gone: the frontend shortened the file behind it, or that could not deliver a page
    LogGone,
    /// driver's available index {index} is {ahead} ahead of ours in a ring of {size}
    AvailableRanAhead {
        /// The index that the driver wrote.
        index: u16,
        /// How far it is ahead of the next request we expect.
        ahead: u16,
        /// Size of the ring in descriptors.
        size: u16,
    },
    /// driver made more than {size} requests available before the earlier ones were used
    TooManyInFlight {
        /// Size of the ring in descriptors.
        size: u16,
    },
    /// head {head} is outside the descriptor table of {size}
    HeadOutOfRange {
        /// The index in the available ring's entry.
        head: u16,
        /// Size of the ring in descriptors.
        size: u16,
    },
    /// chain of head {head} continues at {next}, outside its descriptor table of {size}
    NextOutOfRange {
        /// Head of the chain.
        head: u16,
        /// The index in the descriptor's `next`.
        next: u16,
        /// Entries of the table in which the chain runs.
        size: u32,
    },
    /// chain of head {head} has more than {limit} descriptors: it loops, or is longer than any request
    ChainTooLong {
        /// Head of the chain.
        head: u16,
        /// Entries of the table in which the chain runs, or what a ring of this size allows for if that is less.
        limit: u32,
    },
    /// chain of head {head} has more than {limit} segments
    TooManySegments {
        /// Head of the chain.
        head: u16,
        /// Segments that a chain of this ring may have.
        limit: u32,
    },
    /// chain of head {head} has more than 4 GiB
    TooManyBytes {
        /// Head of the chain.
        head: u16,
    },
    /// chain of head {head} points to {len} bytes at {guest_addr:#x}, outside memory
    OutsideMemory {
        /// Head of the chain.
        head: u16,
        /// The first guest physical address of the buffer or indirect table.
        guest_addr: u64,
        /// Length of the buffer or indirect table in bytes.
        len: u32,
    },
    /// chain of head {head} has a device-readable descriptor behind a device-writable one
    ReadableAfterWritable {
        /// Head of the chain.
        head: u16,
    },
    /// chain of head {head} uses an indirect table, which was not negotiated
    IndirectNotNegotiated {
        /// Head of the chain.
        head: u16,
    },
    /// chain of head {head} has an indirect table inside an indirect table
    NestedIndirect {
        /// Head of the chain.
        head: u16,
    },
    /// chain of head {head} has a descriptor with both the indirect and the next flag
    IndirectWithNext {
        /// Head of the chain.
        head: u16,
    },
    /// chain of head {head} has an indirect table of {len} bytes; legal are multiples of 16 from 16 to 524288
    BadIndirectLength {
        /// Head of the chain.
        head: u16,
        /// Length in bytes.
        len: u32,
    },
    /// inflight region: {0}
    Inflight(#[from] InflightError),
}
