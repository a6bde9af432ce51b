//! Clients that vanish, send nonsense, or do not read.

use super::client::{
    Client, IO_HEADER, Like, MSIZE, RLERROR, Server, TATTACH, TGETATTR, TLCREATE, TLOCK, TREAD, TVERSION, TWALK,
    TWRITE, WRITE_LOCK, eventually, fields, lock_of, message, pattern, read_of, write_of,
};
use engine::Execution;
use export::{Limits, Rate, RingState};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

#[test]
fn a_client_may_vanish_anywhere_in_a_message() {
    for execution in super::EXECUTIONS {
        let server = Server::new(&Like { execution, ..Like::default() });
        let mut witness = server.client();
        witness.create(1, "witness");
        let content = pattern(200_000, 0);
        let write = message(TWRITE, 1, write_of(1, 0, &content));
        for cut in [0, 1, 3, 4, 6, 7, 20, 23, 24, 5000, 70_000, write.len() - 1, write.len()] {
            let mut client = server.connect().attached(1 << 20);
            client.create(1, &format!("cut-{cut}"));
            client.send(&write[..cut]);
            drop(client);
            assert_eq!(witness.write(1, cut as u64, b"still here"), 10);
            eventually("only the witness is left", || server.connections() == 1);
            let written = std::fs::metadata(server.file(&format!("cut-{cut}"))).unwrap().len();
            let expected = if cut == write.len() { content.len() as u64 } else { 0 };
            assert_eq!(written, expected, "{execution} {cut}");
        }
    }
}

#[test]
fn a_client_may_vanish_with_requests_in_flight() {
    for execution in [Execution::Pool(2), Execution::Uring, Execution::Auto] {
        let server = Server::new(&Like { execution, delay: Duration::from_millis(1), ..Like::default() });
        let mut witness = server.client();
        witness.create(1, "file");
        std::fs::write(server.file("file"), pattern(1 << 20, 0)).unwrap();
        assert_eq!(witness.lock(1, WRITE_LOCK, 1), 0);
        for _ in 0..20 {
            let mut client = server.connect().attached(1 << 20);
            client.open(1, "file", libc::O_RDWR);
            let mut bytes = message(TLOCK, 200, lock_of(1, WRITE_LOCK, true, 2));
            bytes.extend((0..100).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 1 << 20))));
            client.send(&bytes);
            if execution != Execution::Auto {
                client.answer();
            }
        }
        eventually("only the witness is left", || server.connections() == 1);
        assert_eq!(witness.read(1, 100, 10), pattern(110, 0)[100..]);
        assert_eq!(server.export.failure(), None);
    }
}

#[test]
fn silent_connections_make_room_for_those_who_speak() {
    let greeting = Some(Duration::from_millis(300));
    let server = Server::new(&Like { connections: 3, greeting, ..Like::default() });
    // It has nothing more to say than its version, and is left alone.
    let mut client = server.connect();
    client.version(MSIZE);
    let _silent = server.unix();
    // A byte at a time is as good as nothing, and so is a version that is not agreed on.
    let mut slow = server.connect();
    slow.send(&message(TVERSION, u16::MAX, fields().u32(MSIZE).text("9P1999"))[..12]);
    let start = Instant::now();
    let mut late = loop {
        assert!(start.elapsed() < super::HANG, "nobody made room");
        let mut late = server.connect();
        let hello = message(TVERSION, u16::MAX, fields().u32(MSIZE).text("9P2000.L"));
        // Who is turned away cannot even write.
        if late.wire.write_all(&hello).is_ok() && late.next().is_some() {
            break late;
        }
    };
    late.attach();
    client.attach();
    let error = server.export.status().last_error.expect("somebody was turned out");
    assert!(error.contains("did not say what it wants within 0.3 s"), "{error}");
    assert_eq!(server.export.failure(), None);
}

#[test]
fn a_client_leaves_open_files_and_locks_for_others() {
    let server = Server::new(&Like { connections: 4, open_files: 400, ..Like::default() });
    std::fs::write(server.file("file"), "content").unwrap();
    let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    let opened: Vec<_> = clients.iter_mut().map(|client| client.open_until_refused(1, "file")).collect();
    // 25 are each client's own, and of the other 300 whoever comes first has most.
    assert_eq!(opened[0], (25 + 266, libc::ENFILE));
    assert!(opened.iter().all(|&(count, why)| count >= 25 && why == libc::ENFILE), "{opened:?}");
    // Creating is opening.
    clients[3].ask(TWALK, fields().u32(0).u32(9999).u16(0));
    let create = fields().u32(9999).text("new").u32(libc::O_RDWR as u32).u32(0o644).u32(0);
    assert_eq!(clients[3].call(TLCREATE, create).errno(), libc::ENFILE);
    assert!(!server.file("new").exists(), "what cannot be opened is not made");
    // What one gives back another has.
    (1..=100).for_each(|fid| clients[0].clunk(fid));
    assert!(clients[3].open_until_refused(1000, "file").0 > 50);
}

