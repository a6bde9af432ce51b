//! A virtio-blk ring and the storage behind it: the attachment. Kick to notification passes through this file.

use super::kind::Kind;
use super::slot::Slot;
use crate::figures::RingFigures;
use crate::label::Label;
use crate::limit::{Ask, Gate, is_deadline};
use crate::queue::{Broken, Queue};
use device::blk::{Limits, Request, Status, decode_request, spec};
use engine::{Completion, Io, Token};
use std::ptr::NonNull;
use std::sync::Arc;
use storage::{Operation, Step, Storage, StorageError};
use vring::{Chain, Memory, Segment};

/// Requests taken in one turn, so that rings of one worker take turns.
const BATCH_MAX: usize = 64;
/// Requests that complete while they are started are shown to the driver in groups of this size: it works on the first while
/// we work on the next.
const PUBLISH_EVERY: usize = 16;
/// Bytes before the data of a chain.
const HEADER: usize = spec::HEADER_BYTES;

/// What all rings of a disk are told, each with its own copy, so that a request looks at no shared state.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    /// Every write must be durable before it is answered.
    pub(crate) write_through: bool,
    pub(crate) serial: [u8; spec::SERIAL_BYTES],
}

/// One virtqueue of a disk; what workers drive.
pub struct DiskRing {
    queue: Queue,
    terms: Terms,
    storage: Arc<dyn Storage>,
    /// One a descriptor, by head.
    slots: Box<[Slot]>,
    chain: Chain,
    payload: Vec<u8>,
    figures: RingFigures,
    /// Requests answered in this turn that were taken in it.
    fresh_done: u64,
    /// When the first of those was taken: rings of one worker have their turns one after the other.
    fresh_since_ns: u64,
    /// Pushed since the last publication.
    pushed: usize,
    /// Since when requests wait that did not fit into a batch, or that a limit holds up.
    backlog_since_ns: Option<u64>,
    gate: Gate,
}

impl DiskRing {
    pub(crate) fn new(
        start: vhost_user::RingStart,
        terms: Terms,
        storage: Arc<dyn Storage>,
        label: Label,
    ) -> Result<Self, Broken> {
        let queue = Queue::new(start, label)?;
        if queue.owed() > 0 {
            let Label { export, ring, .. } = queue.label();
            tracing::info!(%export, ring, requests = queue.owed(), "requests of an earlier life are done again");
        }
        let slots = (0..queue.size()).map(|_| Slot::new()).collect();
        Ok(DiskRing {
            queue,
            terms,
            storage,
            slots,
            chain: Chain::default(),
            payload: Vec::new(),
            figures: RingFigures::new(&Kind::NAMES),
            fresh_done: 0,
            fresh_since_ns: 0,
            pushed: 0,
            backlog_since_ns: None,
            gate: Gate::default(),
        })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// A new memory table. Nothing is in flight in the chain that is kept for the next request: it holds no table back, which would
    /// stay mapped until then, and be unmapped by the worker.
    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
        self.chain.clear();
        self.queue.set_memory(memory);
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn gate_mut(&mut self) -> &mut Gate {
        &mut self.gate
    }

    pub(crate) fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    pub(crate) fn label(&self) -> &Label {
        self.queue.label()
    }

    /// When the request was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC. Looks at every slot:
    /// for whoever asks, not for the path of a request.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.slots.iter().filter(|slot| slot.busy).map(|slot| slot.started_ns).min()
    }

    /// The figures so far, but for those that the queue keeps.
    pub(crate) fn figures(&self) -> &RingFigures {
        &self.figures
    }

    /// Takes the popped chain apart and starts it.
    fn start(&mut self, head: u16, epoch: u64, io: &mut Io<'_>) {
        let slot = &mut self.slots[usize::from(head)];
        if slot.busy {
            self.queue.forget(epoch);
            self.queue.break_down(Broken::HeadInFlight(head));
            return;
        }
        let (status, writable_data) = split_status(self.chain.writable_segments());
        slot.begin(status, epoch, io.now_ns());
        slot.writable_data = writable_data;
        let readable = self.chain.readable_segments();
        let mut header = [0; HEADER];
        if status.is_none() || vring::copy::read_at(readable, 0, &mut header) < HEADER {
            return self.refuse(head);
        }
        let readable_data = self.chain.readable_bytes() - HEADER as u64;
        let payload = device::blk::Header::decode(&header).payload_bytes(readable_data);
        self.payload.resize(payload, 0);
        if payload > 0 {
            vring::copy::read_at(readable, HEADER as u64, &mut self.payload);
        }
        match decode_request(&header, readable_data, writable_data, &self.payload, &self.terms.limits) {
            Err(refusal) => self.refused(head, refusal.status),
            Ok(Request::Read { offset, len }) => {
                slot.kind = Kind::Read;
                slot.filled = len;
                self.figures.bytes_read += len;
                add_buffers(&mut slot.task.buffers, self.chain.writable_segments(), 0, len);
                slot.task.begin(Operation::Read { offset });
                self.submit(head, len, io);
            }
            Ok(Request::Write { offset, len }) => {
                slot.kind = Kind::Write;
                self.figures.bytes_written += len;
                add_buffers(&mut slot.task.buffers, readable, HEADER, len);
                slot.task.begin(Operation::Write { offset, durable: self.terms.write_through });
                self.submit(head, len, io);
            }
            Ok(Request::Flush) => {
                slot.kind = Kind::Flush;
                slot.task.begin(Operation::Flush);
                self.submit(head, 1, io);
            }
            Ok(Request::GetId) => {
                slot.kind = Kind::GetId;
                slot.filled = vring::copy::write_at(self.chain.writable_segments(), 0, &self.terms.serial) as u64;
                self.finish(head, Status::Ok);
            }
            Ok(Request::Discard(ranges)) => {
                slot.kind = Kind::Discard;
                slot.ranges.extend(ranges.iter());
                self.next_range(head, io);
            }
            Ok(Request::WriteZeroes(ranges)) => {
                slot.kind = Kind::WriteZeroes;
                slot.ranges.extend(ranges.iter());
                self.next_range(head, io);
            }
        }
    }

