//! The fields of requests, and where they end.

use crate::nbd::message::request;
use device::nbd::{Command, Malformed, Request, decode_request, request_bytes};

#[test]
fn a_request_has_its_fields() {
    let bytes = request(0x8001, 6, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0x1122_3344);
    let expected = Request {
        flags: 0x8001,
        command: Command::WriteZeroes,
        cookie: 0x0123_4567_89ab_cdef,
        offset: 0xfedc_ba98_7654_3210,
        len: 0x1122_3344,
    };
    assert_eq!(decode_request(&bytes), Ok(expected));
}

#[test]
fn commands_have_their_numbers() {
    let known = [
        Command::Read,
        Command::Write,
        Command::Disconnect,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];
    for raw in 0..=u16::MAX {
        let expected = known.get(usize::from(raw)).copied().unwrap_or(Command::Unknown(raw));
        assert_eq!(Command::from_raw(raw), expected);
    }
}

#[test]
fn a_request_without_its_magic_number_ends_the_connection() {
    for at in 0..4 {
        let mut bytes = request(0, 0, 1, 0, 512);
        bytes[at] ^= 1;
        assert_eq!(decode_request(&bytes), Err(Malformed::BadRequestMagic));
        assert_eq!(request_bytes(&bytes, 512), Err(Malformed::BadRequestMagic));
    }
}

#[test]
fn a_write_has_its_data_behind_it_and_nothing_else_has() {
    let write = [&request(0, 1, 1, 0, 1024)[..], &[0; 1024]].concat();
    for len in 0..28 {
        assert_eq!(request_bytes(&write[..len], 1024), Ok(None));
    }
    for len in [28, 29, 1051, 1052] {
        assert_eq!(request_bytes(&write[..len], 1024), Ok(Some(1052)));
    }
    for command in (0..20).filter(|&command| command != 1) {
        assert_eq!(request_bytes(&request(0xffff, command, 1, 0, u32::MAX), 0), Ok(Some(28)));
    }
}

#[test]
fn a_write_with_too_much_data_ends_the_connection() {
    for (len, max) in [(1025, 1024), (1, 0), (u32::MAX, u32::MAX - 1)] {
        assert_eq!(request_bytes(&request(0, 1, 1, 0, len), max), Err(Malformed::PayloadTooLong));
    }
    assert_eq!(request_bytes(&request(0, 1, 1, 0, 0), 0), Ok(Some(28)));
}
