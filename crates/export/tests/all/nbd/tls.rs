//! TLS: what is said before it, how it begins, and who is let in.

use super::client::{
    ACK, ERR_INVALID, ERR_TLS_REQD, ERR_UNSUP, FIXED_NEWSTYLE, Handshake, NO_ZEROES, REPLIES, Replies, Request,
    contexts_of, go_of, option, option_of,
};
use super::server::{Like, NAME, Scripted, Server, eventually, memory, pattern};
use super::tunnel::tunnel;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::sync::Arc;
use storage::Operation;
use testkit::certificates::{ALWAYS, Authority, End, SERVER_NAME, client};

const SIZE: u64 = 4 << 20;

fn server() -> Server {
    Server::over_tls(&Like::default(), Arc::new(memory(SIZE)))
}

/// Whether the server has ended the connection.
fn is_over(handshake: &mut Handshake) -> bool {
    handshake.next().is_none()
}

#[test]
fn nothing_is_told_before_tls_but_that_it_comes_first() {
    let server = server();
    let mut plain = server.plain_handshake();
    for (number, data) in [
        (option::LIST, vec![]),
        (option::INFO, go_of(NAME.as_bytes(), &[])),
        (option::GO, go_of(NAME.as_bytes(), &[])),
        (option::GO, b"nonsense".to_vec()),
        (option::STRUCTURED_REPLY, vec![]),
        (option::LIST_META_CONTEXT, contexts_of(b"", &[])),
        (option::SET_META_CONTEXT, contexts_of(b"", &["base:allocation"])),
        (77, vec![1, 2, 3]),
    ] {
        assert_eq!(plain.kind(number, &data), ERR_TLS_REQD, "{number}");
    }
    // It is an option like others, and may be asked for again.
    assert_eq!(plain.kind(option::STARTTLS, b"data"), ERR_INVALID);
    let mut safe = plain.over_tls(server.tls.as_ref().unwrap());
    assert_eq!(safe.ask(option::LIST, &[])[0].data[4..], *NAME.as_bytes());
    let mut client = safe.go(NAME);
    client.write(0, &pattern(4096, 1));
    assert_eq!(client.read(0, 4096), pattern(4096, 1));

    let mut leaves = server.plain_handshake();
    assert_eq!(leaves.kind(option::ABORT, &[]), ACK);
    assert!(is_over(&mut leaves));
    // There is no reply to this one.
    let mut old = server.plain_handshake();
    old.send(&option_of(option::EXPORT_NAME, NAME.as_bytes()));
    assert!(is_over(&mut old));
    let why = || server.export.status().last_error.unwrap_or_default();
    eventually("the reason is told", || why().contains("does not begin TLS, which `tls` asks for"));
}

#[test]
fn where_it_is_not_asked_for_there_is_none() {
    let server = Server::of_memory(SIZE);
    let mut plain = server.plain_handshake();
    assert_eq!(plain.kind(option::STARTTLS, &[]), ERR_UNSUP);
    assert_eq!(plain.go(NAME).read(0, 512), [0; 512]);
}

#[test]
fn it_begins_once() {
    let server = server();
    let mut safe = server.handshake();
    assert_eq!(safe.kind(option::STARTTLS, &[]), ERR_INVALID);
    assert_eq!(safe.kind(option::STARTTLS, b"data"), ERR_INVALID);
    assert_eq!(safe.go(NAME).read(0, 512), [0; 512]);
}

#[test]
fn what_lies_behind_the_word_for_it_ends_the_connection() {
    let server = server();
    let begin = option_of(option::STARTTLS, &[]);
    let structured = option_of(option::STRUCTURED_REPLY, &[]);
    for behind in [&structured[..], &structured[..1], &option_of(option::ABORT, &[]), b"\x16\x03\x01"] {
        let mut injected = server.plain_handshake();
        injected.send(&[&begin, behind].concat());
        // Nothing more than the answer, which may not be there: not what the rest asks for.
        let mut rest = Vec::new();
        injected.stream.read_to_end(&mut rest).unwrap();
        assert!(rest.len() <= 20, "{rest:?}");
        let why = || server.export.status().last_error.unwrap_or_default();
        eventually("it is told", || why().contains("more came behind NBD_OPT_STARTTLS"));
    }
    server.serves_others();
}

