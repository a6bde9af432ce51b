//! What starts every request and every reply.

use super::spec::{IN_HEADER_BYTES, OUT_HEADER_BYTES};
use super::wire::{le16, le32, le64, put};

/// `fuse_in_header`: any bytes are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InHeader {
    /// Bytes of the request, this header included.
    pub len: u32,
    /// Number of the operation; see [`Opcode::from_raw`](super::Opcode::from_raw).
    pub opcode: u32,
    /// The guest's number for the request.
    pub unique: u64,
    /// The node that the request is about.
    pub nodeid: u64,
    /// The caller's user (fsuid). With `ALLOW_IDMAP`, `u32::MAX` where the guest cannot tell.
    pub uid: u32,
    /// The caller's group (fsgid). With `ALLOW_IDMAP`, `u32::MAX` where the guest cannot tell.
    pub gid: u32,
    /// The caller's process.
    pub pid: u32,
    /// Length of the request's extensions, in units of 8 bytes; always 0 before protocol 7.38.
    pub total_extlen: u16,
}

impl InHeader {
    /// Takes the fields out.
    #[inline]
    pub fn decode(bytes: &[u8; IN_HEADER_BYTES]) -> InHeader {
        InHeader {
            len: le32::<0, _>(bytes),
            opcode: le32::<4, _>(bytes),
            unique: le64::<8, _>(bytes),
            nodeid: le64::<16, _>(bytes),
            uid: le32::<24, _>(bytes),
            gid: le32::<28, _>(bytes),
            pid: le32::<32, _>(bytes),
            total_extlen: le16::<36, _>(bytes),
        }
    }
}

/// `fuse_out_header` of a reply with `len` bytes, this header included. `error` is 0 or a negated errno; a reply with an error
/// is a header alone.
#[inline]
pub fn out_header(unique: u64, len: u32, error: i32) -> [u8; OUT_HEADER_BYTES] {
    let mut out = [0; OUT_HEADER_BYTES];
    put::<0, _, _>(&mut out, len.to_le_bytes());
    put::<4, _, _>(&mut out, error.to_le_bytes());
    put::<8, _, _>(&mut out, unique.to_le_bytes());
    out
}
