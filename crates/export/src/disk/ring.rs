//! A virtio-blk ring and the storage behind it: the attachment. Kick to notification passes through this file.

use super::kind::Kind;
use super::request::DiskRequest;
use crate::attachment::Attachment;
use crate::buffers;
use crate::label::Label;
use crate::limit::TURN_BYTES_MAX;
use crate::queue::{Broken, Queue};
use crate::trace::What;
use crate::turns::{BATCH_MAX, Turns};
use crate::virtqueue::Virtqueue;
use device::blk::{Limits, Request, Status, decode_request, spec};
use engine::{Completion, Io, Token};
use std::ptr::NonNull;
use std::sync::Arc;
use storage::{Operation, Step, Storage, StorageError};
use vring::Segment;

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

/// One virtqueue of a disk.
pub(crate) struct DiskRing {
    turns: Turns,
    ring: Virtqueue<DiskRequest>,
    terms: Terms,
    storage: Arc<dyn Storage>,
    payload: Vec<u8>,
}

impl DiskRing {
    pub(crate) fn new(
        start: vhost_user::RingStart,
        terms: Terms,
        storage: Arc<dyn Storage>,
        label: Label,
    ) -> Result<Self, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(&Kind::NAMES, queue.size().into(), label);
        let ring = Virtqueue::new(queue, &turns.figures, DiskRequest::new);
        if ring.queue.owed() > 0 {
            let Label { export, ring: index, .. } = &turns.label;
            tracing::info!(%export, ring = index, requests = ring.queue.owed(), "requests of an earlier life are done again");
        }
        Ok(DiskRing { turns, ring, terms, storage, payload: Vec::new() })
    }

    pub(crate) fn set_terms(&mut self, terms: Terms) {
        self.terms = terms;
    }

    /// Another storage, while nothing is in flight.
    pub(crate) fn set_storage(&mut self, storage: Arc<dyn Storage>) {
        self.storage = storage;
    }

    /// Takes the popped chain apart and starts it.
    fn start(&mut self, head: u16, io: &mut Io<'_>) {
        self.turns.trace.taken(Some(head), io);
        let Virtqueue { queue: Queue { chain, .. }, slots } = &mut self.ring;
        let slot = &mut slots[usize::from(head)];
        let (status, writable_data) = split_status(chain.writable_segments());
        let request = &mut slot.request;
        request.begin((status, writable_data));
        let readable = chain.readable_segments();
        let mut header = [0; HEADER];
        if status.is_none() || vring::copy::read_at(readable, 0, &mut header) < HEADER {
            return self.refused(head, Status::IoError, io);
        }
        let readable_data = chain.readable_bytes() - HEADER as u64;
        let payload = device::blk::Header::decode(&header).payload_bytes(readable_data);
        self.payload.resize(payload, 0);
        if payload > 0 {
            vring::copy::read_at(readable, HEADER as u64, &mut self.payload);
        }
        match decode_request(&header, readable_data, writable_data, &self.payload, &self.terms.limits) {
            Err(refusal) => self.refused(head, refusal.status, io),
            Ok(Request::Read { offset, len }) => {
                slot.kind = Kind::Read as usize;
                request.filled = len;
                self.turns.figures.bytes_read.add(len);
                self.turns.begun_bytes += len;
                self.turns.trace.asks(What::range(offset, len));
                buffers::add(&mut request.task.buffers, chain.writable_segments(), 0, len);
                request.task.begin(Operation::Read { offset });
                self.submit(head, len, io);
            }
            Ok(Request::Write { offset, len }) => {
                slot.kind = Kind::Write as usize;
                self.turns.figures.bytes_written.add(len);
                self.turns.begun_bytes += len;
                self.turns.trace.asks(What::range(offset, len));
                buffers::add(&mut request.task.buffers, readable, HEADER, len);
                request.task.begin(Operation::Write { offset, durable: self.terms.write_through });
                self.submit(head, len, io);
            }
            Ok(Request::Flush) => {
                slot.kind = Kind::Flush as usize;
                request.task.begin(Operation::Flush);
                self.submit(head, 1, io);
            }
            Ok(Request::GetId) => {
                slot.kind = Kind::GetId as usize;
                request.filled = vring::copy::write_at(chain.writable_segments(), 0, &self.terms.serial) as u64;
                self.finish(head, Status::Ok, io);
            }
            Ok(Request::Discard(ranges)) => {
                slot.kind = Kind::Discard as usize;
                request.ranges.extend(ranges.iter());
                self.turns.trace.asks(request.spans());
                self.next_range(head, io);
            }
            Ok(Request::WriteZeroes(ranges)) => {
                slot.kind = Kind::WriteZeroes as usize;
                request.ranges.extend(ranges.iter());
                self.turns.trace.asks(request.spans());
                self.next_range(head, io);
            }
        }
    }

    /// Hands the slot's task to the storage. Nothing to transfer is nothing to do.
    #[inline]
    fn submit(&mut self, head: u16, len: u64, io: &mut Io<'_>) {
        let task = &mut self.ring.slot(head).request.task;
        let step = if len == 0 { Step::Done(Ok(())) } else { self.storage.start(task, Token::request(head), io) };
        self.follow(head, step, io);
    }

    /// Starts the next range of a discard or write zeroes; they go one after the other.
    fn next_range(&mut self, head: u16, io: &mut Io<'_>) {
        let slot = self.ring.slot(head);
        let request = &mut slot.request;
        let Some(range) = request.ranges.get(request.ranges_started).copied() else {
            return self.finish(head, Status::Ok, io);
        };
        request.ranges_started += 1;
        let (offset, len) = (range.offset, range.len);
        request.task.begin(if slot.kind == Kind::Discard as usize {
            Operation::Discard { offset, len }
        } else {
            Operation::WriteZeroes { offset, len, unmap: range.unmap, durable: self.terms.write_through }
        });
        self.submit(head, len, io);
    }

    #[inline]
    fn follow(&mut self, head: u16, step: Step, io: &mut Io<'_>) {
        match step {
            Step::Pending => self.turns.trace.pending(head, io),
            Step::Done(Ok(())) if !self.ring.slot(head).request.ranges.is_empty() => self.next_range(head, io),
            Step::Done(Ok(())) => self.finish(head, Status::Ok, io),
            Step::Done(Err(error)) => {
                let Label { export, ring, .. } = &self.turns.label;
                tracing::debug!(export = &**export, ring, %error, "a request failed");
                self.finish(head, status_of(&error), io);
            }
        }
    }

    /// Ends what is no request, or one that cannot be.
    fn refused(&mut self, head: u16, status: Status, io: &Io<'_>) {
        self.ring.slot(head).kind = Kind::Refused as usize;
        self.finish(head, status, io);
    }

    #[inline]
    fn finish(&mut self, head: u16, status: Status, io: &Io<'_>) {
        let slot = self.ring.slot(head);
        let written = slot.request.answer(status);
        self.turns.answered(slot, status != Status::Ok, io);
        self.ring.finish(head, written);
    }
}

