//! What a client and the server agree on before the first request.

use super::client::{
    ACK, ERR_INVALID, ERR_UNKNOWN, ERR_UNSUP, FIXED_NEWSTYLE, Handshake, INFO, INFO_BLOCK_SIZE, INFO_EXPORT, INFO_NAME,
    NO_ZEROES, OptionReply, Replies, Request, Told, contexts_of, fields, go_of, option, option_of, told_by,
};
use super::server::{Like, NAME, Server, eventually, memory, pattern};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use storage::{FileOptions, FileStorage, Storage};

const SIZE: u64 = 1 << 20;

/// Flags of exports.
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const SEND_DF: u16 = 1 << 7;
const CAN_MULTI_CONN: u16 = 1 << 8;
/// Of every export.
const ALWAYS: u16 = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;

/// What a disk in memory is told to be.
fn usual(minimum: u32) -> Told {
    let flags = ALWAYS | SEND_TRIM | SEND_WRITE_ZEROES;
    Told { size_bytes: SIZE, flags, block: [minimum, 4096, 32 << 20] }
}

/// The export's size and flags in the reply to `EXPORT_NAME`.
fn size_and_flags(reply: &[u8]) -> (u64, u16) {
    (u64::from_be_bytes(reply[..8].try_into().unwrap()), u16::from_be_bytes(reply[8..10].try_into().unwrap()))
}

#[test]
fn info_tells_and_go_begins() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake();
    assert_eq!(handshake.told(option::INFO, NAME), usual(512));
    // Again, and of the default export, which is this one.
    assert_eq!(handshake.told(option::INFO, ""), usual(512));
    let mut client = handshake.go(NAME);
    assert_eq!(client.told, usual(512));
    client.write(512, &pattern(512, 1));
    assert_eq!(client.read(512, 512), pattern(512, 1));
    let mut by_default = server.handshake().go("");
    assert_eq!(by_default.read(512, 512), pattern(512, 1));
}

#[test]
fn the_name_is_told_to_who_asks_for_it_and_unknown_information_to_nobody() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake();
    for (wanted, kinds) in [
        (&[][..], &[INFO_EXPORT, INFO_BLOCK_SIZE][..]),
        (&[INFO_EXPORT], &[INFO_EXPORT, INFO_BLOCK_SIZE]),
        (&[INFO_NAME, 77, u16::MAX], &[INFO_EXPORT, INFO_BLOCK_SIZE, INFO_NAME]),
        // More than once.
        (&[INFO_NAME, INFO_NAME, INFO_BLOCK_SIZE, INFO_BLOCK_SIZE], &[INFO_EXPORT, INFO_BLOCK_SIZE, INFO_NAME]),
    ] {
        let replies = handshake.ask(option::INFO, &go_of(b"", wanted));
        assert_eq!(told_by(&replies), usual(512));
        let infos = replies[..replies.len() - 1].iter();
        let told: Vec<_> = infos.clone().map(|reply| u16::from_be_bytes([reply.data[0], reply.data[1]])).collect();
        assert_eq!(told, kinds, "{wanted:?}");
        let name = infos.clone().find(|reply| reply.data[..2] == INFO_NAME.to_be_bytes());
        assert!(name.is_none_or(|reply| reply.kind == INFO && reply.data[2..] == *NAME.as_bytes()));
    }
}

#[test]
fn disks_are_told_as_they_are() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(SIZE).unwrap();
    image.as_file().write_all_at(&pattern(4096, 3), 8192).unwrap();
    let options = FileOptions { read_only: true, ..FileOptions::new(image.path()) };
    let read_only: Arc<dyn Storage> = Arc::new(FileStorage::open(&options).unwrap());
    let server = Server::new(read_only);
    let mut client = server.client(Replies::Simple);
    assert_eq!((client.told.flags, client.told.size_bytes), (ALWAYS | READ_ONLY, SIZE));
    assert_eq!(client.read(8192, 4096), pattern(4096, 3));

    for block_size_bytes in [512, 1024, 4096] {
        // What is no whole block at the end nobody can reach.
        for tail in [0, 512, block_size_bytes - 512] {
            let storage = Arc::new(memory(SIZE + u64::from(tail)));
            let server = Server::like(&Like { block_size_bytes, ..Like::default() }, storage);
            let mut client = server.client(Replies::Simple);
            let whole = SIZE + u64::from(tail / block_size_bytes * block_size_bytes);
            assert_eq!(client.told, Told { size_bytes: whole, ..usual(block_size_bytes) });
            client.write(whole - u64::from(block_size_bytes), &vec![7; block_size_bytes as usize]);
        }
    }
    let server = Server::like(&Like { write_back: false, ..Like::default() }, Arc::new(memory(SIZE)));
    assert_eq!(server.client(Replies::Simple).told, usual(512));
}