#[test]
fn plain_words_behind_the_answer_are_no_part_of_it() {
    let server = server();
    for words in [option_of(option::GO, &go_of(b"", &[])), vec![0; 100], vec![22, 3, 1, 0, 1, 1], vec![0xff; 70_000]] {
        let mut injected = server.plain_handshake();
        assert_eq!(injected.kind(option::STARTTLS, &[]), ACK);
        // It may hang up before it has heard all of it.
        let _ = injected.stream.write_all(&words);
        let _ = injected.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = injected.stream.read_to_end(&mut rest);
        // An alert (21) at most.
        assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
        eventually("it is gone", || server.connections() == 0);
    }
    server.serves_others();
}

#[test]
fn what_was_asked_for_before_does_not_hold_behind_it_and_flags_do() {
    let server = server();
    let mut client = server.handshake().go(NAME);
    client.write(0, &pattern(512, 2));
    assert_eq!(client.read(0, 512), pattern(512, 2));
    for (flags, bytes) in [(FIXED_NEWSTYLE, 8 + 2 + 124), (FIXED_NEWSTYLE | NO_ZEROES, 8 + 2)] {
        let mut plain = Handshake::begun(server.connect(), flags);
        assert_eq!(plain.kind(option::STRUCTURED_REPLY, &[]), ERR_TLS_REQD);
        let mut safe = plain.over_tls(server.tls.as_ref().unwrap());
        safe.send(&option_of(option::EXPORT_NAME, b""));
        let reply = safe.receive(bytes).unwrap();
        assert_eq!(u64::from_be_bytes(reply[..8].try_into().unwrap()), SIZE);
        safe.send(&Request::read(0, 512).bytes(7));
        // A simple reply.
        let reply = safe.receive(16 + 512).unwrap();
        assert!(reply[16..] == pattern(512, 2));
    }
}

#[test]
fn both_versions_serve_all_kinds_of_requests() {
    let server = server();
    for (version, replies) in [&TLS12, &TLS13].into_iter().flat_map(|version| REPLIES.map(|replies| (version, replies)))
    {
        let config = client(server.dir.path(), true, &[version]);
        let mut safe = server.plain_handshake().over_tls(&config);
        if replies == Replies::Structured {
            safe = safe.structured();
        }
        let mut client = safe.go(NAME);
        // Of less than a record, of some, and behind each other in one.
        let writes: Vec<_> = (0..64).map(|number| Request::write(number * 512, &pattern(512, number))).collect();
        assert!(client.exchange(&writes).iter().all(|reply| reply.errno == 0));
        for bytes in [512, 16 << 10, 70_144, 2 << 20] {
            client.write(0, &pattern(bytes, bytes as u64));
            assert!(client.read(0, bytes) == pattern(bytes, bytes as u64));
        }
        assert_eq!(client.errno(&Request::flush()), 0);
        client.disconnect();
        assert_eq!(client.next(), None);
    }
    eventually("all have gone well", || {
        let sessions = server.export.status().sessions;
        (sessions.disconnects, sessions.errors) == (4, 0)
    });
}

#[test]
fn clients_without_a_certificate_or_with_a_foreign_one_are_not_let_in() {
    let server = server();
    let foreign = tempfile::tempdir().unwrap();
    Authority::new("somebody").fill(foreign.path());
    fs::copy(server.dir.path().join("ca-cert.pem"), foreign.path().join("ca-cert.pem")).unwrap();
    for (directory, shows, words) in [
        (server.dir.path(), false, "peer sent no certificates"),
        (foreign.path(), true, "invalid peer certificate: UnknownIssuer"),
    ] {
        for version in [&TLS12, &TLS13] {
            let mut plain = server.plain_handshake();
            assert_eq!(plain.kind(option::STARTTLS, &[]), ACK);
            let mut stream = tunnel(plain.stream, client(directory, shows, &[version]));
            let _ = stream.write_all(&option_of(option::LIST, &[]));
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            assert_eq!(heard, b"", "something was told to a stranger");
            let why = || server.export.status().last_error.unwrap_or_default();
            eventually("it is told", || why() == format!("connection failed: TLS: {words}") || why().ends_with(words));
        }
    }
    eventually("all are counted", || server.export.status().sessions.errors == 4);
    server.serves_others();
}

