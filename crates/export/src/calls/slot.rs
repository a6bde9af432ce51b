//! One request in flight.

use super::data::{self, SEGMENTS_MAX};
use super::{Moved, Syncing};
use engine::{File, Io, Token};
use passthrough::{OpenFile, Wait};
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
    /// A lock.
    Lock,
    /// The answer to another request.
    Other,
    /// A later turn: a limit holds it up, or it waits until its client has nothing any more.
    Turn,
}

impl Work {
    /// Whether it is for storage to end it, and not for a client or an operator.
    fn is_ours(self) -> bool {
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

/// A request's place, indexed by its head descriptor and used again for each request that starts there: after the first few
/// requests nothing here allocates. `Id` is what the protocol names a request by.
pub(crate) struct Slot<Id> {
    pub(crate) busy: bool,
    /// Started in the turn that is running: the time it took is known only when the turn's batch is published.
    pub(crate) fresh: bool,
    pub(crate) work: Work,
    pub(crate) kind: usize,
    pub(crate) epoch: u64,
    pub(crate) started_ns: u64,
    pub(crate) id: Id,
    /// Where the answer goes, for requests that are not answered at once.
    pub(crate) writable: Vec<Segment>,
    /// Where file data goes to or comes from.
    data: Vec<Segment>,
    /// Kept open until the kernel is done with it.
    file: Option<Arc<OpenFile>>,
    /// That it is one of those syncs.
    syncing: Option<Syncing>,
    pub(crate) job: Arc<Mutex<Job>>,
    pub(crate) wait: Option<Arc<Wait>>,
}

impl<Id: Default> Slot<Id> {
    pub(crate) fn new() -> Self {
        Slot {
            busy: false,
            fresh: false,
            work: Work::Here,
            kind: 0,
            epoch: 0,
            started_ns: 0,
            id: Id::default(),
            writable: Vec::new(),
            data: Vec::new(),
            file: None,
            syncing: None,
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
        self.id = Id::default();
    }
}

impl<Id> Slot<Id> {
    /// A request that waited is executed in the turn that is running.
    pub(crate) fn resume(&mut self, now_ns: u64) {
        self.fresh = true;
        self.work = Work::Here;
        self.started_ns = now_ns;
    }

    /// Remembers where the answer goes.
    pub(crate) fn defer(&mut self, work: Work, writable: &[Segment]) {
        self.work = work;
        self.writable.clear();
        self.writable.extend_from_slice(writable);
    }

    /// Reads `bytes` at `offset` by io_uring, to behind the first `head` bytes of the answer. False when it has to be done
    /// otherwise.
    pub(crate) fn read(
        &mut self,
        (io, token): (&mut Io<'_>, Token),
        file: Arc<OpenFile>,
        offset: u64,
        (writable, head, bytes): (&[Segment], usize, usize),
    ) -> bool {
        data::payload(writable, head, bytes, &mut self.data);
        if self.data.is_empty() || self.data.len() > SEGMENTS_MAX {
            return false;
        }
        self.defer(Work::Read, writable);
        let file = self.file.insert(file);
        // SAFETY: the segments lie in memory that the request's epoch keeps mapped, and the slot keeps the list in place
        // until the completion.
        unsafe { io.read(token, File::Plain(file.as_fd()), Segment::as_iovecs(&self.data), offset) };
        true
    }

    /// Writes `bytes` at `offset` by io_uring, from behind the first `head` bytes of the request. False when it has to be done
    /// otherwise.
    pub(crate) fn write(
        &mut self,
        (io, token): (&mut Io<'_>, Token),
        file: Arc<OpenFile>,
        offset: u64,
        (readable, head, bytes): (&[Segment], usize, usize),
        writable: &[Segment],
    ) -> bool {
        data::payload(readable, head, bytes, &mut self.data);
        if self.data.is_empty() || self.data.len() > SEGMENTS_MAX {
            return false;
        }
        self.defer(Work::Write, writable);
        let file = self.file.insert(file);
        // SAFETY: as for reading.
        unsafe { io.write(token, File::Plain(file.as_fd()), Segment::as_iovecs(&self.data), offset, false) };
        true
    }

    /// Makes a file's data stable by io_uring, or all that is known of the file.
    pub(crate) fn sync(
        &mut self,
        (io, token): (&mut Io<'_>, Token),
        file: Arc<OpenFile>,
        (data_only, syncing): (bool, Syncing),
        writable: &[Segment],
    ) {
        self.defer(Work::Sync, writable);
        self.syncing = Some(syncing);
        let file = self.file.insert(file);
        io.sync(token, File::Plain(file.as_fd()), data_only);
    }

    pub(crate) fn end(&mut self) {
        self.busy = false;
        self.file = None;
        self.syncing = None;
        self.wait = None;
        shorten(&mut self.writable);
        shorten(&mut self.data);
    }

    /// When the one of these requests was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC. Looks at
    /// every slot: for whoever asks, not for the path of a request. Those that wait for a lock wait for another client, and do
    /// not count.
    pub(crate) fn oldest_ns(slots: &[Self]) -> Option<u64> {
        slots.iter().filter(|slot| slot.busy && slot.work.is_ours()).map(|slot| slot.started_ns).min()
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
        let mut slot = Slot::<u64>::new();
        slot.defer(Work::Pool, &long);
        slot.data.extend_from_slice(&long);
        let job = slot.job.clone();
        let mut job = lock(&job);
        job.load(&[], &long, &long);
        job.data.extend_from_slice(&long);
        slot.end();
        job.conclude();
        for list in [&slot.writable, &slot.data, &job.readable, &job.writable, &job.data] {
            assert!(list.capacity() < 2 * KEPT_SEGMENTS, "{}", list.capacity());
        }
    }
}
