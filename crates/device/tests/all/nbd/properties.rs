//! Any bytes, any fields.

use crate::nbd::examples;
use crate::nbd::message::{contexts, go, option, request};
use device::nbd::{
    Command, HandshakeOption, OPTION_BYTES_MAX, Request, Terms, Work, decode_option, decode_request, option_bytes,
    request_bytes,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..=max)
}

fn terms() -> impl Strategy<Value = Terms> {
    (0..200_000_u64, any::<bool>(), any::<[bool; 4]>(), 0..100_000_u32).prop_map(
        |(size_bytes, large, [read_only, trim, write_zeroes, block_status], payload_max)| Terms {
            size_bytes,
            block_bytes: if large { 4096 } else { 512 },
            read_only,
            trim,
            write_zeroes,
            block_status,
            payload_max,
        },
    )
}

/// Numbers near which something changes, in blocks and beside them; and any.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..500_u64).prop_map(|block| block * 512),
        1 => 0..200_000_u64,
        1 => (0..20_u64).prop_map(|block| u64::MAX - 511 - block * 512),
        1 => any::<u64>(),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![4 => (0..300_u32).prop_map(|block| block * 512), 1 => 0..100_000_u32, 1 => any::<u32>()]
}

/// A range of work.
fn range(work: Work) -> Option<(u64, u32)> {
    match work {
        Work::Read { offset, len }
        | Work::Write { offset, len, .. }
        | Work::Trim { offset, len, .. }
        | Work::WriteZeroes { offset, len, .. }
        | Work::BlockStatus { offset, len, .. } => Some((offset, len)),
        Work::Flush | Work::Disconnect => None,
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_option_or_refused(bytes in bytes(400), number in 0..13_u32) {
        let _ = option_bytes(&bytes);
        let _ = decode_option(&bytes);
        let whole = option(number, &bytes);
        prop_assert_eq!(option_bytes(&whole), Ok(Some(whole.len())));
        prop_assert_eq!(decode_option(&whole).0, number);
    }

    /// A known message with some of its bytes changed: decoders are reached that random bytes seldom find.
    #[test]
    fn damaged_options_are_options_or_refused(
        which: prop::sample::Index,
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut message = which.get(&examples::options()).bytes.clone();
        for (at, value) in changes {
            let at = at.index(message.len());
            message[at] = value;
        }
        if let Ok(Some(bytes)) = option_bytes(&message) {
            prop_assert!(bytes <= 16 + OPTION_BYTES_MAX);
        }
        if let Ok(HandshakeOption::SetMetaContext(contexts)) = decode_option(&message).1 {
            prop_assert_eq!(contexts.queries().count(), contexts.len());
        }
    }

    #[test]
    fn names_read_as_they_were_written(name in bytes(4096)) {
        let message = option(1, &name);
        prop_assert_eq!(decode_option(&message), (1, Ok(HandshakeOption::ExportName(&name))));
    }

    #[test]
    fn go_reads_as_it_was_written(name in bytes(300), requests in vec(0..20_u16, 0..12), and_use: bool) {
        let message = option(if and_use { 7 } else { 6 }, &go(&name, &requests));
        let asked = match decode_option(&message).1 {
            Ok(HandshakeOption::Go(asked)) if and_use => asked,
            Ok(HandshakeOption::Info(asked)) if !and_use => asked,
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!(asked.name, &name);
        for info in 0..25 {
            prop_assert_eq!(asked.wants(info), requests.contains(&info));
        }
    }

    #[test]
    fn contexts_read_as_they_were_written(name in bytes(300), queries in vec(bytes(100), 0..20), choose: bool) {
        let message = option(if choose { 10 } else { 9 }, &contexts(&name, &queries));
        let asked = match decode_option(&message).1 {
            Ok(HandshakeOption::SetMetaContext(asked)) if choose => asked,
            Ok(HandshakeOption::ListMetaContext(asked)) if !choose => asked,
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!((asked.name, asked.len()), (&name[..], queries.len()));
        prop_assert!(asked.queries().eq(queries.iter().map(Vec::as_slice)));
    }

    /// Against what the protocol and QEMU say of namespaces, in other words.
    #[test]
    fn contexts_are_listed_and_chosen_by_their_names(
        context in prop::sample::select(&["base:allocation", "qemu:dirty-bitmap:a", "qemu:dirty-bitmap:a:b"][..]),
        queries in vec("(base:|qemu:|dirty-bitmap:|allocation|a|:|b|[a-z]){0,4}", 0..5),
    ) {
        let message = option(9, &contexts("disk", &queries));
        let Ok(HandshakeOption::ListMetaContext(asked)) = decode_option(&message).1 else {
            return Err(TestCaseError::fail("it is a list"));
        };
        let chosen = queries.iter().any(|query| query == context);
        let namespaces = if context.starts_with('b') { &["base:"][..] } else { &["qemu:", "qemu:dirty-bitmap:"] };
        let listed = chosen || queries.is_empty() || queries.iter().any(|query| namespaces.contains(&query.as_str()));
        prop_assert_eq!((asked.list(context.as_bytes()), asked.choose(context.as_bytes())), (listed, chosen));
    }

    #[test]
    fn any_bytes_are_a_request_or_malformed(bytes in bytes(60), payload_max: u32) {
        let known = request_bytes(&bytes, payload_max);
        if let Some(first) = bytes.first_chunk() {
            prop_assert!(decode_request(first).is_ok() || known.is_err());
        } else {
            prop_assert_eq!(known, Ok(None));
        }
    }

    #[test]
    fn requests_read_as_they_were_written(flags: u16, command in 0..12_u16, cookie: u64, offset: u64, len: u32, max: u32) {
        let bytes = request(flags, command, cookie, offset, len);
        let command = Command::from_raw(command);
        prop_assert_eq!(decode_request(&bytes), Ok(Request { flags, command, cookie, offset, len }));
        let expected = match command {
            Command::Write if len > max => None,
            Command::Write => Some(Some(28 + len as usize)),
            _ => Some(Some(28)),
        };
        prop_assert_eq!(request_bytes(&bytes, max).ok(), expected);
    }

    #[test]
    fn work_lies_inside_the_export(
        terms in terms(),
        flags in prop_oneof![3 => 0..16_u16, 1 => any::<u16>()],
        command in 0..9_u16,
        offset in offset(),
        len in len(),
    ) {
        let request = Request { flags, command: Command::from_raw(command), cookie: 1, offset, len };
        let Ok(work) = request.check(&terms) else {
            return Ok(());
        };
        if let Some(range) = range(work) {
            prop_assert_eq!(range, (offset, len));
            let block = u64::from(terms.block_bytes);
            prop_assert!(offset.is_multiple_of(block) && u64::from(len).is_multiple_of(block));
            prop_assert!(u128::from(offset) + u128::from(len) <= u128::from(terms.size_bytes));
        }
        if let Work::Read { .. } | Work::Write { .. } = work {
            prop_assert!(len <= terms.payload_max);
        }
        if let Work::Write { .. } | Work::Trim { .. } | Work::WriteZeroes { .. } = work {
            prop_assert!(!terms.read_only);
        }
    }

    #[test]
    #[cfg(feature = "fuzzing")]
    fn the_fuzz_body_takes_anything(bytes in bytes(300)) {
        device::fuzzing::nbd_request(&bytes);
    }
}

/// The fuzzer starts from one message of each kind, on an export of 16 blocks of 4096 bytes that offers everything.
#[test]
#[cfg(feature = "fuzzing")]
fn the_seeds_are_the_examples() {
    let seed = |phase: u8, example: examples::Example| {
        (example.name, [&[0x80 | phase | 0b1_1110, 16, 0], &example.bytes[..]].concat())
    };
    let options = examples::options().into_iter().map(|example| seed(0, example));
    let requests = examples::requests().into_iter().map(|example| seed(0x40, example));
    let seeds: Vec<(&str, Vec<u8>)> = options.chain(requests).collect();
    crate::seeds::hold("nbd_request", &seeds, device::fuzzing::nbd_request);
}

#[test]
#[cfg(feature = "fuzzing")]
fn noise_holds() {
    crate::seeds::noise(5000, 300, |input| device::fuzzing::nbd_request(&input));
}
