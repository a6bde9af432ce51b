//! What starts every message.

use super::dialect::Dialect;
use super::spec::HEADER_BYTES;
use crate::wire::{le16, le32, put};

/// size, type and tag: any bytes are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message, this header included.
    pub size: u32,
    /// Type of the message; see [`Kind::from_raw`](super::Kind::from_raw).
    pub kind: u8,
    /// The client's number for the request.
    pub tag: u16,
}

impl Header {
    /// Takes the fields out.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Header {
        Header { size: le32::<0, _>(bytes), kind: bytes[4], tag: le16::<5, _>(bytes) }
    }
}

/// The header of a message of this type with so many bytes behind the header.
#[inline]
pub fn reply_header(kind: u8, tag: u16, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    let size = u32::try_from(payload_bytes.saturating_add(HEADER_BYTES)).unwrap_or(u32::MAX);
    let mut out = [0; HEADER_BYTES];
    put::<0, _, _>(&mut out, size.to_le_bytes());
    out[4] = kind;
    put::<5, _, _>(&mut out, tag.to_le_bytes());
    out
}

/// The type of the reply to a request of this type that succeeded.
#[inline]
pub const fn reply_kind(request_kind: u8) -> u8 {
    request_kind.wrapping_add(1)
}

/// The type of a reply that says why a request failed: `Rlerror` in 9P2000.L, `Rerror` otherwise.
#[inline]
pub const fn error_kind(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::L => 7,
        Dialect::Unknown | Dialect::U => 107,
    }
}
