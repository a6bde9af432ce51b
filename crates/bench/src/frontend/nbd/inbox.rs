//! What has been received and not been looked at.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};

use super::message::Reply;
use super::spec::REPLY_BYTES;

/// Reads of this size and more are mostly received where they belong, smaller ones many at a time and copied there.
const DIRECT_BYTES_MIN: u32 = 16 << 10;
/// What is received in one call, at most, when reads are small.
const RECEIVED_AT_ONCE: usize = 256 << 10;
/// The same when reads are received where they belong: heads, and as little as possible of the data behind them.
const RECEIVED_BESIDE: usize = 4 << 10;

/// Replies, of which all that is here whole has been taken out before more is received.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// For replies to reads of `block_bytes`.
    pub(super) fn new(block_bytes: u32) -> Self {
        let size = if block_bytes >= DIRECT_BYTES_MIN { RECEIVED_BESIDE } else { RECEIVED_AT_ONCE };
        Self { bytes: vec![0; size].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Receives what has come; how much that was. It goes into `rest` first, which is what the data still lacks in the
    /// midst of which the last receive ended, or empty.
    pub(super) fn receive(&mut self, socket: &OwnedFd, rest: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        // At most the beginning of a head.
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = &mut self.bytes[self.end..];
        if rest.is_empty() {
            let (_, bytes) = recv(socket, room, flags)?;
            self.end += bytes;
            return Ok(bytes);
        }
        let lacking = rest.len();
        let mut parts = [IoSliceMut::new(rest), IoSliceMut::new(room)];
        let bytes = recvmsg(socket, &mut parts, &mut RecvAncillaryBuffer::default(), flags)?.bytes;
        self.end += bytes.saturating_sub(lacking);
        Ok(bytes)
    }

    /// Moves data to where it belongs, as much as is here and has room; how much that was.
    pub(super) fn take(&mut self, rest: &mut [u8]) -> usize {
        let bytes = rest.len().min(self.end - self.start);
        rest[..bytes].copy_from_slice(&self.bytes[self.start..self.start + bytes]);
        self.start += bytes;
        bytes
    }

    /// Takes the head of a reply, if it is here whole.
    pub(super) fn take_head(&mut self) -> Option<Reply> {
        let head = self.bytes[self.start..self.end].first_chunk::<REPLY_BYTES>()?;
        self.start += REPLY_BYTES;
        Some(Reply::decode(*head))
    }
}