#[test]
fn nonsense_ends_its_own_connection_at_most() {
    let server = Server::new(&Like::default());
    let mut witness = server.client();
    witness.create(1, "witness");
    // Sizes that no message has.
    for size in [0_u32, 6, MSIZE + 1, u32::MAX] {
        let mut client = server.client();
        client.send(&[&size.to_le_bytes()[..], &[100; 3]].concat());
        assert_eq!(client.next(), None, "{size}");
    }
    // Bytes of all kinds.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..200 {
        let mut client = if round % 2 == 0 { server.client() } else { server.connect() };
        let mut bytes = Vec::new();
        for _ in 0..round {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Half of them are framed as messages are.
            if round % 3 == 0 {
                bytes.extend(message(
                    random as u8,
                    (random >> 8) as u16,
                    fields().u64(random).u64(random.rotate_left(9)),
                ));
            } else {
                bytes.extend(random.to_le_bytes());
            }
        }
        // It may hang up before it has read everything.
        let _ = client.wire.write_all(&bytes);
    }
    eventually("only the witness is left", || server.connections() == 1);
    assert_eq!(witness.write(1, 0, b"still here"), 10);
    assert_eq!(server.export.failure(), None);
}

#[test]
fn a_message_that_is_framed_but_wrong_gets_an_error_and_no_more() {
    let server = Server::new(&Like::default());
    let mut client = server.connect();
    // Before a version, errors are those of 9P2000.
    assert_eq!(client.call(TATTACH, fields()).kind, 107);
    let unknown = client.ask(TVERSION, fields().u32(MSIZE).text("9P3000"));
    assert_eq!(unknown[4..], *b"\x07\x00unknown");
    let mut client = client.attached(MSIZE);
    for (kind, body, errno) in [
        (255, fields(), libc::EOPNOTSUPP),
        (TREAD, fields().u32(1), libc::EINVAL),
        (TREAD, read_of(1, 0, 1).u8(0), libc::EINVAL),
        (TGETATTR, fields().u32(12_345).u64(1), libc::EBADF),
        // A name that would be longer than the message.
        (TVERSION, fields().u32(4096).u16(60_000), libc::EINVAL),
        // Longer than any request but a write.
        (
            TGETATTR,
            {
                let mut long = fields().u32(1);
                long.0.resize(20_000, 0);
                long
            },
            libc::E2BIG,
        ),
        (TWRITE, fields().u32(1).u64(0).u32(1000), libc::EINVAL),
        (TWRITE, fields().u32(1), libc::EINVAL),
    ] {
        let answer = client.call(kind, body);
        assert_eq!((answer.kind, answer.errno()), (RLERROR, errno), "{kind}");
    }
    client.create(1, "goes on");
}

#[test]
fn a_client_that_does_not_read_is_served_no_further_and_harms_nobody() {
    for execution in super::EXECUTIONS {
        let server = Server::new(&Like { execution, ..Like::default() });
        let mut witness = server.client();
        witness.create(1, "file");
        let content = pattern(1 << 20, 3);
        std::fs::write(server.file("file"), &content).unwrap();
        let stream = server.unix();
        let mut client = Client::new(stream.try_clone().unwrap()).attached(1 << 20);
        client.open(1, "file", libc::O_RDONLY);

        // It asks until nobody listens any more.
        stream.set_nonblocking(true).unwrap();
        let (mut asked, mut full) = (0_u64, 0);
        let count = 500_000;
        while full < 10 {
            assert!(asked < 1_000_000, "it takes requests without end");
            let bytes = message(TREAD, (asked % 60_000) as u16, read_of(1, asked % 1000, count));
            match (&stream).write(&bytes) {
                Ok(written) if written == bytes.len() => asked += 1,
                // Half a message: nothing can follow it.
                Ok(_) => break,
                // The server may take more.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    full += 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("{error}"),
            }
        }
        // Meanwhile others of the same worker are served, and it can move.
        assert_eq!(witness.read(1, 0, 1000), content[..1000]);
        let ring = server.export.rings().into_iter().find(|ring| ring.index == 1).unwrap();
        assert!(ring.figures.bytes_read < 16 << 20, "{execution}: read ahead without end: {}", ring.figures.bytes_read);

        // When it reads, the replies are there.
        stream.set_nonblocking(false).unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..asked.min(40) {
            let answer = client.answer();
            let offset = usize::from(answer.tag) % 1000;
            assert!(answer.data() == &content[offset..offset + count as usize], "{execution}");
            assert!(seen.insert(answer.tag), "answered twice");
        }
        // It goes without having read the rest.
        stream.shutdown(Shutdown::Both).unwrap();
        eventually("it is gone", || server.connections() == 1);
        assert_eq!(witness.read(1, 0, 10), content[..10]);
    }
}