#[test]
fn export_name_has_a_reply_of_exactly_as_many_bytes() {
    let server = Server::of_memory(SIZE);
    for (flags, bytes) in [(FIXED_NEWSTYLE, 134), (FIXED_NEWSTYLE | NO_ZEROES, 10), (0, 134), (NO_ZEROES, 10)] {
        for name in [NAME, ""] {
            let mut handshake = Handshake::begun(server.connect(), flags);
            handshake.send(&option_of(option::EXPORT_NAME, name.as_bytes()));
            let reply = handshake.receive(bytes).unwrap();
            assert_eq!(size_and_flags(&reply), (SIZE, usual(512).flags));
            assert!(reply[10..].iter().all(|byte| *byte == 0));
            // The next byte is that of a reply to a request.
            let mut client = handshake.gone(Told::default());
            assert_eq!(client.read(0, 512), [0; 512], "{flags}");
        }
    }
    // Behind other options, which hold.
    let mut handshake = Handshake::begun(server.connect(), FIXED_NEWSTYLE | NO_ZEROES).structured();
    assert_eq!(handshake.kind(77, b""), ERR_UNSUP);
    handshake.send(&option_of(option::EXPORT_NAME, b""));
    handshake.receive(10).unwrap();
    assert_eq!(handshake.gone(Told::default()).read(0, 512), [0; 512]);
}

#[test]
fn who_names_another_export_is_told_so_or_hung_up_on() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake().structured();
    let long = [b'x'; 4096];
    for name in [&b"another"[..], b"disk ", b"dis", b"DISK", b"disk\0", b"\xff\xfe", &long] {
        for number in [option::INFO, option::GO] {
            assert_eq!(handshake.kind(number, &go_of(name, &[INFO_BLOCK_SIZE])), ERR_UNKNOWN, "{name:?}");
        }
        assert_eq!(handshake.kind(option::LIST_META_CONTEXT, &contexts_of(name, &[])), ERR_UNKNOWN);
        let mut other = server.handshake();
        other.send(&option_of(option::EXPORT_NAME, name));
        assert_eq!(other.receive(1), None, "{name:?}");
    }
    // None of that keeps it from the right one.
    assert_eq!(handshake.go(NAME).read(0, 512), [0; 512]);
    eventually("only those who misspoke are counted", || server.export.status().sessions.errors == 7);
}

#[test]
fn a_list_has_one_export() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake();
    let replies = handshake.ask(option::LIST, b"");
    let listed = OptionReply { option: option::LIST, kind: super::client::SERVER, data: fields().text(b"disk").0 };
    let end = OptionReply { option: option::LIST, kind: ACK, data: Vec::new() };
    assert_eq!(replies, [listed, end]);
    assert_eq!(handshake.kind(option::LIST, b"data"), ERR_INVALID);
    handshake.go(NAME);
}

#[test]
fn who_aborts_is_answered_and_gone() {
    let server = Server::of_memory(SIZE);
    for data in [&b""[..], b"whatever"] {
        let mut handshake = server.handshake();
        assert_eq!(handshake.kind(option::ABORT, data), ACK);
        assert_eq!(handshake.next(), None);
    }
    eventually("both are gone", || server.export.status().sessions.disconnects == 2);
    assert_eq!(server.export.status().sessions.errors, 0);
}

#[test]
fn options_that_the_server_does_not_have_are_refused_and_no_more() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake();
    assert_eq!(handshake.kind(option::STARTTLS, b""), ERR_UNSUP);
    // PEEK_EXPORT was withdrawn, EXTENDED_HEADERS is newer.
    for number in [0, 4, 11, 12, 1 << 16, u32::MAX] {
        for data in [&b""[..], b"data", &[0; 16 << 10]] {
            assert_eq!(handshake.kind(number, data), ERR_UNSUP, "{number}");
        }
    }
    assert_eq!(handshake.go(NAME).read(0, 512), [0; 512]);
}

