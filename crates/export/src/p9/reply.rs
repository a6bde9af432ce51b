//! Answers, put where the driver looks for them.

use crate::calls::data::room;
use crate::calls::{Answer, Outcome};
use device::p9::{Dialect, HEADER_BYTES, Header, READ_HEAD_BYTES, error_kind, error_out, reply_header, reply_kind};
use rustix::io::Errno;
use vring::{Segment, copy};

/// What an answer has to know of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Type of the message.
    pub(crate) kind: u8,
    pub(crate) tag: u16,
    /// What was spoken when the request came.
    pub(crate) dialect: Dialect,
    /// Other requests can learn when this one has its answer: its tag is among the session's.
    pub(crate) known: bool,
}

impl Asked {
    pub(crate) fn new(header: &Header, dialect: Dialect) -> Asked {
        Asked { kind: header.kind, tag: header.tag, dialect, known: false }
    }
}

/// Writes the answer; `reply` is its payload, and room for that of an error. Returns how many bytes were written: none where
/// the driver left no room, or where there is no answer.
pub(crate) fn write(outcome: Outcome, writable: &[Segment], asked: Asked, reply: &mut Vec<u8>) -> u32 {
    match outcome {
        Ok(Answer::Reply) => put(writable, reply_kind(asked.kind), asked.tag, reply)
            // What the driver has no room for is an error: EIO, as a short answer would be to Linux.
            .or_else(|| refuse(writable, asked, Errno::IO, reply)),
        Ok(Answer::Data(bytes)) => {
            put_before_data(writable, asked, bytes).or_else(|| refuse(writable, asked, Errno::IO, reply))
        }
        Ok(Answer::Silence) => None,
        Err(error) => refuse(writable, asked, error, reply),
    }
    .unwrap_or_default()
}

fn refuse(writable: &[Segment], asked: Asked, error: Errno, reply: &mut Vec<u8>) -> Option<u32> {
    reply.clear();
    error_out(reply, asked.dialect, error.raw_os_error());
    put(writable, error_kind(asked.dialect), asked.tag, reply)
}

fn put(writable: &[Segment], kind: u8, tag: u16, payload: &[u8]) -> Option<u32> {
    let len = HEADER_BYTES + payload.len();
    if room(writable) < len {
        return None;
    }
    copy::write_at(writable, 0, &reply_header(kind, tag, payload.len()));
    copy::write_at(writable, HEADER_BYTES as u64, payload);
    u32::try_from(len).ok()
}

/// Header and count in front of `bytes` of data that are there already.
fn put_before_data(writable: &[Segment], asked: Asked, bytes: usize) -> Option<u32> {
    let len = READ_HEAD_BYTES + bytes;
    if room(writable) < len {
        return None;
    }
    let mut head = [0; READ_HEAD_BYTES];
    let (header, count) = head.split_at_mut(HEADER_BYTES);
    header.copy_from_slice(&reply_header(reply_kind(asked.kind), asked.tag, len - HEADER_BYTES));
    count.copy_from_slice(&u32::try_from(bytes).ok()?.to_le_bytes());
    copy::write_at(writable, 0, &head);
    u32::try_from(len).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::p9::Kind;
    use std::ptr::NonNull;

    const READ: Asked = Asked { kind: Kind::Read as u8, tag: 0x1234, dialect: Dialect::L, known: false };

    /// Two segments over a buffer, cut at `cut`.
    fn segments(buffer: &mut [u8], cut: usize) -> Vec<Segment> {
        let (first, second) = buffer.split_at_mut(cut);
        [first, second]
            .into_iter()
            .filter_map(|part| {
                let len = part.len();
                // SAFETY: the buffer outlives the test's use of the segment, and is looked at only after it.
                (len > 0).then(|| unsafe { Segment::from_raw_parts(NonNull::from(part).cast(), len) })
            })
            .collect()
    }

    #[test]
    fn a_read_has_its_count_before_its_data() {
        let mut buffer = [0xee; 16];
        let writable = segments(&mut buffer, 9);
        assert_eq!(write(Ok(Answer::Data(5)), &writable, READ, &mut Vec::new()), 16);
        assert_eq!(buffer, [16, 0, 0, 0, 117, 0x34, 0x12, 5, 0, 0, 0, 0xee, 0xee, 0xee, 0xee, 0xee]);
    }

    #[test]
    fn an_error_is_of_the_dialect() {
        for (dialect, expected) in [
            (Dialect::L, &[11, 0, 0, 0, 7, 0x34, 0x12, 2, 0, 0, 0][..]),
            (Dialect::U, &[38, 0, 0, 0, 107, 0x34, 0x12, 25, 0]),
        ] {
            let mut buffer = [0; 64];
            let asked = Asked { dialect, ..READ };
            let len = write(Err(Errno::NOENT), &segments(&mut buffer, 3), asked, &mut Vec::new());
            assert_eq!(buffer[..expected.len()], *expected);
            assert_eq!(u32::from(buffer[0]), len);
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_or_nothing() {
        let mut buffer = [0; 11];
        let writable = segments(&mut buffer, 4);
        assert_eq!(write(Ok(Answer::Reply), &writable, READ, &mut vec![1; 5]), 11);
        assert_eq!(buffer, [11, 0, 0, 0, 7, 0x34, 0x12, 5, 0, 0, 0]);
        let mut small = [0; 10];
        for outcome in [Ok(Answer::Reply), Ok(Answer::Data(0)), Err(Errno::NOENT), Ok(Answer::Silence)] {
            assert_eq!(write(outcome, &segments(&mut small, 0), READ, &mut vec![1; 5]), 0);
        }
        assert_eq!(small, [0; 10]);
    }
}
