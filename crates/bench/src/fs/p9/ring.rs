//! Messages on a virtqueue of a virtio-9p device.
//!
//! Chains look as those of Linux's transport (`net/9p/trans_virtio.c`): a request, with the data of Twrite behind it in
//! buffers of its own; then room for the reply, where data of Rread and Rreaddir lands behind their eleven bytes. A
//! guest's data would lie in one buffer a page; here it is one buffer.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::channel::{Reply, Request, Slots};
use super::wire::{HEADER_BYTES, READ_HEAD_BYTES};
use crate::fs::bytes::{Encoder, u32_at};
use crate::fs::memory::Area;
use crate::fs::queue::{Buffer, Queue, Used};

/// Descriptors that a request can take.
const DESCRIPTORS: u16 = 4;
/// Where a slot's buffers lie in its part of the area. A request without data is at most a Twalk with all its names.
const REQUEST_BYTES: usize = 5120;
const REPLY_AT: usize = REQUEST_BYTES;
const REPLY_BYTES: usize = 3072;
const DATA_AT: usize = REPLY_AT + REPLY_BYTES;

/// A queue with its slots.
pub(crate) struct Ring {
    queue: Queue,
    buffers: Area,
    data_bytes: usize,
    pub(super) slots: Slots,
}

impl Ring {
    /// Descriptors of a queue for `depth` slots.
    pub(crate) fn queue_size(depth: u16) -> u16 {
        (depth * DESCRIPTORS).next_power_of_two()
    }

    /// Bytes of buffers for `depth` slots with `data_bytes` of data each.
    pub(crate) fn buffers_bytes(depth: u16, data_bytes: usize) -> usize {
        usize::from(depth) * stride(data_bytes)
    }

    /// `depth` slots on `queue`, with buffers in `buffers`.
    pub(crate) fn new(queue: Queue, buffers: Area, depth: u16, data_bytes: usize) -> Self {
        Self { queue, buffers, data_bytes, slots: Slots::new(depth) }
    }

    /// As [`super::channel::Channel::submit`].
    pub(super) fn submit(&mut self, slot: u16, request: Request, encode: impl FnOnce(&mut Encoder<'_>)) {
        assert!(request.data_out.max(request.data_in) <= self.data_bytes);
        let base = self.base(slot);
        let tag = self.slots.give(slot, request);
        let place = self.buffers.bytes_mut(base, REQUEST_BYTES);
        let mut fields = Encoder::new(&mut place[HEADER_BYTES..]);
        encode(&mut fields);
        let front = HEADER_BYTES + fields.len();
        Encoder::new(place).header((front + request.data_out) as u32, request.kind, tag);
        // So that a reply that was never written shows.
        self.buffers.bytes_mut(base + REPLY_AT, READ_HEAD_BYTES).fill(0xff);
        let reply_bytes = if request.data_in > 0 { READ_HEAD_BYTES } else { REPLY_BYTES };
        let parts = [
            (0, front, false),
            (DATA_AT, request.data_out, false),
            (REPLY_AT, reply_bytes, true),
            (DATA_AT, request.data_in, true),
        ];
        let mut chain = [Buffer { addr: 0, len: 0, writable: false }; DESCRIPTORS as usize];
        let mut count = 0;
        for (at, len, writable) in parts.into_iter().filter(|(_, len, _)| *len > 0) {
            chain[count] = Buffer { addr: self.buffers.guest_addr(base + at), len: len as u32, writable };
            count += 1;
        }
        self.queue.add(slot * DESCRIPTORS, &chain[..count]);
    }

    /// Shows the server what was entered.
    pub(super) fn publish(&mut self) -> Result<()> {
        self.queue.publish()
    }

    /// Whether the server has used a request.
    pub(super) fn has_reply(&self) -> bool {
        self.queue.has_used()
    }

    /// Sleeps until it has, at most `limit`; whether it has.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<bool> {
        Ok(self.queue.has_used() || self.queue.wait(limit)?)
    }

    /// As [`super::channel::Channel::take`].
    pub(super) fn take(&mut self) -> Result<Option<Reply>> {
        let Some(Used { head, len: written }) = self.queue.take_used() else { return Ok(None) };
        let slot = u16::try_from(head).ok().filter(|head| head % DESCRIPTORS == 0).map(|head| head / DESCRIPTORS);
        let Some(slot) = slot.filter(|slot| *slot < self.slots.depth()) else {
            bail!("the server used descriptor {head}, which is the head of no request");
        };
        let front = self.buffers.bytes(self.base(slot) + REPLY_AT, READ_HEAD_BYTES);
        let size = u32_at(front, 0)?;
        ensure!(size <= written, "a reply says {size} bytes; the server wrote {written}");
        let reply = self.slots.judge(slot, front, 0)?;
        Ok(Some(reply))
    }

    /// As [`super::channel::Channel::fields`].
    pub(super) fn fields(&self, reply: Reply) -> &[u8] {
        let at = self.base(reply.slot) + REPLY_AT + HEADER_BYTES;
        self.buffers.bytes(at, reply.len.min(REPLY_BYTES - HEADER_BYTES))
    }

    /// As [`super::channel::Channel::data`].
    pub(super) fn data(&self, reply: Reply) -> &[u8] {
        self.buffers.bytes(self.base(reply.slot) + DATA_AT, reply.len.min(self.data_bytes))
    }

    /// As [`super::channel::Channel::data_mut`].
    pub(super) fn data_mut(&mut self, slot: u16) -> &mut [u8] {
        let at = self.base(slot) + DATA_AT;
        self.buffers.bytes_mut(at, self.data_bytes)
    }

    fn base(&self, slot: u16) -> usize {
        assert!(slot < self.slots.depth());
        usize::from(slot) * stride(self.data_bytes)
    }
}

fn stride(data_bytes: usize) -> usize {
    DATA_AT + data_bytes.next_multiple_of(4096)
}