impl Attachment for DiskRing {
    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.ring.queue)
    }

    fn queue_mut(&mut self) -> Option<&mut Queue> {
        Some(&mut self.ring.queue)
    }

    fn note_in_flight(&mut self, from: u16) -> Option<u16> {
        self.ring.note_in_flight(from)
    }

    #[inline]
    fn next(&mut self, io: &mut Io<'_>) -> bool {
        let popped = self.ring.pop(io.now_ns());
        if let Some(head) = popped {
            self.start(head, io);
        }
        popped.is_some()
    }

    /// What is copied within a turn is bounded, and the storage has everything else done elsewhere.
    #[inline]
    fn is_late(&mut self, _taken: usize, _io: &Io<'_>) -> bool {
        false
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        let Some(head) = self.ring.in_flight(completion.token.index()) else {
            debug_assert!(false, "completion of {:?}, which is not in flight", completion.token);
            return;
        };
        self.turns.trace.ended(head, io);
        let slot = self.ring.slot(head);
        slot.fresh = false;
        let step = self.storage.resume(&mut slot.request.task, completion, io);
        self.follow(head, step, io);
    }

    #[inline]
    fn show_some(&mut self, io: &mut Io<'_>) {
        if self.turns.unshown >= PUBLISH_EVERY {
            self.ring.queue.publish();
            self.turns.shown_some(io);
        }
    }

    fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
    }

    /// Requests of other rings may stand behind those of this one.
    fn lost(&mut self, _is_dropped: bool) {
        for slot in self.ring.slots.iter_mut().filter(|slot| slot.busy) {
            slot.request.task.lost();
        }
        self.ring.abandon();
    }

    fn begin_owed(&mut self, io: &mut Io<'_>) -> bool {
        let (mut begun, mut begun_bytes) = (0, 0);
        while begun < BATCH_MAX && begun_bytes < TURN_BYTES_MAX {
            let Some(head) = self.ring.pop_owed(io.now_ns()) else { return false };
            begun += 1;
            let chain = &self.ring.queue.chain;
            begun_bytes += chain.writable_bytes() + chain.readable_bytes();
            self.start(head, io);
        }
        self.show(io);
        true
    }

    /// What an earlier life of the ring owes is done before it stops: the frontend is told then that nothing is in flight,
    /// and need not keep the region that says otherwise.
    fn drain(&mut self, io: &mut Io<'_>) {
        while let Some(head) = self.ring.pop_owed(io.now_ns()) {
            self.start(head, io);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::{describe, shared, start};
    use engine::Solo;
    use storage::{Action, NullOptions, NullStorage};
    use values::ByteSize;
    use vring::Layout;

    /// Flushes, of which none moves a byte to speak of.
    #[test]
    fn what_an_earlier_life_owes_is_begun_as_much_at_a_time_as_a_turn_takes() {
        const OWED: u16 = 200;
        const SIZE: u16 = 256;
        const USED: u64 = 0x2000;
        let (file, mapping) = shared(0x5000);
        let layout = Layout { size: SIZE, desc: 0, avail: 0x1000, used: USED, event_idx: false, indirect: false };
        rustix::io::pwrite(&file, &spec::request_type::FLUSH.to_le_bytes(), 0x3000).unwrap();
        // A header, and the status that all share: the flags NEXT and WRITE.
        (0..OWED).for_each(|head| describe(&file, u64::from(head) * 16, (0x3000, 16), 1, SIZE - 1));
        describe(&file, u64::from(SIZE - 1) * 16, (0x4000, 1), 2, 0);
        let start = vhost_user::RingStart { owed: (0..OWED).collect(), ..start(Arc::new(mapping), layout) };
        let options = NullOptions { size: ByteSize(1 << 20), ..NullOptions::default() };
        let storage = Arc::new(NullStorage::open(&options).unwrap());
        let limits = Limits { capacity_bytes: 1 << 20, read_only: false, discard: None, write_zeroes: None };
        let terms = Terms { limits, write_through: false, serial: [0; 20] };
        let mut ring = DiskRing::new(start, terms, storage, Label::of_nobody()).unwrap();
        let mut solo = Solo::new().unwrap();
        let used = || {
            let mut index = [0; 2];
            rustix::io::pread(&file, &mut index, USED + 2).unwrap();
            u16::from_le_bytes(index)
        };
        for portion in 1..=3 {
            assert!(ring.begin_owed(&mut solo.io()), "there is more");
            assert_eq!(used(), portion * BATCH_MAX as u16);
        }
        assert!(!ring.begin_owed(&mut solo.io()));
        ring.show(&mut solo.io());
        assert_eq!(used(), OWED);
    }

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