    /// Hands the slot's task to the storage. Nothing to transfer is nothing to do.
    fn submit(&mut self, head: u16, len: u64, io: &mut Io<'_>) {
        let slot = &mut self.slots[usize::from(head)];
        let step =
            if len == 0 { Step::Done(Ok(())) } else { self.storage.start(&mut slot.task, Token::request(head), io) };
        self.follow(head, step, io);
    }

    /// Starts the next range of a discard or write zeroes; they go one after the other.
    fn next_range(&mut self, head: u16, io: &mut Io<'_>) {
        let slot = &mut self.slots[usize::from(head)];
        let Some(range) = slot.ranges.get(slot.ranges_started).copied() else {
            return self.finish(head, Status::Ok);
        };
        slot.ranges_started += 1;
        let (offset, len) = (range.offset, range.len);
        slot.task.begin(if slot.kind == Kind::Discard {
            Operation::Discard { offset, len }
        } else {
            Operation::WriteZeroes { offset, len, unmap: range.unmap, durable: self.terms.write_through }
        });
        self.submit(head, len, io);
    }

    fn follow(&mut self, head: u16, step: Step, io: &mut Io<'_>) {
        match step {
            Step::Pending => {}
            Step::Done(Ok(())) if !self.slots[usize::from(head)].ranges.is_empty() => self.next_range(head, io),
            Step::Done(Ok(())) => self.finish(head, Status::Ok),
            Step::Done(Err(error)) => {
                let Label { export, ring, .. } = self.queue.label();
                tracing::debug!(export = &**export, ring, %error, "a request failed");
                self.finish(head, status_of(&error));
            }
        }
    }

    /// Ends a chain too short to be a request.
    fn refuse(&mut self, head: u16) {
        self.refused(head, Status::IoError);
    }

    fn refused(&mut self, head: u16, status: Status) {
        self.slots[usize::from(head)].kind = Kind::Refused;
        self.finish(head, status);
    }

    fn finish(&mut self, head: u16, status: Status) {
        let slot = &mut self.slots[usize::from(head)];
        self.figures.requests.count(slot.kind as usize);
        self.figures.errors += u64::from(status != Status::Ok);
        let written = slot.answer(status);
        if slot.fresh {
            if self.fresh_done == 0 {
                self.fresh_since_ns = slot.started_ns;
            }
            self.fresh_done += 1;
        }
        let epoch = slot.epoch;
        self.queue.push(head, written, epoch);
        self.pushed += 1;
    }

    /// Bytes of the reads and writes begun so far, as limits count them.
    fn moved_bytes(&self) -> u64 {
        self.figures.bytes_read + self.figures.bytes_written
    }

    /// A deadline that the gate had set: requests may be taken again.
    fn gate_reached(&mut self, token: Token, io: &mut Io<'_>) {
        if let Some(deadline) = self.gate.reached(token, self.queue.ready(), io.now_ns()) {
            io.timer(deadline.token, deadline.at_ns);
        }
    }
}