#[test]
fn an_export_ends_though_a_client_does_not_read() {
    for execution in super::EXECUTIONS {
        let server = Server::new(&Like { execution, ..Like::default() });
        std::fs::write(server.file("file"), pattern(1 << 20, 3)).unwrap();
        let mut client = server.connect().attached(1 << 20);
        client.open(1, "file", libc::O_RDONLY);
        client.send(&(0..50).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 1 << 20))).collect::<Vec<u8>>());
        eventually("it cannot send any more", || server.export.ring(0).is_some_and(|ring| ring.figures.bytes_read > 0));
        server.export.end();
        assert_eq!(server.connections(), 0);
        assert!(server.engine.workers().iter().all(|worker| worker.rings.is_empty()));
    }
}

#[test]
fn who_only_stops_to_send_gets_all_answers() {
    for execution in super::EXECUTIONS {
        let server = Server::new(&Like { execution, ..Like::default() });
        std::fs::write(server.file("file"), pattern(300_000, 5)).unwrap();
        let stream = server.unix();
        let mut client = Client::new(stream.try_clone().unwrap()).attached(1 << 20);
        client.open(1, "file", libc::O_RDONLY);
        client.send(&(0..10).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 300_000))).collect::<Vec<u8>>());
        stream.shutdown(Shutdown::Write).unwrap();
        for _ in 0..10 {
            assert!(client.answer().data() == pattern(300_000, 5), "{execution}");
        }
        assert_eq!(client.next(), None);
        eventually("it is over", || server.connections() == 0);
    }
}

#[test]
fn over_tcp_a_client_that_resets_is_gone() {
    let server = Server::new(&Like { tcp: true, ..Like::default() });
    std::fs::write(server.file("file"), pattern(1 << 20, 5)).unwrap();
    let mut witness = server.client();
    witness.open(1, "file", libc::O_RDONLY);
    for _ in 0..20 {
        let mut client = server.connect().attached(1 << 20);
        client.open(1, "file", libc::O_RDONLY);
        // What is unread when it goes makes it a reset.
        client.send(&(0..20).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 1 << 20))).collect::<Vec<u8>>());
        client.wire.read_exact(&mut [0; 100]).unwrap();
    }
    eventually("only the witness is left", || server.connections() == 1);
    assert_eq!(witness.read(1, 7, 10), pattern(17, 5)[7..]);
}

#[test]
fn what_a_client_only_says_costs_others_nothing() {
    let server = Server::new(&Like::default());
    let (mut client, mut other) = (server.client(), server.client());
    other.create(1, "file");
    server.export.set_limits(Limits { requests: None, bytes: Some(Rate::new(10 << 20, None)) }, None);
    for _ in 0..5 {
        // Worth seven minutes, if one believed it.
        assert_eq!(client.call(TREAD, read_of(9, 0, u32::MAX)).errno(), libc::EBADF);
    }
    assert_eq!(other.write(1, 0, b"now"), 3);
}

#[test]
fn requests_wait_for_a_limit_and_none_is_lost() {
    let server = Server::new(&Like::default());
    let mut client = server.client();
    client.create(1, "file");
    let content = pattern(MSIZE as usize - IO_HEADER, 1);
    client.write(1, 0, &content);
    // Two beyond the burst wait for two seconds, unless the machine has stood still for as long.
    let limits = Limits { requests: Some(Rate::new(1, Some(50))), bytes: None };
    // A connection is served before the export knows that it runs, and gets the limits of that moment.
    eventually("it is known", || server.export.ring(0).is_some_and(|ring| ring.state == RingState::Running));
    server.export.set_limits(limits, None);
    client.send(&(0..52).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 100))).collect::<Vec<u8>>());
    for tag in 0..52 {
        let answer = client.answer();
        assert_eq!((answer.tag, answer.data()), (tag, &content[..100]));
    }
    assert!(server.export.ring(0).unwrap().figures.throttled > 0);
    // One that goes while a limit holds it up is still found to be gone.
    client.send(&(0..200).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 100))).collect::<Vec<u8>>());
    drop(client);
    eventually("it is over", || server.connections() == 0);
}
