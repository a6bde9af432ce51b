//! One request in flight.

use crate::trace::What;
use device::blk::{Range, Status};
use std::ptr::NonNull;
use storage::Task;

/// A disk's part of a request.
pub(crate) struct DiskRequest {
    pub(crate) task: Task,
    /// Where the driver looks for the status; `None` for a chain without room for it.
    status: Option<NonNull<u8>>,
    /// Writable bytes before the status byte.
    pub(crate) writable_data: u64,
    /// Bytes that success puts into them.
    pub(crate) filled: u64,
    /// Ranges of a discard or write zeroes, and how many of them have been started.
    pub(crate) ranges: Vec<Range>,
    pub(crate) ranges_started: usize,
}

// SAFETY: the status pointer leads into guest memory, which the queue's epoch keeps mapped for any thread.
unsafe impl Send for DiskRequest {}

impl DiskRequest {
    pub(crate) fn new() -> Self {
        DiskRequest {
            task: Task::new(),
            status: None,
            writable_data: 0,
            filled: 0,
            ranges: Vec::new(),
            ranges_started: 0,
        }
    }

    #[inline]
    pub(crate) fn begin(&mut self, (status, writable_data): (Option<NonNull<u8>>, u64)) {
        self.status = status;
        self.writable_data = writable_data;
        self.filled = 0;
        self.ranges.clear();
        self.ranges_started = 0;
        self.task.buffers.clear();
    }

    /// From the first byte of its ranges, by how many bytes of them, for those who trace requests.
    pub(crate) fn spans(&self) -> What {
        let first = self.ranges.iter().map(|range| range.offset).min();
        let bytes = self.ranges.iter().map(|range| range.len).sum();
        first.map_or_else(What::default, |first| What::range(first, bytes))
    }

    /// Writes the status where the driver looks for it, and says how many bytes count as written.
    #[inline]
    pub(crate) fn answer(&mut self, status: Status) -> u32 {
        self.task.rest();
        let Some(place) = self.status.take() else {
            return 0;
        };
        // SAFETY: the last writable byte of the chain, inside guest memory that the request's epoch keeps mapped.
        unsafe { place.as_ptr().write_volatile(status.byte()) };
        let filled = if status == Status::Ok { self.filled } else { 0 };
        device::blk::used_bytes(self.writable_data, filled)
    }
}
