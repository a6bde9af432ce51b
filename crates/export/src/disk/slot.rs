//! One request in flight.

use super::kind::Kind;
use device::blk::{Range, Status};
use std::ptr::NonNull;
use storage::Task;

/// A request's place, indexed by its head descriptor and used again for each request that starts there: after the first few
/// requests nothing here allocates.
pub(crate) struct Slot {
    pub(crate) task: Task,
    pub(crate) busy: bool,
    pub(crate) kind: Kind,
    /// Where the driver looks for the status; `None` for a chain without room for it.
    status: Option<NonNull<u8>>,
    /// Writable bytes before the status byte.
    pub(crate) writable_data: u64,
    /// Bytes that success puts into them.
    pub(crate) filled: u64,
    pub(crate) started_ns: u64,
    pub(crate) epoch: u64,
    /// Ranges of a discard or write zeroes, and how many of them have been started.
    pub(crate) ranges: Vec<Range>,
    pub(crate) ranges_started: usize,
    /// Started in the turn that is running: the time it took is known only when the turn's batch is published.
    pub(crate) fresh: bool,
}

// SAFETY: the status pointer leads into guest memory, which the queue's epoch keeps mapped for any thread.
unsafe impl Send for Slot {}

impl Slot {
    pub(crate) fn new() -> Self {
        Slot {
            task: Task::new(),
            busy: false,
            kind: Kind::Refused,
            status: None,
            writable_data: 0,
            filled: 0,
            started_ns: 0,
            epoch: 0,
            ranges: Vec::new(),
            ranges_started: 0,
            fresh: false,
        }
    }

    pub(crate) fn begin(&mut self, status: Option<NonNull<u8>>, epoch: u64, now_ns: u64) {
        self.busy = true;
        self.status = status;
        self.epoch = epoch;
        self.started_ns = now_ns;
        self.writable_data = 0;
        self.filled = 0;
        self.ranges.clear();
        self.ranges_started = 0;
        self.fresh = true;
        self.task.buffers.clear();
    }

    /// Writes the status where the driver looks for it, and says how many bytes count as written.
    pub(crate) fn answer(&mut self, status: Status) -> u32 {
        self.busy = false;
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
