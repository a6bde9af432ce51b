//! The driver's side of a split virtqueue (virtio 1.3, section 2.7) that behaves as a guest's driver does: it looks at what
//! was used when it is called, and kicks when it is asked to.
//!
//! Each request has a *slot*: four descriptors and a place in memory for head, answer, indirect table and data. Slots
//! are reused in the order in which they came back, so that an answer that comes twice meets a slot at rest.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use frontkit::{Areas, Buffer, Eventfds, Memory, Queue, readable, writable};

/// Largest ring here, in descriptors.
pub(crate) const RING_SIZE_MAX: u16 = 256;
/// Head, two pieces of data, answer.
const DESCRIPTORS_A_SLOT: u16 = 4;
/// Longest head and longest answer, in bytes: those of virtio-scsi.
pub(super) const HEAD_BYTES_MAX: usize = 64;
pub(super) const ANSWER_BYTES_MAX: usize = 128;
/// What every byte of an answer is before the device writes it: neither protocol has a status of this value.
pub(super) const UNANSWERED: u8 = 0xee;
/// Most data of one request, in bytes.
pub(crate) const DATA_BYTES_MAX: u32 = 64 << 10;
/// What a buffer holds before the device has written it.
static NO_DATA: [u8; DATA_BYTES_MAX as usize] = [0xdd; DATA_BYTES_MAX as usize];

/// Guest memory that each ring takes, in bytes: its areas, then its slots.
pub(super) const RING_BYTES: usize =
    SLOTS_AT as usize + SLOT_BYTES as usize * (RING_SIZE_MAX / DESCRIPTORS_A_SLOT) as usize;
const AVAIL_AT: u64 = 0x4000;
const USED_AT: u64 = 0x6000;
const SLOTS_AT: u64 = 0x1_0000;
const SLOT_BYTES: u64 = DATA_AT + DATA_BYTES_MAX as u64;
// Within a slot:
const ANSWER_AT: u64 = HEAD_BYTES_MAX as u64;
const TABLE_AT: u64 = ANSWER_AT + ANSWER_BYTES_MAX as u64;
const DATA_AT: u64 = 4096;

/// How the rings of a frontend are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingShape {
    /// Descriptors: a power of two, 4 to [`RING_SIZE_MAX`].
    pub(crate) size: u16,
    /// Whether both sides say by index when they want to be told (VIRTIO_RING_F_EVENT_IDX).
    pub(crate) event_idx: bool,
}

/// What a request begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: u32,
}

impl Head {
    /// No head at all: a buffer that waits for news.
    pub(super) const NONE: Self = Self { bytes: [0; HEAD_BYTES_MAX], len: 0 };

    /// A head of these bytes, of which there is room for [`HEAD_BYTES_MAX`].
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut head = Self { len: bytes.len() as u32, ..Self::NONE };
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// What a request says to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// What it begins with.
    pub(crate) head: Head,
    /// Bytes of its answer, at most [`ANSWER_BYTES_MAX`].
    pub(crate) answer_bytes: u32,
    /// Whether the answer stands before data that the device delivers, or behind it.
    pub(crate) answer_first: bool,
    /// Bytes of data, at most [`DATA_BYTES_MAX`].
    pub(crate) bytes: u32,
    /// Whether the device writes the data.
    pub(crate) from_device: bool,
    /// Where the data is torn into two buffers; 0 and `bytes` leave it whole.
    pub(crate) torn_at: u32,
    /// Whether the buffers stand in an indirect table.
    pub(crate) indirect: bool,
    /// Which of the slot's descriptors is the head.
    pub(crate) turn: u16,
}

/// A request that came back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Its slot, which is free from now on: what it holds must be read before another request is made.
    pub(crate) slot: u16,
    /// How many bytes the device says it has written.
    pub(crate) written: u32,
    /// It was published before the device was started last.
    pub(crate) earlier: bool,
}

/// One ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) queue: Queue,
    pub(super) eventfds: Eventfds,
    base: u64,
    index: u16,
    free: VecDeque<u16>,
    /// The slot whose request has this head.
    heads: Vec<Option<u16>>,
    /// How long the answer is of the request that was in a slot last.
    answers: Vec<u32>,
    /// Completions that had been published when the device was started last, and that nobody had looked at.
    backlog: u16,
}

/// An answer as it stands in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    bytes: [u8; ANSWER_BYTES_MAX],
    len: u32,
}

