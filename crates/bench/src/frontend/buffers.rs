//! The data buffers of a queue, and what a queue gets of one while its request is in flight.

use std::ptr::NonNull;

use super::spec::Spec;

/// The data buffers of a queue, one a slot, in memory that outlives the queue.
pub(crate) struct Buffers {
    start: NonNull<u8>,
    stride: usize,
    block: usize,
}

// SAFETY: the memory belongs to one lane alone and stays mapped as long as its queue lives, on whatever thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Buffers of `block` bytes, `stride` bytes apart; `None` for an address that is none.
    pub(crate) fn at(address: usize, stride: usize, block: usize) -> Option<Self> {
        Some(Self { start: NonNull::new(address as *mut u8)?, stride, block })
    }

    /// Those of each queue of a load, one behind the other from `address` on.
    pub(crate) fn side_by_side(address: usize, spec: &Spec) -> Vec<Self> {
        let stride = spec.buffer_stride_bytes() as usize;
        let queue_bytes = usize::from(spec.depth) * stride;
        let of_queue = |queue| Self::at(address + usize::from(queue) * queue_bytes, stride, spec.block_bytes as usize);
        (0..spec.queues).filter_map(of_queue).collect()
    }

    fn address(&self, slot: u16) -> NonNull<u8> {
        // SAFETY: the region holds `depth` buffers of `stride` bytes, and slots are below `depth`.
        unsafe { self.start.add(usize::from(slot) * self.stride) }
    }

    /// The buffer of a slot that has no request in flight.
    pub(crate) fn slice(&mut self, slot: u16) -> &mut [u8] {
        // SAFETY: in bounds as above; borrowed from `self`, so there is one slice at a time; and neither the queue nor
        // the server under test touches buffers but while a request that names them is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.address(slot).as_ptr(), self.block) }
    }

    /// Lends a slot's buffer to the queue, which gives it back with the completion of the slot's request.
    pub(crate) fn lend(&self, slot: u16) -> Loan {
        Loan { start: self.address(slot), bytes: self.block }
    }
}

/// The buffer of a request in flight. Whoever completes the request has no loan of it any more.
#[derive(Debug)]
pub(crate) struct Loan {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as of the buffers that it is from; its lane leaves it alone until the request has completed.
unsafe impl Send for Loan {}

impl Loan {
    /// Where it begins, for a queue that hands it on.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// What is written.
    pub(crate) fn data(&self) -> &[u8] {
        // SAFETY: in bounds by `Buffers::lend`, and nobody writes to it while it is lent.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Where a read's data goes.
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: in bounds by `Buffers::lend`, and nobody else has it while it is lent.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}
