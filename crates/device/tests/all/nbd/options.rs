//! Options: what they ask, and what is wrong with them.

use crate::nbd::message::{Message, contexts, go, option};
use device::nbd::spec::option_reply_type::ERR_INVALID;
use device::nbd::{HandshakeOption, Malformed, OPTION_BYTES_MAX, decode_option, option_bytes};

/// Decodes an option as a connection does: no more than its own bytes.
#[track_caller]
fn decode(message: &[u8]) -> HandshakeOption<'_> {
    assert_eq!(option_bytes(message), Ok(Some(message.len())));
    decode_option(message).1.unwrap()
}

#[track_caller]
fn refused(number: u32, data: &[u8], reason: &str) {
    let message = option(number, data);
    let (named, decoded) = decode_option(&message);
    let error = decoded.unwrap_err();
    assert_eq!((named, error.kind), (number, ERR_INVALID));
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn an_option_is_as_long_as_its_header_says() {
    let message = [&option(7, b"12345")[..], b"IHAVEOPT"].concat();
    for len in 0..16 {
        assert_eq!(option_bytes(&message[..len]), Ok(None));
    }
    for len in 16..=message.len() {
        assert_eq!(option_bytes(&message[..len]), Ok(Some(21)));
    }
}

#[test]
fn an_option_without_its_magic_number_ends_the_connection() {
    let message = option(3, b"");
    for at in 0..8 {
        let mut message = message.clone();
        message[at] ^= 0x20;
        assert_eq!(option_bytes(&message), Err(Malformed::BadOptionMagic));
    }
}

#[test]
fn an_option_that_is_too_long_ends_the_connection() {
    let header = |len: usize| Message::new().raw(b"IHAVEOPT").d(99).d(u32::try_from(len).unwrap()).bytes();
    assert_eq!(option_bytes(&header(OPTION_BYTES_MAX)), Ok(Some(16 + OPTION_BYTES_MAX)));
    for len in [OPTION_BYTES_MAX + 1, u32::MAX as usize] {
        assert_eq!(option_bytes(&header(len)), Err(Malformed::OptionTooLong));
    }
}

#[test]
fn options_without_data() {
    assert_eq!(decode(&option(2, b"")), HandshakeOption::Abort);
    assert_eq!(decode(&option(3, b"")), HandshakeOption::List);
    assert_eq!(decode(&option(5, b"")), HandshakeOption::StartTls);
    assert_eq!(decode(&option(8, b"")), HandshakeOption::StructuredReply);
    for number in [3, 5, 8] {
        refused(number, b"x", "must not");
    }
    // Whatever a client says when it goes.
    assert_eq!(decode(&option(2, b"enough")), HandshakeOption::Abort);
}

#[test]
fn options_that_are_not_known_may_have_any_data() {
    for number in [0, 4, 11, 12, u32::MAX] {
        let message = option(number, &[0xff; 33]);
        assert_eq!(decode_option(&message), (number, Ok(HandshakeOption::Unknown)));
    }
}

#[test]
fn an_export_name_is_all_of_the_data() {
    assert_eq!(decode(&option(1, b"")), HandshakeOption::ExportName(b""));
    assert_eq!(decode(&option(1, b"a\0\xff")), HandshakeOption::ExportName(b"a\0\xff"));
    let longest = [b'n'; 4096];
    assert_eq!(decode(&option(1, &longest)), HandshakeOption::ExportName(&longest));
    refused(1, &[b'n'; 4097], "4096");
}

#[test]
fn info_and_go_name_an_export_and_what_is_asked() {
    for number in [6, 7] {
        let message = option(number, &go("disk", &[3, 1, 3, 77]));
        let asked = match decode(&message) {
            HandshakeOption::Info(asked) if number == 6 => asked,
            HandshakeOption::Go(asked) if number == 7 => asked,
            other => panic!("{other:?}"),
        };
        assert_eq!(asked.name, b"disk");
        let wanted: Vec<u16> = (0..=u16::MAX).filter(|&info| asked.wants(info)).collect();
        assert_eq!(wanted, [1, 3, 77]);
    }
    let longest = "n".repeat(4096);
    assert!(matches!(decode(&option(7, &go(&longest, &[]))), HandshakeOption::Go(asked) if asked.name.len() == 4096));
}

#[test]
fn info_and_go_whose_lengths_lie_are_refused() {
    for number in [6, 7] {
        let data = go("disk", &[3]);
        for len in 0..data.len() {
            refused(number, &data[..len], "within a field");
        }
        refused(number, &[&data[..], b"x"].concat(), "behind its last field");
        refused(number, &[&data[..], b"xx"].concat(), "behind its last field");
        refused(number, &go("n".repeat(4097), &[]), "4096");
        refused(number, &Message::new().d(u32::MAX).raw(b"disk").w(0).bytes(), "within a field");
        refused(number, &Message::new().s("disk").w(u16::MAX).w(3).bytes(), "within a field");
    }
}

#[test]
fn contexts_name_an_export_and_queries() {
    for number in [9, 10] {
        let message = option(number, &contexts("disk", &["base:allocation", "", "x"]));
        let asked = match decode(&message) {
            HandshakeOption::ListMetaContext(asked) if number == 9 => asked,
            HandshakeOption::SetMetaContext(asked) if number == 10 => asked,
            other => panic!("{other:?}"),
        };
        assert_eq!((asked.name, asked.len(), asked.is_empty()), (&b"disk"[..], 3, false));
        assert_eq!(asked.queries().collect::<Vec<_>>(), [&b"base:allocation"[..], b"", b"x"]);
    }
    let message = option(9, &contexts::<&str>("", &[]));
    assert!(matches!(decode(&message), HandshakeOption::ListMetaContext(asked) if asked.is_empty()));
}

/// Of queries: whether a list has a context, and whether they choose it.
#[test]
fn contexts_are_found_by_their_names() {
    const ALLOCATION: &str = "base:allocation";
    const BITMAP: &str = "qemu:dirty-bitmap:a:b";
    let cases: [(&str, &[&str], bool, bool); 12] = [
        (ALLOCATION, &[], true, false),
        (ALLOCATION, &["base:"], true, false),
        (ALLOCATION, &["base:allocation"], true, true),
        (ALLOCATION, &["qemu:dirty-bitmap:x", "base:allocation"], true, true),
        (ALLOCATION, &["base:allocation:depth", "allocation", "base", ""], false, false),
        (ALLOCATION, &["BASE:", "qemu:"], false, false),
        (BITMAP, &[], true, false),
        (BITMAP, &["base:", "qemu:"], true, false),
        (BITMAP, &["qemu:dirty-bitmap:"], true, false),
        (BITMAP, &["qemu:", "qemu:dirty-bitmap:a:b"], true, true),
        // What is no namespace finds nothing, whatever begins with it.
        (BITMAP, &["qemu", "qemu:dirty-bitmap", "qemu:dirty-bitmap:a:", "qemu:dirty-bitmap:a"], false, false),
        (BITMAP, &["qemu:allocation-depth", "qemu:dirty-bitmap:a:b:c", "QEMU:"], false, false),
    ];
    for (context, queries, listed, chosen) in cases {
        let message = option(9, &contexts("disk", queries));
        let HandshakeOption::ListMetaContext(asked) = decode(&message) else { panic!("{queries:?}") };
        let found = (asked.list(context.as_bytes()), asked.choose(context.as_bytes()));
        assert_eq!(found, (listed, chosen), "{context} {queries:?}");
    }
}

#[test]
fn contexts_whose_lengths_lie_are_refused() {
    for number in [9, 10] {
        let data = contexts("disk", &["base:allocation", "x"]);
        for len in 0..data.len() {
            refused(number, &data[..len], "within a field");
        }
        refused(number, &[&data[..], b"x"].concat(), "behind its last field");
        refused(number, &contexts("n".repeat(4097), &["x"]), "4096");
        refused(number, &contexts("disk", &["q".repeat(4097)]), "4096");
        refused(number, &Message::new().s("disk").d(u32::MAX).s("a").bytes(), "within a field");
        refused(number, &Message::new().s("disk").d(1).d(u32::MAX).raw(b"a").bytes(), "within a field");
        refused(number, &Message::new().s("disk").d(0).s("a").bytes(), "behind its last field");
    }
}

/// These never come of [`option_bytes`].
#[test]
fn bytes_that_are_no_whole_option_are_refused() {
    let message = option(7, &go("disk", &[3]));
    for len in 0..message.len() {
        let (number, decoded) = decode_option(&message[..len]);
        assert_eq!(number, if len < 16 { 0 } else { 7 });
        assert_eq!(decoded.unwrap_err().kind, ERR_INVALID);
    }
    assert!(decode_option(&[&message[..], b"x"].concat()).1.is_err());
}
