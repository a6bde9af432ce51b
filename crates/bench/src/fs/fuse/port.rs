//! FUSE requests on a queue: a fixed number of slots, each with its descriptors and its buffers.
//!
//! Chains look as those of Linux's virtio-fs driver: header, arguments and data to the server; header, arguments and
//! data from it. A guest's data would lie in one buffer a page; here it is one buffer.

use anyhow::{Result, ensure};
use frontkit::Area;

use super::wire::{IN_HEADER_BYTES, Ids, OUT_HEADER_BYTES, OutHeader, in_header};
use crate::bytes::Encoder;
use crate::driver::{Layout, Queue, SlotQueue};

/// Where a slot's buffers lie.
const ARGS_AT: usize = 64;
const ARGS_BYTES: usize = 960;
const OUT_HEADER_AT: usize = 1024;
const OUT_ARGS_AT: usize = 1088;
const OUT_ARGS_BYTES: usize = 960;
const DATA_AT: usize = 4096;
/// A request takes up to six descriptors.
pub(crate) const LAYOUT: Layout = Layout { descriptors: 6, data_at: DATA_AT };

/// What a request is, besides its arguments.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    pub(crate) opcode: u32,
    pub(crate) node: u64,
    /// Bytes of the slot's data that go to the server.
    pub(crate) data_out: usize,
    /// Room for arguments of the reply, in bytes.
    pub(crate) args_in: usize,
    /// Room for data of the reply, in bytes.
    pub(crate) data_in: usize,
    /// Whether the server answers; it does not to FORGET.
    pub(crate) is_mute: bool,
}

/// A reply that fits its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) slot: u16,
    /// 0, or what went wrong, as a positive number.
    pub(crate) errno: i32,
    /// Bytes behind the header.
    pub(crate) len: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    request: Request,
    unique: u64,
    is_busy: bool,
}

/// A queue with its slots.
pub(crate) struct Port {
    pub(crate) places: SlotQueue,
    slots: Box<[Slot]>,
    next_unique: u64,
    pub(crate) ids: Ids,
    /// Requests in flight.
    pub(crate) in_flight: usize,
}

impl Port {
    /// `depth` slots on `queue`, with buffers in `buffers`.
    pub(crate) fn new(queue: Queue, buffers: Area, depth: u16, data_bytes: usize) -> Self {
        let slots = vec![Slot::default(); usize::from(depth)].into_boxed_slice();
        let ids = Ids { pid: std::process::id(), ..Ids::default() };
        let places = SlotQueue::new(queue, buffers, LAYOUT, depth, data_bytes);
        Self { places, slots, next_unique: 2, ids, in_flight: 0 }
    }

    /// Slots.
    pub(crate) fn depth(&self) -> u16 {
        self.slots.len() as u16
    }

    /// A slot without a request.
    pub(crate) fn free_slot(&self) -> Option<u16> {
        self.slots.iter().position(|slot| !slot.is_busy).map(|slot| slot as u16)
    }

    /// Enters a request on a free slot; `encode` writes its arguments. [`Queue::publish`] shows it to the server.
    pub(crate) fn submit(&mut self, slot: u16, request: Request, encode: impl FnOnce(&mut Encoder<'_>)) {
        let mut encoder = Encoder::new(self.places.bytes_mut(slot, ARGS_AT, ARGS_BYTES));
        encode(&mut encoder);
        let args = encoder.len();
        assert!(request.data_out.max(request.data_in) <= self.places.data_bytes && request.args_in <= OUT_ARGS_BYTES);
        let (unique, ids) = (self.next_unique, self.ids);
        // Linux counts in twos, and leaves odd numbers to interrupts.
        self.next_unique += 2;
        let len = (IN_HEADER_BYTES + args + request.data_out) as u32;
        in_header(self.places.bytes_mut(slot, 0, IN_HEADER_BYTES), len, request.opcode, unique, request.node, ids);
        // So that a reply that was never written shows.
        self.places.bytes_mut(slot, OUT_HEADER_AT, OUT_HEADER_BYTES).fill(0xff);
        let header_in = if request.is_mute { 0 } else { OUT_HEADER_BYTES };
        let parts = [
            (0, IN_HEADER_BYTES, false),
            (ARGS_AT, args, false),
            (DATA_AT, request.data_out, false),
            (OUT_HEADER_AT, header_in, true),
            (OUT_ARGS_AT, request.args_in, true),
            (DATA_AT, request.data_in, true),
        ];
        let state = &mut self.slots[usize::from(slot)];
        assert!(!state.is_busy, "slot {slot} has a request already");
        *state = Slot { request, unique, is_busy: true };
        self.in_flight += 1;
        self.places.add(slot, &parts);
    }

    /// The next reply, if there is one; its slot is free again, and keeps what came until it is used.
    ///
    /// # Errors
    /// The server answered what was not asked, or with something that is no reply to it.
    pub(crate) fn take(&mut self) -> Result<Option<Reply>> {
        let Some((slot, written)) = self.places.take()? else { return Ok(None) };
        let state = &mut self.slots[usize::from(slot)];
        let Slot { request, unique, is_busy } = *state;
        ensure!(is_busy, "the server used the request of slot {slot} twice");
        state.is_busy = false;
        self.in_flight -= 1;
        if request.is_mute {
            return Ok(Some(Reply { slot, errno: 0, len: 0 }));
        }
        let header = OutHeader::parse(self.places.bytes(slot, OUT_HEADER_AT, OUT_HEADER_BYTES))?;
        ensure!(
            header.unique == unique,
            "the reply to opcode {} is for request {}, not for {unique}",
            request.opcode,
            header.unique
        );
        let most = OUT_HEADER_BYTES + request.args_in + request.data_in;
        let len = header.len as usize;
        ensure!(
            (OUT_HEADER_BYTES..=most).contains(&len) && len <= written as usize,
            "the reply to opcode {} says {len} bytes; the server wrote {written}, into room for {most}",
            request.opcode
        );
        ensure!(header.errno == 0 || len == OUT_HEADER_BYTES, "a reply has error {} and data", header.errno);
        Ok(Some(Reply { slot, errno: header.errno, len: len - OUT_HEADER_BYTES }))
    }

    /// The arguments of a reply that has just been taken.
    pub(crate) fn args(&self, reply: Reply) -> &[u8] {
        self.places.bytes(reply.slot, OUT_ARGS_AT, reply.len.min(OUT_ARGS_BYTES))
    }

    /// The data of a reply without arguments that has just been taken.
    pub(crate) fn data(&self, reply: Reply) -> &[u8] {
        self.places.data(reply.slot, reply.len)
    }

    /// The data that the next request of `slot`, which is free, sends.
    pub(crate) fn data_mut(&mut self, slot: u16) -> &mut [u8] {
        assert!(!self.slots[usize::from(slot)].is_busy);
        self.places.data_mut(slot)
    }
}
