//! One message of each kind.

use crate::nbd::message::{contexts, go, option, request};
use device::nbd::{Command, Terms, decode_option, decode_request, option_bytes, request_bytes};

/// A name, which is a file's too, and the messages.
pub(crate) struct Example {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
}

fn example(name: &'static str, bytes: impl AsRef<[u8]>) -> Example {
    Example { name, bytes: bytes.as_ref().to_vec() }
}

/// Options.
pub(crate) fn options() -> Vec<Example> {
    vec![
        example("export_name", option(1, b"disk")),
        example("abort", option(2, b"bye")),
        example("list", option(3, b"")),
        example("starttls", option(5, b"")),
        example("info", option(6, &go("disk", &[0, 1, 2, 3]))),
        example("go", option(7, &go("", &[3]))),
        example("structured_reply", option(8, b"")),
        example("list_meta_context", option(9, &contexts::<&str>("disk", &[]))),
        example("set_meta_context", option(10, &contexts("disk", &["base:allocation", "qemu:dirty-bitmap:a"]))),
        example("extended_headers", option(11, b"")),
        example(
            "handshake",
            [option(8, b""), option(10, &contexts("a", &["base:"])), option(7, &go("a", &[]))].concat(),
        ),
    ]
}

/// Requests to an export of 16 blocks of 4096 bytes that offers everything; all but the cache request are carried out.
pub(crate) fn requests() -> Vec<Example> {
    vec![
        example("read", request(0b101, 0, 1, 4096, 8192)),
        example("write", [&request(1, 1, 2, 4096, 4096)[..], &[7; 4096]].concat()),
        example("disconnect", request(0, 2, 3, 0, 0)),
        example("flush", request(0, 3, 4, 0, 0)),
        example("trim", request(0, 4, 5, 0, 65536)),
        example("cache", request(0, 5, 6, 0, 4096)),
        example("write_zeroes", request(0b11, 6, 7, 61440, 4096)),
        example("block_status", request(0b1000, 7, 8, 4096, 61440)),
        example("session", [&request(0, 1, 9, 0, 0)[..], &request(0, 3, 10, 0, 0), &request(0, 2, 11, 0, 0)].concat()),
    ]
}

#[test]
fn every_option_is_understood() {
    for Example { name, bytes } in options() {
        let mut rest = &bytes[..];
        while let Some(bytes) = option_bytes(rest).unwrap() {
            let (message, behind) = rest.split_at(bytes);
            assert!(decode_option(message).1.is_ok(), "{name}");
            rest = behind;
        }
        assert!(rest.is_empty(), "{name}");
    }
}

#[test]
fn every_request_is_carried_out() {
    let terms = Terms {
        size_bytes: 16 * 4096,
        block_bytes: 4096,
        read_only: false,
        trim: true,
        write_zeroes: true,
        block_status: true,
        payload_max: 1 << 16,
    };
    for Example { name, bytes } in requests() {
        let mut rest = &bytes[..];
        while let Some(bytes) = request_bytes(rest, terms.payload_max).unwrap() {
            let request = decode_request(rest.first_chunk().unwrap()).unwrap();
            assert_eq!(request.check(&terms).is_ok(), request.command != Command::Cache, "{name}");
            rest = rest.split_at(bytes).1;
        }
        assert!(rest.is_empty(), "{name}");
    }
}
