//! Messages on a virtqueue of a virtio-9p device.
//!
//! Chains look as those of Linux's transport (`net/9p/trans_virtio.c`): a request, with the data of Twrite behind it in
//! buffers of its own; then room for the reply, where data of Rread and Rreaddir lands behind their eleven bytes. A
//! guest's data would lie in one buffer a page; here it is one buffer.

use std::time::Duration;

use anyhow::{Result, ensure};
use frontkit::Area;

use super::channel::{Reply, Request, Slots};
use super::wire::{HEADER_BYTES, READ_HEAD_BYTES};
use crate::bytes::{Encoder, u32_at};
use crate::driver::{Layout, Queue, SlotQueue};

/// Where a slot's buffers lie. A request without data is at most a Twalk with all its names.
const REQUEST_BYTES: usize = 5120;
const REPLY_AT: usize = REQUEST_BYTES;
const REPLY_BYTES: usize = 3072;
const DATA_AT: usize = REPLY_AT + REPLY_BYTES;
/// A request takes up to four descriptors.
pub(super) const LAYOUT: Layout = Layout { descriptors: 4, data_at: DATA_AT };

/// A queue with its slots.
pub(crate) struct Ring {
    places: SlotQueue,
    pub(super) slots: Slots,
}

impl Ring {
    /// `depth` slots on `queue`, with buffers in `buffers`.
    pub(crate) fn new(queue: Queue, buffers: Area, depth: u16, data_bytes: usize) -> Self {
        Self { places: SlotQueue::new(queue, buffers, LAYOUT, depth, data_bytes), slots: Slots::new(depth) }
    }

    /// As [`super::channel::Channel::submit`].
    pub(super) fn submit(&mut self, slot: u16, request: Request, encode: impl FnOnce(&mut Encoder<'_>)) {
        assert!(request.data_out.max(request.data_in) <= self.places.data_bytes);
        let tag = self.slots.give(slot, request);
        let place = self.places.bytes_mut(slot, 0, REQUEST_BYTES);
        let mut fields = Encoder::new(&mut place[HEADER_BYTES..]);
        encode(&mut fields);
        let front = HEADER_BYTES + fields.len();
        Encoder::new(place).header((front + request.data_out) as u32, request.kind, tag);
        // So that a reply that was never written shows.
        self.places.bytes_mut(slot, REPLY_AT, READ_HEAD_BYTES).fill(0xff);
        let reply_bytes = if request.data_in > 0 { READ_HEAD_BYTES } else { REPLY_BYTES };
        let parts = [
            (0, front, false),
            (DATA_AT, request.data_out, false),
            (REPLY_AT, reply_bytes, true),
            (DATA_AT, request.data_in, true),
        ];
        self.places.add(slot, &parts);
    }

    /// Shows the server what was entered.
    pub(super) fn publish(&mut self) -> Result<()> {
        self.places.queue.publish()
    }

    /// Whether the server has used a request.
    pub(super) fn has_reply(&self) -> bool {
        self.places.queue.has_used()
    }

    /// Sleeps until it has, at most `limit`; whether it has.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<bool> {
        Ok(self.places.queue.has_used() || self.places.queue.wait(limit)?)
    }

    /// As [`super::channel::Channel::take`].
    pub(super) fn take(&mut self) -> Result<Option<Reply>> {
        let Some((slot, written)) = self.places.take()? else { return Ok(None) };
        let front = self.places.bytes(slot, REPLY_AT, READ_HEAD_BYTES);
        let size = u32_at(front, 0)?;
        ensure!(size <= written, "a reply says {size} bytes; the server wrote {written}");
        let reply = self.slots.judge(slot, front, 0)?;
        Ok(Some(reply))
    }

    /// As [`super::channel::Channel::fields`].
    pub(super) fn fields(&self, reply: Reply) -> &[u8] {
        self.places.bytes(reply.slot, REPLY_AT + HEADER_BYTES, reply.len.min(REPLY_BYTES - HEADER_BYTES))
    }

    /// As [`super::channel::Channel::data`].
    pub(super) fn data(&self, reply: Reply) -> &[u8] {
        self.places.data(reply.slot, reply.len)
    }

    /// As [`super::channel::Channel::data_mut`].
    pub(super) fn data_mut(&mut self, slot: u16) -> &mut [u8] {
        self.places.data_mut(slot)
    }
}
