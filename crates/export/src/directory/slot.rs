//! One FUSE request in flight.

use super::reply;
use super::service::Moved;
use rustix::io::Errno;
use std::sync::{Arc, Mutex};
use tree::{OpenFile, Wait};
use vring::Segment;

/// What a request in flight waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing: it is answered in the turn that took it.
    Here,
    /// A read by io_uring.
    Read,
    /// A write by io_uring.
    Write,
    /// A sync by io_uring.
    Sync,
    /// A thread of the pool, which answers it too.
    Pool,
    /// A lock.
    Lock,
}

/// What a pool's thread needs of a request. It is kept from one request to the next for its buffers.
#[derive(Debug, Default)]
pub(crate) struct Job {
    /// The request's own bytes, copied.
    pub(crate) request: Vec<u8>,
    pub(crate) readable: Vec<Segment>,
    pub(crate) writable: Vec<Segment>,
    /// How many readable bytes there are, those of data included.
    pub(crate) readable_bytes: u64,
    pub(crate) reply: Vec<u8>,
    pub(crate) data: Vec<Segment>,
    pub(crate) moved: Moved,
    pub(crate) failed: bool,
}

/// A request's place, indexed by its head descriptor and used again for each request that starts there: after the first few
/// requests nothing here allocates.
pub(crate) struct Slot {
    pub(crate) busy: bool,
    /// Started in the turn that is running: the time it took is known only when the turn's batch is published.
    pub(crate) fresh: bool,
    pub(crate) work: Work,
    pub(crate) kind: usize,
    pub(crate) epoch: u64,
    pub(crate) started_ns: u64,
    pub(crate) unique: u64,
    /// Where the answer goes, for requests that are not answered at once.
    pub(crate) writable: Vec<Segment>,
    /// Where file data goes to or comes from.
    pub(crate) data: Vec<Segment>,
    /// Kept open until the kernel is done with it.
    pub(crate) file: Option<Arc<OpenFile>>,
    pub(crate) job: Arc<Mutex<Job>>,
    pub(crate) wait: Option<Arc<Wait>>,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Slot {
            busy: false,
            fresh: false,
            work: Work::Here,
            kind: 0,
            epoch: 0,
            started_ns: 0,
            unique: 0,
            writable: Vec::new(),
            data: Vec::new(),
            file: None,
            job: Arc::default(),
            wait: None,
        }
    }

    pub(crate) fn begin(&mut self, epoch: u64, now_ns: u64) {
        self.busy = true;
        self.fresh = true;
        self.work = Work::Here;
        self.kind = 0;
        self.epoch = epoch;
        self.started_ns = now_ns;
        self.unique = 0;
    }

    /// Remembers where the answer goes.
    pub(crate) fn defer(&mut self, work: Work, writable: &[Segment]) {
        self.work = work;
        self.writable.clear();
        self.writable.extend_from_slice(writable);
    }

    /// Answers a deferred request; returns how many bytes were written.
    pub(crate) fn answer(&mut self, outcome: Result<&[u8], Errno>) -> u32 {
        reply::write(&self.writable, self.unique, outcome)
    }

    pub(crate) fn end(&mut self) {
        self.busy = false;
        self.file = None;
        self.wait = None;
    }
}
