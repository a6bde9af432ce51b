//! Answers, put where the driver looks for them.

use crate::calls::data::room;
use device::fs::{OUT_HEADER_BYTES, out_header};
use rustix::io::Errno;
use vring::{Segment, copy};

/// Writes an answer: the header, and `payload` behind it. Returns how many bytes were written.
///
/// A driver that left no room for a header wants no answer. One that left too little for the payload is told of an error
/// instead (EIO, as Linux takes a short answer for one anyway).
pub(crate) fn write(writable: &[Segment], unique: u64, outcome: Result<&[u8], Errno>) -> u32 {
    let (error, payload) = match outcome {
        Ok(payload) => (0, payload),
        Err(error) => (-error.raw_os_error(), &[][..]),
    };
    let room = room(writable);
    if room < OUT_HEADER_BYTES {
        return 0;
    }
    if room - OUT_HEADER_BYTES < payload.len() {
        return write(writable, unique, Err(Errno::IO));
    }
    let len = OUT_HEADER_BYTES + payload.len();
    copy::write_at(writable, 0, &out_header(unique, len as u32, error));
    copy::write_at(writable, OUT_HEADER_BYTES as u64, payload);
    len as u32
}

/// Writes the header in front of `bytes` of data that are there already. Returns how many bytes the answer has.
pub(crate) fn write_before_data(writable: &[Segment], unique: u64, bytes: usize) -> u32 {
    let len = (OUT_HEADER_BYTES + bytes) as u32;
    copy::write_at(writable, 0, &out_header(unique, len, 0));
    len
}