#[test]
fn renewed_certificates_hold_for_the_next_client() {
    let server = server();
    let mut before = server.client(Replies::Simple);
    let next = Authority::new("next");
    next.fill(server.dir.path());
    let config = client(server.dir.path(), true, &[]);
    let mut after = server.plain_handshake().over_tls(&config).go(NAME);
    after.write(0, &pattern(512, 9));
    // Who is connected stays so.
    assert_eq!(before.read(0, 512), pattern(512, 9));
    next.revoke(server.dir.path(), &[2]);
    let plain = server.plain_handshake();
    let mut stream = plain.over_tls(&config).stream;
    let _ = stream.write_all(&option_of(option::LIST, &[]));
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert_eq!(heard, b"");
    next.issue(server.dir.path(), End::Client, 3, ALWAYS);
    server.plain_handshake().over_tls(&client(server.dir.path(), true, &[])).go(NAME);
}

#[test]
fn who_begins_and_says_nothing_keeps_nobody_and_is_sent_away() {
    let server = server();
    let silent: Vec<_> = (0..20)
        .map(|_| {
            let mut plain = server.plain_handshake();
            assert_eq!(plain.kind(option::STARTTLS, &[]), ACK);
            plain
        })
        .collect();
    server.serves_others();
    for mut silent in silent {
        let mut rest = Vec::new();
        silent.stream.read_to_end(&mut rest).unwrap();
    }
    let why = || server.export.status().last_error.unwrap_or_default();
    assert!(why().contains("did not say what it wants within"), "{}", why());
    server.serves_others();
}

/// What becomes of the requests is for nobody then, and nobody waits until it is sent.
#[test]
fn who_breaks_the_session_with_a_request_in_flight_is_gone_when_that_has_ended() {
    let storage = Scripted::new(SIZE);
    let server = Server::over_tls(&Like::default(), storage.clone());
    let plain = server.plain_handshake();
    let mut raw = plain.stream.try_clone().unwrap();
    let mut client = plain.over_tls(server.tls.as_ref().unwrap()).go(NAME);
    storage.hold(|operation| matches!(operation, Operation::Read { .. }));
    client.post(&Request::read(0, 4096));
    eventually("it is in flight", || server.in_flight() == 1);
    // A record of data (23) that nobody has sealed.
    raw.write_all(&[&[23, 3, 3, 0, 32][..], &[7; 32]].concat()).unwrap();
    client.stream.read_to_end(&mut Vec::new()).unwrap();
    storage.release();
    eventually("it is gone", || server.connections() == 0);
    server.serves_others();
}

/// Each byte has a record of its own, and another key: more than is opened in a turn.
#[test]
fn what_says_little_in_many_records_is_understood_to_its_end() {
    const COUNT: usize = 30;
    let server = server();
    let mut plain = server.plain_handshake();
    assert_eq!(plain.kind(option::STARTTLS, &[]), ACK);
    let name = SERVER_NAME.try_into().unwrap();
    let mut connection = ClientConnection::new(server.tls.clone().unwrap(), name).unwrap();
    connection.complete_io(&mut plain.stream).unwrap();
    connection.set_buffer_limit(None);
    let requests = (0..COUNT as u64).flat_map(|cookie| Request::read(0, 512).bytes(cookie));
    for byte in option_of(option::EXPORT_NAME, b"").into_iter().chain(requests) {
        connection.refresh_traffic_keys().unwrap();
        connection.writer().write_all(&[byte]).unwrap();
    }
    let mut said = Vec::new();
    connection.write_tls(&mut said).unwrap();
    plain.stream.write_all(&said).unwrap();
    // The size and flags of the export, and a reply for each.
    let mut heard = vec![0; 10 + COUNT * (16 + 512)];
    StreamOwned::new(connection, plain.stream).read_exact(&mut heard).unwrap();
    assert_eq!(u64::from_be_bytes(heard[..8].try_into().unwrap()), SIZE);
}

#[test]
fn an_export_ends_while_handshakes_go_on() {
    let server = Server::over_tls(&Like { workers: 2, ..Like::default() }, Arc::new(memory(SIZE)));
    let config = server.tls.clone().unwrap();
    let streams: Vec<_> = (0..40)
        .map(|_| {
            let mut plain = server.plain_handshake();
            plain.send(&option_of(option::STARTTLS, &[]));
            assert_eq!(plain.answers(option::STARTTLS)[0].kind, ACK);
            tunnel(plain.stream, config.clone())
        })
        .collect();
    server.export.end();
    assert_eq!(server.connections(), 0);
    assert!(server.engine.workers().iter().all(|worker| worker.rings.is_empty()));
    drop(streams);
}