impl Answer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl Ring {
    /// An empty ring, in its own part of `memory`.
    pub(super) fn new(memory: Arc<Memory>, index: u16, shape: RingShape) -> Result<Self> {
        let size = shape.size;
        ensure!(
            size.is_power_of_two() && (DESCRIPTORS_A_SLOT..=RING_SIZE_MAX).contains(&size),
            "a ring of {size} descriptors: take a power of two from {DESCRIPTORS_A_SLOT} to {RING_SIZE_MAX}"
        );
        let base = u64::from(index) * RING_BYTES as u64;
        let areas = Areas { desc: base, avail: base + AVAIL_AT, used: base + USED_AT };
        let queue = Queue::new(memory, areas, size, shape.event_idx);
        // A driver wants to be called for its first completion.
        queue.arm();
        Ok(Self {
            queue,
            eventfds: Eventfds::new()?,
            base,
            index,
            free: (0..size / DESCRIPTORS_A_SLOT).collect(),
            heads: vec![None; usize::from(size)],
            answers: vec![0; usize::from(size / DESCRIPTORS_A_SLOT)],
            backlog: 0,
        })
    }

    /// Its number.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// A device is about to start with it. Whoever had it before publishes nothing any more.
    pub(super) fn begin_life(&mut self) {
        self.backlog = self.queue.unseen();
    }

    /// Completions among those to come that were published before.
    pub(crate) fn backlog(&self) -> u16 {
        self.backlog
    }

    /// Requests that may be in flight at once.
    pub(crate) fn slots(&self) -> u16 {
        self.queue.size() / DESCRIPTORS_A_SLOT
    }

    fn slot_at(&self, slot: u16) -> u64 {
        self.base + SLOTS_AT + u64::from(slot) * SLOT_BYTES
    }

    /// The next slot at rest, and guest memory for its data. The slot is taken by [`make`](Self::make).
    pub(crate) fn free_slot(&self) -> Option<u16> {
        self.free.front().copied()
    }

    /// Puts data into a slot, at its beginning.
    pub(crate) fn put_data(&self, slot: u16, data: &[u8]) {
        self.queue.memory().write(self.slot_at(slot) + DATA_AT, data);
    }

    /// Spoils what a slot holds, so that a device that delivers nothing cannot pass for one that did.
    pub(crate) fn spoil_data(&self, slot: u16, bytes: u32) {
        self.put_data(slot, &NO_DATA[..bytes as usize]);
    }

    /// Reads the data of a slot.
    pub(crate) fn data(&self, slot: u16, data: &mut [u8]) {
        self.queue.memory().read_into(self.slot_at(slot) + DATA_AT, data);
    }

    /// Reads the answer of the request that was in a slot, or what was there before.
    pub(crate) fn answer(&self, slot: u16) -> Answer {
        let len = self.answers[usize::from(slot)];
        let mut answer = Answer { bytes: [0; ANSWER_BYTES_MAX], len };
        self.queue.memory().read_into(self.slot_at(slot) + ANSWER_AT, &mut answer.bytes[..len as usize]);
        answer
    }

    /// Makes a request in the slot that [`free_slot`](Self::free_slot) named. The device sees it with the next
    /// [`show`](Self::show).
    pub(crate) fn make(&mut self, wanted: &Wanted) {
        let Some(slot) = self.free.pop_front() else { return };
        let at = self.slot_at(slot);
        self.queue.memory().write(at, wanted.head.bytes());
        let blank = &[UNANSWERED; ANSWER_BYTES_MAX][..wanted.answer_bytes as usize];
        self.queue.memory().write(at + ANSWER_AT, blank);
        self.answers[usize::from(slot)] = wanted.answer_bytes;

        let torn_at = wanted.torn_at.min(wanted.bytes);
        let data = |from: u32, to: u32| Buffer {
            addr: at + DATA_AT + u64::from(from),
            len: to - from,
            writable: wanted.from_device,
        };
        let (head, answer) = (readable(at, wanted.head.len), writable(at + ANSWER_AT, wanted.answer_bytes));
        let [first, second] = [data(0, torn_at), data(torn_at, wanted.bytes)];
        let pieces = if wanted.answer_first && wanted.from_device {
            [head, answer, first, second]
        } else {
            [head, first, second, answer]
        };
        let buffers: Vec<_> = pieces.into_iter().filter(|buffer| buffer.len > 0).collect();
        let descriptor = |position: usize| {
            let step = (wanted.turn as usize + position) % usize::from(DESCRIPTORS_A_SLOT);
            slot * DESCRIPTORS_A_SLOT + step as u16
        };
        let head = descriptor(0);
        if wanted.indirect {
            self.queue.add_indirect(head, at + TABLE_AT, &buffers);
        } else {
            self.queue.add(&buffers, descriptor);
        }
        self.heads[usize::from(head)] = Some(slot);
    }

    /// Shows the device the requests made, and kicks if it wants that.
    pub(crate) fn show(&mut self) -> Result<()> {
        if self.queue.publish() { self.kick() } else { Ok(()) }
    }