#[test]
fn options_of_a_wrong_form_are_refused_and_no_more() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake();
    let whole = go_of(NAME.as_bytes(), &[INFO_NAME]);
    for number in [option::INFO, option::GO] {
        for cut in 0..whole.len() {
            assert_eq!(handshake.kind(number, &whole[..cut]), ERR_INVALID, "{cut}");
        }
        assert_eq!(handshake.kind(number, &[&whole[..], b"x"].concat()), ERR_INVALID);
        assert_eq!(handshake.kind(number, &[&whole[..], b"xx"].concat()), ERR_INVALID);
        assert_eq!(handshake.kind(number, &fields().u32(u32::MAX).u16(0).0), ERR_INVALID);
        assert_eq!(handshake.kind(number, &go_of(&[b'x'; 4097], &[])), ERR_INVALID);
    }
    let whole = contexts_of(NAME.as_bytes(), &["base:allocation"]);
    for cut in 0..whole.len() {
        assert_eq!(handshake.kind(option::LIST_META_CONTEXT, &whole[..cut]), ERR_INVALID, "{cut}");
    }
    assert_eq!(handshake.kind(option::LIST_META_CONTEXT, &fields().text(b"").u32(u32::MAX).0), ERR_INVALID);
    for number in [option::STRUCTURED_REPLY, option::STARTTLS] {
        assert_eq!(handshake.kind(number, b"data"), ERR_INVALID);
    }
    // What was refused is not agreed on.
    assert_eq!(handshake.go(NAME).read(0, 512), [0; 512]);
    let mut long = server.handshake();
    long.send(&option_of(option::EXPORT_NAME, &[b'x'; 4097]));
    assert_eq!(long.receive(1), None);
}

#[test]
fn structured_replies_are_for_who_asks_for_them() {
    let server = Server::of_memory(SIZE);
    server.client(Replies::Simple).write(0, &pattern(4096, 5));
    // The client holds against each that the other kind comes.
    for replies in super::client::REPLIES {
        let mut client = server.client(replies);
        assert_eq!(client.read(0, 4096), pattern(4096, 5));
        assert_eq!(client.errno(&Request::read(SIZE, 512)), super::client::EINVAL);
    }
    // Twice is as good as once.
    let mut client = server.handshake().structured().structured().go("");
    assert_eq!(client.read(0, 4096), pattern(4096, 5));
}

#[test]
fn there_is_one_metadata_context() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake().structured();
    let cases: [(&[&str], bool, bool); 4] = [
        (&[], true, false),
        (&["base:"], true, false),
        (&["qemu:dirty-bitmap:x", "", "base:allocation"], true, true),
        (&["qemu:", "base:other"], false, false),
    ];
    let names = |there: bool| if there { vec!["base:allocation"] } else { Vec::new() };
    for (queries, listed, chosen) in cases {
        for name in ["", NAME] {
            assert_eq!(handshake.contexts(option::LIST_META_CONTEXT, name, queries), names(listed), "{queries:?}");
            assert_eq!(handshake.contexts(option::SET_META_CONTEXT, name, queries), names(chosen), "{queries:?}");
        }
    }
    for number in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        assert_eq!(handshake.kind(number, &contexts_of(b"another", &["base:allocation"])), ERR_UNKNOWN);
    }
}

/// A choice replaces the one before, "including when this command fails" (under `NBD_OPT_SET_META_CONTEXT`), and a list is none.
#[test]
fn what_was_chosen_last_counts() {
    let server = Server::of_memory(SIZE);
    let status = Request::new(super::client::BLOCK_STATUS, 0, 4096);
    let only_listed = |handshake: &mut super::client::Handshake| {
        handshake.contexts(option::LIST_META_CONTEXT, NAME, &["base:allocation"]);
    };
    let chosen_otherwise = |handshake: &mut super::client::Handshake| {
        handshake.contexts(option::SET_META_CONTEXT, NAME, &["base:allocation"]);
        handshake.contexts(option::SET_META_CONTEXT, NAME, &[]);
    };
    let wrong = |handshake: &mut super::client::Handshake| {
        handshake.contexts(option::SET_META_CONTEXT, NAME, &["base:allocation"]);
        let another = contexts_of(b"another", &["base:allocation"]);
        assert_eq!(handshake.kind(option::SET_META_CONTEXT, &another), ERR_UNKNOWN);
    };
    let all: [&dyn Fn(&mut super::client::Handshake); 3] = [&only_listed, &chosen_otherwise, &wrong];
    for choose in all {
        let mut handshake = server.handshake().structured();
        choose(&mut handshake);
        let mut client = handshake.go(NAME);
        assert_eq!(client.errno(&status), super::client::EINVAL);
        assert_eq!(client.read(0, 512), [0; 512]);
    }
    let mut client = server.handshake().structured().allocation().go(NAME);
    assert_eq!(client.call(&status).extents, [(4096, 0)]);
}

