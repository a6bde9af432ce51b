//! Why a message is refused. The stream is still in step, so the session goes on.

use displaydoc::Display;
use thiserror::Error;

use vring::{InflightError, MemoryError};

#[derive(Debug, Display, Error)]
pub(crate) enum Refusal {
    /// it is not supported
    Unsupported,
    /// its body has {got} bytes, expected {expected}
    BodySize { got: usize, expected: usize },
    /// its body is not valid
    Body,
    /// it carries {got} file descriptors, expected {expected}
    Fds { got: usize, expected: usize },
    /// ring {index} does not exist, the device has {count}
    RingIndex { index: u32, count: u16 },
    /// ring {0} runs; it must be stopped by GET_VRING_BASE first
    RingRuns(u16),
    /// ring size {0} is not a power of two from 1 to 32768
    RingSize(u32),
    /// {0} does not fit into the 16 bits of a ring index
    RingBase(u32),
    /// the dirty log was requested but not negotiated
    Log,
    /// the dirty log of {bytes} bytes has no bit for guest address {last:#x}, which is to be logged
    LogSize { bytes: u64, last: u64 },
    /// the dirty log needs {bytes} bytes from {file_offset} on and its file has {room} there
    LogFileSize { bytes: u64, file_offset: u64, room: u64 },
    /// the dirty log is not a regular file (memfd, tmpfs, hugetlbfs or a file on disk)
    LogFile,
    /// the dirty log cannot be mapped: {0}
    LogMap(std::io::Error),
    /// features {0:#x} were not offered
    Features(u64),
    /// no memory table covers the areas of ring {0}
    RingOutsideMemory(u16),
    /// {0}
    Unavailable(String),
    /// ring {0} could not start: {1}
    RingStart(u16, String),
    /// the new memory table takes memory away that running ring {0} uses
    RingMemory(u16),
    /// {0}
    Memory(MemoryError),
    /// the memory table is full with {0} regions
    MemorySlots(usize),
    /// memory region at guest address {guest_addr:#x} needs {needed} bytes but its file has {file_bytes}
    MemoryFileSize { guest_addr: u64, needed: u64, file_bytes: u64 },
    /// memory region at guest address {0:#x} is not a regular file (memfd, tmpfs, hugetlbfs or a file on disk)
    MemoryFileType(u64),
    /// memory region at guest address {0:#x} wraps around
    MemoryWrap(u64),
    /// memory region at guest address {0:#x} cannot be mapped: {1}
    MemoryMap(u64, std::io::Error),
    /// the backend channel is not a unix stream socket
    BackendChannel,
    /// the device refused the config space access of {bytes} bytes at {offset}
    Config { offset: u32, bytes: usize },
    /// an inflight region for {queues} queues of {queue_size} descriptors is not possible, the device has {queues_max} queues of at most 32768
    InflightQueues { queues: u16, queue_size: u16, queues_max: usize },
    /// the inflight region for {queues} queues of {queue_size} descriptors needs {needed} bytes and has {room}
    InflightSize { queues: u16, queue_size: u16, needed: u64, room: u64 },
    /// the inflight region is not a regular file (memfd, tmpfs, hugetlbfs or a file on disk)
    InflightFile,
    /// the inflight region cannot be made or mapped: {0}
    InflightMap(std::io::Error),
    /// the inflight region has room for {queues} queues, and none for ring {index}
    InflightRing { index: u16, queues: u16 },
    /// inflight region: {0}
    Inflight(#[from] InflightError),
    /// the device state goes neither through a pipe nor through a stream socket of this host
    StateFile,
    /// the device state takes {bytes} bytes, and {most} are the most
    StateBytes { bytes: usize, most: usize },
    /// the device state cannot be moved: {0}
    StateConduit(std::io::Error),
    /// the device state is asked about before all of it was moved
    StateUnfinished,
    /// it begins a migration without DEVICE_STATE, so that what the guest has of the device would stay behind
    LogWithoutState,
    /// no device state was moved
    StateMissing,
    /// {0}
    State(String),
    /// a file descriptor could not be duplicated: {0}
    Duplicate(std::io::Error),
}

impl From<MemoryError> for Refusal {
    fn from(error: MemoryError) -> Self {
        Refusal::Memory(error)
    }
}
