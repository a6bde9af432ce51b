//! One request in flight: it waits for io_uring, for the pool or for a lock, and its connection goes on.

use super::super::reply::Asked;
use crate::calls::CallRequest;
use std::ptr::NonNull;
use vring::Segment;

/// A request in flight. Its memory is its own until it ends, wherever its connection is.
pub(super) struct Deferred {
    pub(super) call: CallRequest<Asked>,
    /// What its message is in, where somebody still reads that.
    pub(super) request: Vec<u8>,
    /// What its reply is written to, where somebody else than the connection's worker does that.
    pub(super) reply: Vec<u8>,
    /// Where the message begins in `request`.
    start: usize,
    /// Bytes of both, as its connection counts them.
    pub(super) held_bytes: usize,
    /// Those that flush it: they are answered behind it.
    pub(super) flushes: Vec<Asked>,
}

impl Deferred {
    pub(super) fn new() -> Deferred {
        Deferred {
            call: CallRequest::new(),
            request: Vec::new(),
            reply: Vec::new(),
            start: 0,
            held_bytes: 0,
            flushes: Vec::new(),
        }
    }

    /// Keeps what the request needs until it ends: the message in its buffer, from `start` on, and memory for the reply.
    /// Returns the message, of `bytes` bytes at most.
    pub(super) fn keep(&mut self, (request, start): (Vec<u8>, usize), reply: Vec<u8>, bytes: usize) -> Segment {
        self.held_bytes = request.capacity() + reply.capacity();
        (self.request, self.start, self.reply) = (request, start, reply);
        // SAFETY: the buffer is the slot's, and nobody writes to it before the request has ended.
        unsafe { to_read(self.message(bytes)) }
    }

    /// The message.
    pub(super) fn message(&self, bytes: usize) -> &[u8] {
        let end = self.request.len().min(self.start + bytes);
        self.request.get(self.start..end).unwrap_or_default()
    }

    /// Whether this request, or one that flushes it, has that tag.
    pub(super) fn has_tag(&self, tag: u16) -> bool {
        self.call.asked.tag == tag || self.flushes.iter().any(|flush| flush.tag == tag)
    }
}

/// The bytes of a message.
///
/// # Safety
/// They stay where they are, and nobody writes to them, for as long as the segment or a copy of it is used. Nobody writes by
/// it.
pub(super) unsafe fn to_read(message: &[u8]) -> Segment {
    // SAFETY: the bytes stay, as our caller says. That the segment could be written to is not used.
    unsafe { Segment::from_raw_parts(NonNull::from(message).cast(), message.len()) }
}

/// The first `bytes` bytes of what a buffer has room for behind its end.
///
/// # Safety
/// The buffer is neither moved elsewhere in memory nor used for as long as the segment or a copy of it is.
pub(super) unsafe fn to_write(buffer: &mut Vec<u8>, bytes: usize) -> Segment {
    let spare = buffer.spare_capacity_mut();
    let bytes = bytes.min(spare.len());
    // SAFETY: these bytes are the buffer's, which stays, as our caller says. Nobody reads them before they are written.
    unsafe { Segment::from_raw_parts(NonNull::from(spare).cast(), bytes) }
}