/// "If a client attempts to do so, a server SHOULD send `NBD_REP_ERR_INVALID`" (under `NBD_OPT_SET_META_CONTEXT`).
#[test]
fn contexts_are_chosen_behind_structured_replies_alone() {
    let server = Server::of_memory(SIZE);
    let mut handshake = server.handshake();
    let contexts = contexts_of(NAME.as_bytes(), &["base:allocation"]);
    assert_eq!(handshake.kind(option::SET_META_CONTEXT, &contexts), ERR_INVALID);
    handshake.structured().allocation();
}

#[test]
fn a_handshake_may_come_in_any_pieces() {
    let server = Server::of_memory(SIZE);
    server.client(Replies::Simple).write(0, &pattern(4096, 9));
    let all = [
        &(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes()[..],
        &option_of(option::LIST, b""),
        &option_of(option::STRUCTURED_REPLY, b""),
        &option_of(99, &pattern(5000, 1)),
        &option_of(option::GO, &go_of(b"disk", &[])),
    ];
    let all = all.concat();
    for piece in [1, 7, 100, all.len()] {
        let mut handshake = Handshake::greeted(server.connect());
        // A request behind it comes along with the last piece.
        let mut sender = handshake.stream.try_clone().unwrap();
        let sent = all.clone();
        let thread = std::thread::spawn(move || {
            use std::io::Write as _;
            sent.chunks(piece).for_each(|some| sender.write_all(some).unwrap());
        });
        assert_eq!(handshake.answers(option::LIST).len(), 2);
        assert_eq!(handshake.answers(option::STRUCTURED_REPLY)[0].kind, ACK);
        assert_eq!(handshake.answers(99)[0].kind, ERR_UNSUP);
        let told = told_by(&handshake.answers(option::GO));
        assert_eq!(told, Told { flags: usual(512).flags | SEND_DF, ..usual(512) });
        thread.join().unwrap();
    }
    // With the first requests behind it, and nothing waited for.
    let requests =
        [Request::write(8192, &pattern(70_144, 2)), Request::flush(), Request::new(super::client::DISC, 0, 0)];
    let behind = (1..).zip(&requests).flat_map(|(cookie, request)| request.bytes(cookie));
    let mut handshake = Handshake::greeted(server.connect());
    handshake.send(&[&all[..], &behind.collect::<Vec<_>>()].concat());
    for option in [option::LIST, option::STRUCTURED_REPLY, 99, option::GO] {
        handshake.answers(option);
    }
    for _ in 0..2 {
        assert_eq!(handshake.receive(16).unwrap()[..8], *b"\x67\x44\x66\x98\x00\x00\x00\x00");
    }
    assert_eq!(handshake.receive(1), None);
    assert_eq!(server.contents(8192 + 70_144)[8192..], pattern(70_144, 2));
}

#[test]
fn who_begins_with_nonsense_is_hung_up_on() {
    let server = Server::of_memory(SIZE);
    // Flags that nobody knows.
    for flags in [4_u32, 1 << 31, u32::MAX] {
        assert_eq!(Handshake::begun(server.connect(), flags).next(), None, "{flags:#x}");
    }
    // No option, a request in place of one, and the longest data that is looked at, and one byte.
    let mut wrong = option_of(option::LIST, b"");
    wrong[7] ^= 1;
    let long = option_of(77, &[0; (16 << 10) + 1]);
    let huge = [&option_of(77, b"")[..12], &u32::MAX.to_be_bytes()].concat();
    for bytes in [wrong, Request::read(0, 512).bytes(1), long[..16].to_vec(), long, huge] {
        let mut handshake = server.handshake();
        // It may hang up before it has read everything.
        let _ = std::io::Write::write_all(&mut handshake.stream, &bytes);
        assert_eq!(handshake.next(), None);
    }
    eventually("all are counted", || server.export.status().sessions.errors == 8);
    server.serves_others();
}
