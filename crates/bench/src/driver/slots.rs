//! Slots of a queue: each has its descriptors, and its buffers, of which that for data is the last.

use anyhow::{Result, bail};
use frontkit::{Area, Buffer, Used};

use super::device::QueuePlan;
use super::queue::Queue;

/// Most descriptors of a slot.
const DESCRIPTORS_MAX: usize = 6;

/// What a slot has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Descriptors that a request can take.
    pub(crate) descriptors: u16,
    /// Where its data lies, behind all its other buffers.
    pub(crate) data_at: usize,
}

impl Layout {
    /// A queue for `depth` slots with `data_bytes` of data each.
    pub(crate) fn plan(self, depth: u16, data_bytes: usize) -> QueuePlan {
        QueuePlan {
            size: (depth * self.descriptors).next_power_of_two(),
            buffer_bytes: usize::from(depth) * self.stride(data_bytes),
        }
    }

    pub(crate) fn stride(self, data_bytes: usize) -> usize {
        self.data_at + data_bytes.next_multiple_of(4096)
    }
}

/// A queue that is divided into slots.
pub(crate) struct SlotQueue {
    pub(crate) queue: Queue,
    buffers: Area,
    layout: Layout,
    /// Whether each slot has a request that the server has not used.
    in_flight: Box<[bool]>,
    pub(crate) data_bytes: usize,
}

impl SlotQueue {
    /// `depth` slots on `queue`, with buffers in `buffers`, both as [`Layout::plan`] says.
    pub(crate) fn new(queue: Queue, buffers: Area, layout: Layout, depth: u16, data_bytes: usize) -> Self {
        Self { queue, buffers, layout, in_flight: vec![false; usize::from(depth)].into(), data_bytes }
    }

    /// `len` bytes of a slot's buffers.
    pub(crate) fn bytes(&self, slot: u16, at: usize, len: usize) -> &[u8] {
        self.buffers.bytes(self.base(slot) + at, len)
    }

    /// As [`SlotQueue::bytes`], to be written.
    pub(crate) fn bytes_mut(&mut self, slot: u16, at: usize, len: usize) -> &mut [u8] {
        let base = self.base(slot);
        self.buffers.bytes_mut(base + at, len)
    }

    /// Enters a request of those of `parts` that are not empty: where each lies, its bytes, and whether the server writes it.
    pub(crate) fn add(&mut self, slot: u16, parts: &[(usize, usize, bool)]) {
        let base = self.base(slot);
        let mut chain = [Buffer { addr: 0, len: 0, writable: false }; DESCRIPTORS_MAX];
        let mut count = 0;
        for (at, len, writable) in parts.iter().copied().filter(|(_, len, _)| *len > 0) {
            chain[count] = Buffer { addr: self.buffers.guest_addr(base + at), len: len as u32, writable };
            count += 1;
        }
        self.in_flight[usize::from(slot)] = true;
        self.queue.add(slot * self.layout.descriptors, &chain[..count]);
    }

    /// Enters the request again that a slot had last and that the server has used.
    pub(crate) fn again(&mut self, slot: u16) {
        self.in_flight[usize::from(slot)] = true;
        self.queue.enter(slot * self.layout.descriptors);
    }

    /// The slot of the next request that the server has used, if there is one, and how many bytes it wrote.
    ///
    /// # Errors
    /// The server used what was not asked, or used it twice.
    pub(crate) fn take(&mut self) -> Result<Option<(u16, u32)>> {
        let Some(Used { head, len: written }) = self.queue.take_used() else { return Ok(None) };
        let each = self.layout.descriptors;
        let slot = u16::try_from(head).ok().filter(|head| head % each == 0).map(|head| head / each);
        let in_flight = slot.and_then(|slot| Some((slot, self.in_flight.get_mut(usize::from(slot))?)));
        let Some((slot, is_in_flight)) = in_flight.filter(|(_, is_in_flight)| **is_in_flight) else {
            bail!("the server used descriptor {head}, which is the head of no request in flight");
        };
        *is_in_flight = false;
        Ok(Some((slot, written)))
    }

    /// What a slot has received, at most `len` bytes.
    pub(crate) fn data(&self, slot: u16, len: usize) -> &[u8] {
        self.bytes(slot, self.layout.data_at, len.min(self.data_bytes))
    }

    /// What a slot sends.
    pub(crate) fn data_mut(&mut self, slot: u16) -> &mut [u8] {
        self.bytes_mut(slot, self.layout.data_at, self.data_bytes)
    }

    fn base(&self, slot: u16) -> usize {
        assert!(usize::from(slot) < self.in_flight.len());
        usize::from(slot) * self.layout.stride(self.data_bytes)
    }
}
