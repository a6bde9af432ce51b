//! Requests and replies as they are sent.

use super::spec::{REPLY_BYTES, REQUEST_BYTES, magic};

/// A request without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Request {
    pub(super) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut head = [0; REQUEST_BYTES];
        head[..4].copy_from_slice(&magic::REQUEST.to_be_bytes());
        // No flag is set.
        head[6..8].copy_from_slice(&self.command.to_be_bytes());
        head[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        head[16..24].copy_from_slice(&self.offset.to_be_bytes());
        head[24..].copy_from_slice(&self.bytes.to_be_bytes());
        head
    }
}

/// A simple reply without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) magic: u32,
    pub(super) error: u32,
    pub(super) cookie: u64,
}

impl Reply {
    pub(super) fn decode(head: [u8; REPLY_BYTES]) -> Self {
        let all = u128::from_be_bytes(head);
        Self { magic: (all >> 96) as u32, error: (all >> 64) as u32, cookie: all as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::nbd::spec::command;

    #[test]
    fn fields_lie_where_the_protocol_has_them() {
        let request = Request { command: command::FLUSH, cookie: 0x0102_0304_0506_0708, offset: 9, bytes: 10 };
        let bytes = b"\x25\x60\x95\x13\0\0\0\x03\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x09\0\0\0\x0a";
        assert_eq!(request.encode(), *bytes);
        let reply = Reply { magic: magic::SIMPLE_REPLY, error: 5, cookie: 7 };
        assert_eq!(Reply::decode(*b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x07"), reply);
    }
}
