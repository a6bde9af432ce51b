//! The bytes of replies, as the protocol's tables have them.

use crate::nbd::message::{Message, go, option};
use device::nbd::spec::{chunk_flag, chunk_type, dirty, errno, option_reply_type, state};
use device::nbd::{
    BlockSizes, ExportInfo, HandshakeOption, OptionError, chunk_header, context_out, data_head, decode_option,
    errno_of, error_chunk, export_name_out, info_out, none_chunk, option_error, option_reply, server_out, simple_reply,
    status_chunk,
};

/// What `write` appends; what was there before stays.
fn appended(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = b"before".to_vec();
    write(&mut out);
    out.strip_prefix(b"before").expect("nothing is changed").to_vec()
}

/// A reply to an option.
fn reply(option: u32, kind: u32, payload: &[u8]) -> Vec<u8> {
    Message::new().q(0x0003_e889_0455_65a9).d(option).d(kind).s(payload).bytes()
}

/// The header of a chunk.
fn chunk(flags: u16, kind: u16, cookie: u64, len: u32) -> Message {
    Message::new().d(0x668e_33ef).w(flags).w(kind).q(cookie).d(len)
}

#[test]
fn options_are_answered() {
    assert_eq!(appended(|out| option_reply(out, 8, 1, b"")), reply(8, 1, b""));
    assert_eq!(appended(|out| option_reply(out, u32::MAX, 0x8000_0001, b"no")), reply(u32::MAX, 0x8000_0001, b"no"));
    let listed = Message::new().s("disk").bytes();
    assert_eq!(appended(|out| server_out(out, 3, "disk")), reply(3, 2, &listed));
}

#[test]
fn refusals_have_their_type_and_reason() {
    let error = OptionError::invalid("what was it");
    assert_eq!(appended(|out| option_error(out, 9, &error)), reply(9, 0x8000_0003, b"what was it"));
    let error = OptionError { kind: option_reply_type::ERR_UNKNOWN, reason: "" };
    assert_eq!(appended(|out| option_error(out, 7, &error)), reply(7, 0x8000_0006, b""));
}

#[test]
fn exports_are_described() {
    let export = ExportInfo {
        size_bytes: 0x0102_0304_0506_0708,
        flags: 0x0a0b,
        block: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 },
        name: "disk",
    };
    let size = Message::new().w(0).q(export.size_bytes).w(export.flags).bytes();
    let block = Message::new().w(3).d(512).d(4096).d(1 << 25).bytes();
    let name = Message::new().w(1).raw(b"disk").bytes();
    for (asked, named) in [(&[][..], false), (&[3], false), (&[1], true), (&[2, 1, 0], true)] {
        let message = option(7, &go("", asked));
        let Ok(HandshakeOption::Go(go)) = decode_option(&message).1 else { panic!() };
        let mut expected = [reply(7, 3, &size), reply(7, 3, &block)].concat();
        if named {
            expected.extend(reply(7, 3, &name));
        }
        assert_eq!(appended(|out| info_out(out, 7, &go, &export)), expected);
    }
}

#[test]
fn an_export_name_has_a_reply_of_its_own() {
    let short = Message::new().q(1 << 40).w(3).bytes();
    assert_eq!(appended(|out| export_name_out(out, 1 << 40, 3, true)), short);
    assert_eq!(appended(|out| export_name_out(out, 1 << 40, 3, false)), [&short[..], &[0; 124]].concat());
}

#[test]
fn simple_replies_and_heads_of_chunks() {
    assert_eq!(
        simple_reply(22, 0x0123_4567_89ab_cdef)[..],
        Message::new().d(0x6744_6698).d(22).q(0x0123_4567_89ab_cdef).bytes()
    );
    assert_eq!(chunk_header(0x0102, 0x0304, 5, 6)[..], chunk(0x0102, 0x0304, 5, 6).bytes());
    assert_eq!(none_chunk(9)[..], chunk(1, 0, 9, 0).bytes());
    assert_eq!(data_head(9, 1 << 40, 512)[..], chunk(1, 1, 9, 520).q(1 << 40).bytes());
    let longest = chunk_header(chunk_flag::DONE, chunk_type::OFFSET_DATA, 9, u32::MAX);
    assert_eq!(data_head(9, 0, u32::MAX - 8)[..20], longest);
}

#[test]
fn metadata_contexts_are_named_and_answered() {
    let expected = reply(10, 4, &Message::new().d(7).raw(b"base:allocation").bytes());
    assert_eq!(appended(|out| context_out(out, 10, 7, b"base:allocation")), expected);
    let expected = chunk(1, 5, 9, 4 + 2 * 8).d(7).d(4096).d(0).d(512).d(3).bytes();
    let extents = [(4096, 0), (512, state::HOLE | state::ZERO)];
    assert_eq!(appended(|out| status_chunk(out, chunk_flag::DONE, 9, 7, &extents)), expected);
    let expected = chunk(0, 5, 9, 4 + 8).d(8).d(512).d(1).bytes();
    assert_eq!(appended(|out| status_chunk(out, 0, 9, 8, &[(512, dirty::DIRTY)])), expected);
}

#[test]
fn errors_have_a_message() {
    let expected = chunk(1, 0x8001, 9, 6 + 4).d(5).w(4).raw(b"oops").bytes();
    assert_eq!(appended(|out| error_chunk(out, errno::EIO, 9, "oops")), expected);
    assert_eq!(appended(|out| error_chunk(out, errno::EIO, 9, "")), chunk(1, 0x8001, 9, 6).d(5).w(0).bytes());
}

#[test]
fn messages_are_cut_off_between_characters() {
    for (message, kept) in [
        ("m".repeat(4096), 4096),
        ("m".repeat(70_000), 4096),
        (format!("m{}", "é".repeat(3000)), 4095),
        (format!("mm{}", "🖴".repeat(3000)), 4094),
    ] {
        let out = appended(|out| error_chunk(out, 5, 9, &message));
        assert_eq!(out.len(), 26 + kept);
        assert_eq!(out[16..20], (6 + u32::try_from(kept).unwrap()).to_be_bytes());
        assert_eq!(&out[26..], &message.as_bytes()[..kept]);
        assert!(std::str::from_utf8(&out[26..]).is_ok());
    }
}

#[test]
fn errors_of_the_storage_become_errors_of_the_protocol() {
    let expected = [
        (1, errno::EPERM),
        (5, errno::EIO),
        (12, errno::ENOMEM),
        (13, errno::EPERM),
        (22, errno::EINVAL),
        (27, errno::ENOSPC),
        (28, errno::ENOSPC),
        (30, errno::EPERM),
        (95, errno::EINVAL),
        (122, errno::ENOSPC),
    ];
    for linux in -200..200 {
        let named = expected.iter().find(|(known, _)| *known == linux).map_or(errno::EIO, |(_, nbd)| *nbd);
        assert_eq!(errno_of(linux), named, "{linux}");
    }
}
