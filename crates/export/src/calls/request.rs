//! One request in flight that is a call.

use super::data::{self, SEGMENTS_MAX};
use super::protocol::{Protocol, Transfer};
use super::{Cancel, Moved, Syncing};
use engine::{File, Io, Token};
use passthrough::OpenFile;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vring::Segment;

/// What a slot keeps of a buffer for the next request, in bytes: there are many slots, and listings of directories are long.
const KEPT_BYTES: usize = 8192;
/// The same of a list of segments, in segments: twice what a request of a mebibyte has.
const KEPT_SEGMENTS: usize = 512;

fn shorten(list: &mut Vec<Segment>) {
    list.clear();
    list.shrink_to(KEPT_SEGMENTS);
}

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
    /// A lock, or a mapping of the frontend's.
    Lock,
    /// The answer to another request.
    Other,
    /// A later turn: a limit holds it up, or it waits until its client has nothing any more.
    Turn,
}

impl Work {
    /// Whether it is for storage to end it, and not for a client or an operator.
    pub(crate) fn is_ours(self) -> bool {
        !matches!(self, Work::Lock | Work::Other | Work::Turn)
    }
}

/// What a pool's thread needs of a request. It is kept from one request to the next for its buffers.
#[derive(Debug, Default)]
pub(crate) struct Job {
    /// The request's own bytes, copied.
    pub(crate) request: Vec<u8>,
    pub(crate) readable: Vec<Segment>,
    pub(crate) writable: Vec<Segment>,
    pub(crate) reply: Vec<u8>,
    pub(crate) data: Vec<Segment>,
    pub(crate) moved: Moved,
    pub(crate) failed: bool,
}

impl Job {
    /// Takes a request over.
    pub(crate) fn load(&mut self, bytes: &[u8], readable: &[Segment], writable: &[Segment]) {
        self.request.clear();
        self.request.extend_from_slice(bytes);
        self.readable.clear();
        self.readable.extend_from_slice(readable);
        self.writable.clear();
        self.writable.extend_from_slice(writable);
        self.reply.clear();
        self.moved = Moved::default();
        self.failed = false;
    }

    /// It is done: what it moved, and whether it failed.
    pub(crate) fn conclude(&mut self) -> (Moved, bool) {
        for buffer in [&mut self.request, &mut self.reply] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES);
        }
        for list in [&mut self.readable, &mut self.writable, &mut self.data] {
            shorten(list);
        }
        (self.moved, self.failed)
    }

    /// How many readable bytes there are, those of data included.
    pub(crate) fn readable_bytes(&self) -> u64 {
        data::room(&self.readable) as u64
    }
}

/// A job is used by one thread at a time.
pub(crate) fn lock(job: &Mutex<Job>) -> MutexGuard<'_, Job> {
    job.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call's part of a request. `Asked` is what its answer has to know of it.
pub(crate) struct CallRequest<Asked> {
    pub(crate) work: Work,
    pub(crate) asked: Asked,
    /// Where the answer goes, for requests that are not answered at once.
    pub(crate) writable: Vec<Segment>,
    /// Where file data goes to or comes from.
    data: Vec<Segment>,
    /// Kept open until the kernel is done with it.
    file: Option<Arc<OpenFile>>,
    /// That it is one of those syncs.
    syncing: Option<Syncing>,
    pub(crate) job: Arc<Mutex<Job>>,
    pub(crate) wait: Option<Arc<dyn Cancel>>,
}

impl<Asked: Default> CallRequest<Asked> {
    pub(crate) fn new() -> Self {
        CallRequest {
            work: Work::Here,
            asked: Asked::default(),
            writable: Vec::new(),
            data: Vec::new(),
            file: None,
            syncing: None,
            job: Arc::default(),
            wait: None,
        }
    }
}

impl<Asked> CallRequest<Asked> {
    /// Remembers where the answer goes.
    pub(crate) fn defer(&mut self, work: Work, writable: &[Segment]) {
        self.work = work;
        self.writable.clear();
        self.writable.extend_from_slice(writable);
    }

    /// Has io_uring do it. False when it has to be done otherwise: too many pieces for one call.
    pub(crate) fn submit<P: Protocol<Asked = Asked>>(
        &mut self,
        (io, token): (&mut Io<'_>, Token),
        file: Arc<OpenFile>,
        (transfer, syncing): (Transfer, Option<Syncing>),
        (readable, writable): (&[Segment], &[Segment]),
    ) -> bool {
        match transfer {
            Transfer::Read { bytes, .. } => data::payload(writable, P::READ_HEAD_BYTES, bytes, &mut self.data),
            Transfer::Write { bytes, .. } => data::payload(readable, P::WRITE_HEAD_BYTES, bytes, &mut self.data),
            Transfer::Sync { .. } => 0,
        };
        let file = &*self.file.insert(file);
        let file = File::Plain(file.as_fd());
        match transfer {
            Transfer::Sync { data_only } => {
                self.syncing = syncing;
                self.work = Work::Sync;
                io.sync(token, file, data_only);
            }
            _ if self.data.is_empty() || self.data.len() > SEGMENTS_MAX => {
                self.file = None;
                return false;
            }
            Transfer::Read { offset, .. } => {
                self.work = Work::Read;
                // SAFETY: the segments lie in memory that the request keeps until it has ended, and the slot keeps the list in
                // place until the completion.
                unsafe { io.read(token, file, Segment::as_iovecs(&self.data), offset) };
            }
            Transfer::Write { offset, .. } => {
                self.work = Work::Write;
                // SAFETY: as for reading.
                unsafe { io.write(token, file, Segment::as_iovecs(&self.data), offset, false) };
            }
        }
        self.defer(self.work, writable);
        true
    }

    /// It is answered.
    pub(crate) fn end(&mut self) {
        self.work = Work::Here;
        self.file = None;
        self.syncing = None;
        self.wait = None;
        shorten(&mut self.writable);
        shorten(&mut self.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_does_not_stay_in_its_slot() {
        let mut job = Job::default();
        job.load(&[1; 100], &[], &[]);
        job.reply.extend_from_slice(&[2; 1 << 20]);
        job.failed = true;
        assert_eq!(job.conclude(), (Moved::default(), true));
        assert!(job.reply.capacity() < 2 * KEPT_BYTES && job.request.capacity() >= 100);
    }

    #[test]
    fn long_lists_of_segments_do_not_stay_in_their_slot() {
        // SAFETY: an empty segment, at which nobody looks.
        let segment = unsafe { Segment::from_raw_parts(std::ptr::NonNull::dangling(), 0) };
        let long = vec![segment; 65_536];
        let mut request = CallRequest::<u64>::new();
        request.defer(Work::Pool, &long);
        request.data.extend_from_slice(&long);
        let job = request.job.clone();
        let mut job = lock(&job);
        job.load(&[], &long, &long);
        job.data.extend_from_slice(&long);
        request.end();
        job.conclude();
        for list in [&request.writable, &request.data, &job.readable, &job.writable, &job.data] {
            assert!(list.capacity() < 2 * KEPT_SEGMENTS, "{}", list.capacity());
        }
    }
}
