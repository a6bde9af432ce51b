//! Requests in flight on a virtqueue. A request is a head, data, and an answer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::event::PollFd;

use super::{Operation, Verdict, blk, scsi};
use crate::driver::{self, Layout, SlotQueue};
use crate::frontend::buffers::Loan;
use crate::frontend::queue::Completion;
use crate::frontend::spec::DRIVER_BYTES;

/// Where a slot's answer lies, behind its head.
pub(super) const ANSWER_AT: usize = 256;
/// The largest answer.
pub(super) const ANSWER_BYTES_MAX: usize = 256;
/// Three descriptors, and data in pages of its own.
pub(super) const LAYOUT: Layout = Layout { descriptors: 3, data_at: DRIVER_BYTES };
/// What an answer is filled with, so that one which was never written shows: no status is that.
pub(super) const UNANSWERED: u8 = 0xee;

/// What requests look like.
#[derive(Debug, Clone)]
pub(super) enum Encoding {
    Blk,
    Scsi(scsi::Unit),
}

impl Encoding {
    /// Writes the head of a request of `bytes` bytes; how long it is.
    fn encode(&mut self, head: &mut [u8], operation: Operation, bytes: usize) -> usize {
        match self {
            Self::Blk => blk::encode(head, operation),
            Self::Scsi(unit) => unit.encode(head, operation, bytes),
        }
    }

    fn answer_bytes(&self) -> usize {
        match self {
            Self::Blk => blk::ANSWER_BYTES,
            Self::Scsi(unit) => unit.answer_bytes(),
        }
    }

    /// How much of an answer says how the request has ended.
    fn judged_bytes(&self) -> usize {
        match self {
            Self::Blk => blk::ANSWER_BYTES,
            Self::Scsi(_) => frontkit::scsi::response::SENSE_AT,
        }
    }

    fn judge(&self, answer: &[u8]) -> Verdict {
        match self {
            Self::Blk => blk::judge(answer),
            Self::Scsi(_) => scsi::judge(answer),
        }
    }

    /// Whether data that the device writes stands behind its answer (virtio 1.3, 5.6.6.1), and not before it (5.2.6).
    fn answers_first(&self) -> bool {
        matches!(self, Self::Scsi(_))
    }
}

/// A virtqueue.
pub(crate) struct Queue {
    slots: SlotQueue,
    encoding: Encoding,
    completions: Vec<Completion>,
}

impl Queue {
    pub(super) fn new(
        queue: driver::Queue,
        buffers: frontkit::Area,
        encoding: Encoding,
        depth: u16,
        data_bytes: usize,
    ) -> Self {
        let slots = SlotQueue::new(queue, buffers, LAYOUT, depth, data_bytes);
        Self { slots, encoding, completions: Vec::with_capacity(usize::from(depth)) }
    }

    /// Where the data of the first slot lies, and how far it is from there to the next one's.
    pub(super) fn buffers(&mut self) -> (usize, usize) {
        let stride = LAYOUT.stride(self.slots.data_bytes);
        (self.slots.data_mut(0).as_mut_ptr() as usize, stride)
    }

    pub(crate) fn read(&mut self, offset: u64, data: &Loan, slot: u16) {
        self.submit(Operation::Read(offset), data.len(), slot);
    }

    pub(crate) fn write(&mut self, offset: u64, data: &Loan, slot: u16) {
        self.submit(Operation::Write(offset), data.len(), slot);
    }

    pub(crate) fn flush(&mut self, slot: u16) {
        self.submit(Operation::Flush, 0, slot);
    }

    /// The data of a request lies in its slot, where its lane has its loan from.
    fn submit(&mut self, operation: Operation, bytes: usize, slot: u16) {
        let head = self.slots.bytes_mut(slot, 0, ANSWER_AT);
        let head_bytes = self.encoding.encode(head, operation, bytes);
        let (sent, received) = match operation {
            Operation::Read(_) => (0, bytes),
            Operation::Write(_) => (bytes, 0),
            Operation::Flush => (0, 0),
        };
        self.enter(slot, (head_bytes, sent, received));
    }

    /// Enters a request whose head stands in its slot.
    fn enter(&mut self, slot: u16, (head, sent, received): (usize, usize, usize)) {
        let answer = (ANSWER_AT, self.encoding.answer_bytes(), true);
        // No more of it: the device would have to fetch what a guest does not touch either.
        self.slots.bytes_mut(slot, ANSWER_AT, self.encoding.judged_bytes()).fill(UNANSWERED);
        let received = (LAYOUT.data_at, received, true);
        let (first, last) = if self.encoding.answers_first() { (answer, received) } else { (received, answer) };
        self.slots.add(slot, &[(0, head, false), (LAYOUT.data_at, sent, false), first, last]);
    }

    /// What its requests look like from now on.
    pub(super) fn encode_as(&mut self, encoding: Encoding) {
        self.encoding = encoding;
    }

    /// Makes a request whose head is `head` while nothing else is in flight: its answer, and the data that it brought.
    ///
    /// # Errors
    /// It is not answered within `limit`.
    pub(super) fn ask(
        &mut self,
        head: &[u8],
        sent: &[u8],
        received: usize,
        limit: Duration,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        self.slots.bytes_mut(0, 0, ANSWER_AT)[..head.len()].copy_from_slice(head);
        self.slots.data_mut(0)[..sent.len()].copy_from_slice(sent);
        self.slots.data_mut(0)[sent.len()..].fill(0);
        self.enter(0, (head.len(), sent.len(), received));
        self.slots.queue.publish()?;
        let deadline = Instant::now() + limit;
        while self.slots.take()?.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "the server does not answer within {} s", limit.as_secs());
            // It may call for nothing.
            self.slots.queue.wait(left)?;
        }
        Ok((self.answer(0).to_vec(), self.slots.data(0, received).to_vec()))
    }

    fn answer(&self, slot: u16) -> &[u8] {
        self.slots.bytes(slot, ANSWER_AT, self.encoding.answer_bytes())
    }

    /// As [`crate::frontend::queue::Queue::reap`].
    pub(crate) fn reap(&mut self, least: usize, wait: Duration) -> Result<usize> {
        self.completions.clear();
        self.slots.queue.publish()?;
        self.take()?;
        if self.completions.len() < least {
            let deadline = Instant::now() + wait;
            while self.completions.len() < least {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.slots.queue.wait(left)?;
                self.take()?;
            }
        }
        Ok(self.completions.len())
    }

    fn take(&mut self) -> Result<()> {
        let mut again = false;
        while let Some((slot, _)) = self.slots.take()? {
            let result = match self.encoding.judge(self.answer(slot)) {
                Verdict::Done => 0,
                Verdict::Failed(errno) => errno,
                Verdict::Again => {
                    self.slots.again(slot);
                    again = true;
                    continue;
                }
            };
            self.completions.push(Completion { slot, result });
        }
        if again { self.slots.queue.publish() } else { Ok(()) }
    }

    pub(crate) fn completion(&self, index: usize) -> Completion {
        self.completions[index]
    }

    pub(crate) fn announcement(&self) -> Option<PollFd<'_>> {
        self.slots.queue.announcement()
    }

    pub(crate) fn clear_announcement(&self) {
        self.slots.queue.clear_announcement();
    }
}