    /// Kicks, wanted or not.
    pub(super) fn kick(&self) -> Result<()> {
        self.eventfds.kick().context("the kick eventfd takes no kick")
    }

    /// The next request that came back. A device that uses what is not in flight is at fault.
    pub(crate) fn take_used(&mut self) -> Result<Option<Used>> {
        let (index, unseen, shown) = (self.index, self.queue.unseen(), self.queue.shown());
        ensure!(
            unseen <= shown,
            "ring {index}: {unseen} completions were published with {shown} requests in flight: one came twice, or an \
             index was lost"
        );
        let Some(frontkit::Used { head, len: written }) = self.queue.take_used() else { return Ok(None) };
        let slot = usize::try_from(head).ok().and_then(|head| self.heads.get_mut(head)?.take());
        let Some(slot) = slot else {
            bail!("ring {index}: the chain of descriptor {head} was used although it is not in flight: it came twice");
        };
        self.free.push_back(slot);
        let earlier = self.backlog > 0;
        self.backlog = self.backlog.saturating_sub(1);
        Ok(Some(Used { slot, written, earlier }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Wanted = Wanted {
        head: Head { len: 16, ..Head::NONE },
        answer_bytes: 1,
        answer_first: false,
        bytes: 0,
        from_device: false,
        torn_at: 0,
        indirect: false,
        turn: 0,
    };

    fn ring(event_idx: bool) -> Ring {
        let memory = Arc::new(Memory::new(0, RING_BYTES as u64).unwrap());
        Ring::new(memory, 0, RingShape { size: 16, event_idx }).unwrap()
    }

    /// The device's side: uses a head.
    fn answer(ring: &Ring, head: u16) {
        let (memory, used) = (ring.queue.memory(), ring.queue.used_index());
        let at = ring.base + USED_AT + 4 + 8 * u64::from(used % ring.queue.size());
        memory.write(at, &[u32::from(head).to_le_bytes(), 1u32.to_le_bytes()].concat());
        memory.write(ring.base + USED_AT + 2, &used.wrapping_add(1).to_le_bytes());
    }

    #[test]
    fn a_request_comes_back_once() {
        let mut ring = ring(false);
        let slot = ring.free_slot().unwrap();
        ring.make(&FLUSH);
        ring.show().unwrap();
        assert!(ring.eventfds.kick.read().is_ok(), "the device did not ask for quiet");
        assert_eq!(ring.queue.in_flight(), 1);
        assert_eq!(ring.answer(slot).bytes(), [UNANSWERED]);
        answer(&ring, 0);
        assert_eq!(ring.take_used().unwrap().map(|used| (used.slot, used.written)), Some((slot, 1)));
        assert!(ring.take_used().unwrap().is_none());
        assert_eq!(ring.queue.in_flight(), 0);
    }

    #[test]
    fn what_was_published_before_a_start_is_told_from_what_comes_then() {
        let mut ring = ring(false);
        ring.make(&FLUSH);
        ring.make(&FLUSH);
        ring.show().unwrap();
        answer(&ring, 0);
        ring.begin_life();
        answer(&ring, 4);
        let mut earlier = || ring.take_used().unwrap().map(|used| used.earlier);
        assert_eq!([earlier(), earlier(), earlier()], [Some(true), Some(false), None]);
    }

    #[test]
    fn an_answer_that_comes_twice_is_found() {
        let mut ring = ring(false);
        ring.make(&FLUSH);
        ring.make(&FLUSH);
        ring.show().unwrap();
        answer(&ring, 4);
        answer(&ring, 4);
        assert!(ring.take_used().unwrap().is_some());
        assert!(ring.take_used().unwrap_err().to_string().contains("came twice"));
    }

    #[test]
    fn an_index_that_runs_ahead_is_found() {
        let mut ring = ring(true);
        ring.make(&FLUSH);
        ring.show().unwrap();
        answer(&ring, 0);
        answer(&ring, 0);
        assert!(ring.take_used().unwrap_err().to_string().contains("2 completions"));
    }

    #[test]
    fn calls_are_asked_for_by_index_or_by_flag() {
        for event_idx in [false, true] {
            let mut ring = ring(event_idx);
            ring.make(&FLUSH);
            ring.show().unwrap();
            assert!(ring.queue.arm());
            answer(&ring, 0);
            assert!(!ring.queue.arm(), "something came meanwhile");
            ring.take_used().unwrap();
            assert!(ring.queue.arm());
        }
    }

    #[test]
    fn all_slots_are_used_and_no_more() {
        let mut ring = ring(false);
        for turn in 0..6 {
            ring.make(&Wanted { turn, bytes: 1024, torn_at: 512, indirect: turn == 1, ..FLUSH });
        }
        assert_eq!((ring.queue.in_flight(), ring.slots(), ring.free_slot()), (4, 4, None));
    }
}