/// What its worker calls; see [`engine::Ring`].
impl DiskRing {
    pub(crate) fn serve(&mut self, io: &mut Io<'_>) -> usize {
        let grant = match self.gate.ask(BATCH_MAX as u32, io.now_ns()) {
            Ask::Go(grant) => grant,
            Ask::Wait(deadline) => {
                self.backlog_since_ns.get_or_insert(io.now_ns());
                io.timer(deadline.token, deadline.at_ns);
                return 0;
            }
        };
        let moved = self.moved_bytes();
        let mut taken = 0;
        while taken < grant.requests as usize && !grant.is_spent(self.moved_bytes() - moved) {
            let mut chain = std::mem::take(&mut self.chain);
            let popped = self.queue.pop(&mut chain);
            self.chain = chain;
            let Some((head, epoch)) = popped else {
                break;
            };
            self.start(head, epoch, io);
            taken += 1;
            if self.pushed >= PUBLISH_EVERY {
                self.pushed = 0;
                self.queue.publish();
            }
        }
        self.gate.settle(grant, taken as u32, self.moved_bytes() - moved);
        let waited_ns = self.backlog_since_ns.map_or(0, |since| io.now_ns().saturating_sub(since));
        self.figures.queued.record(waited_ns, taken as u64);
        let more = taken == BATCH_MAX || grant.is_spent(self.moved_bytes() - moved) && self.queue.ready();
        self.backlog_since_ns = more.then(|| self.backlog_since_ns.unwrap_or(io.now_ns()));
        self.figures.in_flight_max = self.figures.in_flight_max.max(self.queue.in_flight() + self.pushed);
        taken
    }

    pub(crate) fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        let token = completion.token;
        let Some(head) = token.index().filter(|head| self.slots.get(usize::from(*head)).is_some_and(|slot| slot.busy))
        else {
            if is_deadline(token) {
                return self.gate_reached(token, io);
            }
            debug_assert!(false, "completion of {token:?}, which is not in flight");
            return;
        };
        let slot = &mut self.slots[usize::from(head)];
        slot.fresh = false;
        let step = self.storage.resume(&mut slot.task, completion, io);
        let started_ns = slot.started_ns;
        self.follow(head, step, io);
        if !self.slots[usize::from(head)].busy {
            self.figures.served.record(io.now_ns().saturating_sub(started_ns), 1);
        }
    }

    /// What an earlier life of the ring owes is done before it stops: the frontend is told then that nothing is in flight,
    /// and need not keep the region that says otherwise.
    pub(crate) fn drain(&mut self, io: &mut Io<'_>) {
        loop {
            let mut chain = std::mem::take(&mut self.chain);
            let popped = self.queue.pop_owed(&mut chain);
            self.chain = chain;
            let Some((head, epoch)) = popped else {
                break;
            };
            self.start(head, epoch, io);
        }
    }

    pub(crate) fn publish(&mut self, io: &mut Io<'_>) {
        self.pushed = 0;
        self.queue.publish();
        self.queue.notify(io);
        let done = std::mem::take(&mut self.fresh_done);
        if done > 0 {
            // Requests that ended in the turn that took them share one reading of the clock.
            self.figures.served.record(io.clock_ns().saturating_sub(self.fresh_since_ns), done);
        }
    }
}

/// What the driver is told of an error. There are two words for all of them (virtio 1.3, 5.2.6): a device that is full or
/// gone is an I/O error like any other; what the storage cannot do at all is not tried again.
fn status_of(error: &StorageError) -> Status {
    match error {
        StorageError::Unsupported(_) => Status::Unsupported,
        _ => Status::IoError,
    }
}

/// The place of the status byte, which is the last writable one, and the number of writable bytes before it.
fn split_status(writable: &[Segment]) -> (Option<NonNull<u8>>, u64) {
    let bytes: u64 = writable.iter().map(|segment| segment.len() as u64).sum();
    let place = writable.last().and_then(|last| {
        // SAFETY: a segment of a chain is not empty, so its last byte is inside it.
        NonNull::new(unsafe { last.ptr().add(last.len() - 1) })
    });
    (place, bytes.saturating_sub(1))
}

/// Adds `len` bytes of `segments`, from byte `skip` on, to a task's buffers.
fn add_buffers(buffers: &mut Vec<libc::iovec>, segments: &[Segment], mut skip: usize, mut len: u64) {
    for iovec in Segment::as_iovecs(segments) {
        if len == 0 {
            return;
        }
        let cut = skip.min(iovec.iov_len);
        skip -= cut;
        let take = (iovec.iov_len - cut).min(usize::try_from(len).unwrap_or(usize::MAX));
        if take > 0 {
            // SAFETY: `cut` is at most the segment's length.
            let iov_base = unsafe { iovec.iov_base.cast::<u8>().add(cut) }.cast();
            buffers.push(libc::iovec { iov_base, iov_len: take });
            len -= take as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::Action;

    #[test]
    fn every_error_has_one_of_the_two_words_for_it() {
        let io = |errno| StorageError::Io { action: Action::Write, source: std::io::Error::from_raw_os_error(errno) };
        for errno in [libc::ENOSPC, libc::EIO, libc::ENODEV, libc::EDQUOT, libc::EROFS, libc::EOPNOTSUPP] {
            assert_eq!(status_of(&io(errno)), Status::IoError);
        }
        assert_eq!(status_of(&StorageError::ReadOnly(Action::Write)), Status::IoError);
        assert_eq!(status_of(&StorageError::OutOfRange(Action::Read)), Status::IoError);
        assert_eq!(status_of(&StorageError::Unsupported(Action::Discard)), Status::Unsupported);
    }
}
