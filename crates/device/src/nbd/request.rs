//! From the bytes of a request to its fields.

use super::command::Command;
use super::malformed::Malformed;
use super::spec::{REQUEST_BYTES, magic};
use super::wire::{be16, be32, be64};

/// A request as it was sent; [`check`](Self::check) says whether it may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags; see [`command_flag`](super::spec::command_flag).
    pub flags: u16,
    /// What is asked.
    pub command: Command,
    /// The client's name for the request; the reply repeats it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

/// Decodes a request, without its data.
///
/// # Errors
/// [`Malformed::BadRequestMagic`].
#[inline]
pub fn decode_request(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, Malformed> {
    if be32::<0, _>(bytes) != magic::REQUEST {
        return Err(Malformed::BadRequestMagic);
    }
    Ok(Request {
        flags: be16::<4, _>(bytes),
        command: Command::from_raw(be16::<6, _>(bytes)),
        cookie: be64::<8, _>(bytes),
        offset: be64::<16, _>(bytes),
        len: be32::<24, _>(bytes),
    })
}

/// Bytes of the request that `front`, what has been received, begins with: [`REQUEST_BYTES`], and the data of a write. `None` while
/// the request is not all there without its data.
///
/// A client that sends more than `payload_max` bytes of data is cut off. None that has been told so ought to; one that has not
/// asked for the block sizes may well send [`PAYLOAD_BYTES_PORTABLE`](super::spec::PAYLOAD_BYTES_PORTABLE), for which a server
/// should not hang up whatever it announced (section "Size constraints").
///
/// # Errors
/// [`Malformed::BadRequestMagic`]; [`Malformed::PayloadTooLong`].
#[inline]
pub fn request_bytes(front: &[u8], payload_max: u32) -> Result<Option<usize>, Malformed> {
    let Some(bytes) = front.first_chunk() else {
        return Ok(None);
    };
    let request = decode_request(bytes)?;
    if request.command != Command::Write {
        return Ok(Some(REQUEST_BYTES));
    }
    if request.len > payload_max {
        return Err(Malformed::PayloadTooLong);
    }
    Ok(Some(REQUEST_BYTES.saturating_add(request.len as usize)))
}
