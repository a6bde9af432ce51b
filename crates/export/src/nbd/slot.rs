//! One request in flight: its connection goes on.

use device::nbd::Work;
use storage::Task;

/// A request that the storage has, and the memory that goes with it.
pub(super) struct NbdRequest {
    /// It stays where it is until it is done.
    pub(super) task: Box<Task>,
    pub(super) work: Work,
    /// By which the client knows it.
    pub(super) cookie: u64,
    /// A read's reply, of which the head is there; or the message with a write's data.
    pub(super) buffer: Vec<u8>,
    /// Bytes that a trim or write zeroes has begun.
    pub(super) begun: u64,
    /// The flush behind a trim has begun.
    pub(super) flushing: bool,
}

impl NbdRequest {
    pub(super) fn new() -> NbdRequest {
        NbdRequest {
            task: Box::new(Task::new()),
            work: Work::Flush,
            cookie: 0,
            buffer: Vec::new(),
            begun: 0,
            flushing: false,
        }
    }

    /// A place for this request.
    pub(super) fn begin(&mut self, work: Work, cookie: u64, buffer: Vec<u8>) {
        (self.work, self.cookie, self.buffer) = (work, cookie, buffer);
        (self.begun, self.flushing) = (0, false);
        self.task.buffers.clear();
    }
}
