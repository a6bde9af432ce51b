//! Replies to requests.
//!
//! Once the client has asked for structured replies, every read is answered by chunks, failures too; any other request may still
//! have a simple reply, except block status (section "Structured reply chunk message").

use super::spec::{
    CHUNK_HEADER_BYTES, DATA_HEAD_BYTES, EXTENT_BYTES, SIMPLE_REPLY_BYTES, chunk_flag, chunk_type, magic,
};
use super::string::cut;
use crate::wire::put;

/// A simple reply: 0 is success, otherwise see [`errno`](super::spec::errno). The data of a read that succeeded comes behind it.
#[inline]
pub fn simple_reply(errno: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut out = [0; SIMPLE_REPLY_BYTES];
    put::<0, _, _>(&mut out, magic::SIMPLE_REPLY.to_be_bytes());
    put::<4, _, _>(&mut out, errno.to_be_bytes());
    put::<8, _, _>(&mut out, cookie.to_be_bytes());
    out
}

/// The header of a chunk with `len` bytes behind it; see [`chunk_flag`](super::spec::chunk_flag) and
/// [`chunk_type`](super::spec::chunk_type).
#[inline]
pub fn chunk_header(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; CHUNK_HEADER_BYTES] {
    let mut out = [0; CHUNK_HEADER_BYTES];
    put::<0, _, _>(&mut out, magic::STRUCTURED_REPLY.to_be_bytes());
    put::<4, _, _>(&mut out, flags.to_be_bytes());
    put::<6, _, _>(&mut out, kind.to_be_bytes());
    put::<8, _, _>(&mut out, cookie.to_be_bytes());
    put::<16, _, _>(&mut out, len.to_be_bytes());
    out
}

/// What comes before the data of a read that is answered by one chunk. `data_bytes` is 1 or more, for a chunk must have data (see
/// [`none_chunk`] for reads of nothing), and at most `u32::MAX - 8`.
#[inline]
pub fn data_head(cookie: u64, offset: u64, data_bytes: u32) -> [u8; DATA_HEAD_BYTES] {
    let mut out = [0; DATA_HEAD_BYTES];
    let payload_bytes = data_bytes.saturating_add(8);
    put::<0, _, _>(&mut out, chunk_header(chunk_flag::DONE, chunk_type::OFFSET_DATA, cookie, payload_bytes));
    put::<CHUNK_HEADER_BYTES, _, _>(&mut out, offset.to_be_bytes());
    out
}

/// The chunk that ends a reply: of a request that succeeded when no error came before.
#[inline]
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_HEADER_BYTES] {
    chunk_header(chunk_flag::DONE, chunk_type::NONE, cookie, 0)
}

/// Appends a chunk that answers a block status, one for each metadata context that was chosen: extents of the context with this number,
/// in their order from the request's offset on, each with its length in bytes and its flags (for `base:allocation` see
/// [`state`](super::spec::state), for dirty bitmaps [`dirty`](super::spec::dirty)). There is one at least, and no length is 0. The last
/// chunk has [`DONE`](super::spec::chunk_flag::DONE) in `flags`.
pub fn status_chunk(out: &mut Vec<u8>, flags: u16, cookie: u64, context: u32, extents: &[(u32, u32)]) {
    let payload_bytes = 4 + extents.len() * EXTENT_BYTES;
    out.extend_from_slice(&chunk_header(flags, chunk_type::BLOCK_STATUS, cookie, payload_bytes as u32));
    out.extend_from_slice(&context.to_be_bytes());
    for (len, flags) in extents {
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
    }
}

/// Appends the one chunk of a request that failed: an error, which is not 0, and a message for a person. More than
/// [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes of message are cut off.
pub fn error_chunk(out: &mut Vec<u8>, errno: u32, cookie: u64, message: &str) {
    let message = cut(message).as_bytes();
    out.extend_from_slice(&chunk_header(chunk_flag::DONE, chunk_type::ERROR, cookie, 6 + message.len() as u32));
    out.extend_from_slice(&errno.to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
}
