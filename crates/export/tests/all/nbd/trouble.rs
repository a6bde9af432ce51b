//! Clients that vanish, send nonsense, or do not read.

use super::client::{Client, REPLIES, Replies, Request, WRITE};
use super::server::{Like, NAME, Random, Scripted, Server, eventually, memory, pattern};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use storage::{Execution, FileOptions, FileStorage, Operation, SimOptions, SimStorage};
use values::{ByteSize, Span};

/// Writes of a number of blocks, each with contents of its own.
fn writes(count: u64, bytes: usize) -> Vec<Request> {
    (0..count).map(|number| Request::write(number * bytes as u64, &pattern(bytes, number))).collect()
}

/// Whether the disk has what was written.
fn holds(disk: &[u8], writes: &[Request]) -> bool {
    writes.iter().all(|write| disk[write.offset as usize..][..write.data.len()] == write.data)
}

#[test]
fn who_disconnects_behind_writes_loses_none_and_is_answered() {
    for execution in [Execution::Auto, Execution::Inline, Execution::Pool(2)] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(4 << 20).unwrap();
        let options = FileOptions { execution, ..FileOptions::new(image.path()) };
        let server = Server::new(Arc::new(FileStorage::open(&options).unwrap()));
        for replies in REPLIES {
            let mut client = server.client(replies);
            let writes = writes(300, 8192);
            let mut cookies = client.post_all(&writes);
            client.disconnect();
            let mut answered = Vec::new();
            while let Some(reply) = client.next() {
                assert_eq!(reply.errno, 0);
                answered.push(reply.cookie);
            }
            cookies.sort_unstable();
            answered.sort_unstable();
            assert_eq!(answered, cookies, "{execution}");
            assert!(holds(&std::fs::read(image.path()).unwrap(), &writes), "{execution}");
            image.as_file().set_len(0).unwrap();
            image.as_file().set_len(4 << 20).unwrap();
        }
        eventually("both are gone", || server.export.status().sessions.disconnects == 2);
        assert_eq!(server.export.status().sessions.errors, 0);
    }
}

/// "The server MUST handle all outstanding requests" (under `NBD_CMD_DISC`); nobody is there to hear of it.
#[test]
fn who_disconnects_behind_writes_and_hangs_up_loses_none() {
    for latency in [Duration::ZERO, Duration::from_micros(300)] {
        let options = SimOptions { write_latency: Span(latency), ..SimOptions::new(ByteSize(4 << 20)) };
        let server = Server::new(Arc::new(SimStorage::open(&options).unwrap()));
        for replies in REPLIES {
            let mut client = server.client(replies);
            // No more than there is room for in the sockets: it is all on its way when the client goes.
            let writes = writes(300, 512);
            client.post_all(&writes);
            client.disconnect();
            drop(client);
            eventually("all are done", || {
                let disk = server.contents(300 * 512);
                writes.iter().all(|write| holds(&disk, std::slice::from_ref(write)))
            });
            server.client(Replies::Simple).ask(&Request::new(super::client::WRITE_ZEROES, 0, 300 * 512));
            eventually("nobody is connected", || server.connections() == 0);
        }
    }
}

/// What a client has asked to read that has gone is read for nobody; what it has written is.
#[test]
fn who_hangs_up_behind_reads_has_its_writes_done_and_no_more() {
    for replies in REPLIES {
        let storage = Scripted::new(4 << 20);
        let server = Server::new(storage.clone());
        let mut client = server.client(replies);
        let writes = writes(10, 512);
        // One at a time, so that the first answer tells that the client has gone.
        storage.hold(|operation| matches!(operation, Operation::Read { .. }));
        let mut requests = vec![Request::read(0, 4096)];
        for write in &writes {
            requests.extend(vec![Request::read(0, 4096); 100]);
            requests.push(write.clone());
        }
        client.post_all(&requests);
        eventually("as many are in flight as can be", || server.in_flight() > 200);
        drop(client);
        storage.asked();
        storage.release();
        eventually("it is gone", || server.connections() == 0);
        let asked = storage.asked();
        let reads = asked.iter().filter(|operation| matches!(operation, Operation::Read { .. })).count();
        assert!(reads < 100, "{reads} were begun for nobody");
        assert!(holds(&server.contents(4 << 20), &writes));
    }
}

#[test]
fn a_disconnect_waits_for_what_is_in_flight() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    let mut client = server.client(Replies::Simple);
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    let writes = writes(50, 4096);
    client.post_all(&writes);
    client.disconnect();
    // What is behind a disconnect is nobody's.
    client.send(&Request::write(512 << 10, &[0xee; 4096]).bytes(99));
    eventually("all are in flight", || server.in_flight() == 50);
    storage.release();
    (0..50).for_each(|_| assert_eq!(client.answer().errno, 0));
    assert_eq!(client.next(), None);
    assert!(holds(&server.contents(1 << 20), &writes));
    assert_eq!(server.contents(1 << 20)[512 << 10..][..4096], [0; 4096]);
}

#[test]
fn who_only_stops_to_send_gets_all_answers() {
    let server = Server::of_memory(4 << 20);
    for replies in REPLIES {
        let mut client = server.client(replies);
        client.write(0, &pattern(300 << 10, 5));
        client.post_all(&vec![Request::read(0, 300 << 10); 10]);
        client.stream.shutdown(Shutdown::Write).unwrap();
        for _ in 0..10 {
            assert!(client.answer().data == pattern(300 << 10, 5), "{replies:?}");
        }
        assert_eq!(client.next(), None);
        eventually("it is over", || server.connections() == 0);
    }
    assert_eq!(server.export.status().sessions.errors, 0);
}

#[test]
fn a_client_may_vanish_anywhere_in_a_message() {
    let server = Server::of_memory(4 << 20);
    let mut witness = server.client(Replies::Simple);
    let write = Request::write(8192, &pattern(200 << 10, 1)).bytes(1);
    let cuts = [0, 1, 3, 4, 6, 7, 20, 27, 28, 29, 5000, 70_000, write.len() - 1, write.len()];
    for cut in cuts {
        let mut client = server.client(Replies::Structured);
        client.send(&write[..cut]);
        drop(client);
        eventually("only the witness is left", || server.connections() == 1);
        let there = witness.read(8192, 200 << 10);
        let expected = if cut == write.len() { pattern(200 << 10, 1) } else { vec![0; 200 << 10] };
        assert!(there == expected, "{cut}");
    }
    // The same of a handshake.
    let option = super::client::option_of(super::client::option::GO, &super::client::go_of(NAME.as_bytes(), &[]));
    for cut in 0..option.len() {
        let mut handshake = server.handshake();
        handshake.send(&option[..cut]);
    }
    for cut in 0..4 {
        let mut stream = server.connect();
        stream.write_all(&[0; 4][..cut]).unwrap();
    }
    eventually("only the witness is left", || server.connections() == 1);
    assert_eq!(witness.read(0, 512), [0; 512]);
    assert_eq!((server.export.failure(), server.export.status().sessions.errors), (None, 0));
}

#[test]
fn a_client_may_vanish_with_requests_in_flight() {
    for execution in [Execution::Auto, Execution::Pool(2)] {
        let latency = Span(Duration::from_millis(1));
        let options = SimOptions {
            execution,
            read_latency: latency,
            write_latency: latency,
            ..SimOptions::new(ByteSize(8 << 20))
        };
        let server = Server::new(Arc::new(SimStorage::open(&options).unwrap()));
        let mut witness = server.client(Replies::Simple);
        for round in 0..20 {
            let mut client = server.client(REPLIES[round % 2]);
            let mut requests = writes(8, 4096);
            requests.extend(vec![Request::read(0, 1 << 20); 40]);
            client.post_all(&requests);
            // With replies that it has not read, and before there are any.
            if round % 4 < 2 {
                client.answer();
            }
        }
        eventually("only the witness is left", || server.connections() == 1);
        assert_eq!(server.in_flight(), 0);
        witness.write(4 << 20, &pattern(4096, 7));
        assert_eq!(witness.read(4 << 20, 4096), pattern(4096, 7));
        assert_eq!(server.export.failure(), None);
    }
}

#[test]
fn who_vanishes_while_the_storage_does_not_answer_is_gone_when_it_does() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    let mut witness = server.client(Replies::Simple);
    let writes = writes(20, 4096);
    let mut client = server.client(Replies::Structured);
    client.post_all(&writes);
    eventually("all are in flight", || server.in_flight() == 20);
    drop(client);
    // Others of the same worker are served meanwhile.
    assert_eq!(witness.read(0, 4096), [0; 4096]);
    assert_eq!(server.in_flight(), 20);
    storage.release();
    eventually("only the witness is left", || server.connections() == 1);
    assert!(holds(&witness.read(0, 20 * 4096), &writes), "what was taken is done");
}

#[test]
fn nonsense_ends_its_own_connection_at_most() {
    let server = Server::of_memory(1 << 20);
    let mut witness = server.client(Replies::Simple);
    witness.write(0, &pattern(1 << 20, 4));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..200_usize {
        let mut bytes = Vec::new();
        for _ in 0..round {
            // Some are framed as messages are; none of them writes.
            match round % 3 {
                0 => {
                    let command = random.next() as u16;
                    let command = if [1, 4, 6].contains(&command) { 0 } else { command };
                    let request = Request::new(command, random.next() % (2 << 20), random.next() as u32);
                    bytes.extend(request.with(random.next() as u16).bytes(random.next()));
                }
                1 => bytes.extend(super::client::option_of(random.next() as u32 % 12, &random.next().to_be_bytes())),
                _ => bytes.extend(random.next().to_be_bytes()),
            }
        }
        let mut stream = match round % 5 {
            0 => server.connect(),
            1 => server.handshake().stream,
            _ => server.client(REPLIES[round % 2]).stream,
        };
        // It may hang up before it has read everything.
        let _ = stream.write_all(&bytes);
    }
    eventually("only the witness is left", || server.connections() == 1);
    assert!(witness.read(0, 1 << 20) == pattern(1 << 20, 4));
    assert_eq!(server.export.failure(), None);
}

/// Asks until nobody listens any more; how many requests went out.
fn ask_without_reading(client: &mut Client, bytes: u32) -> u64 {
    client.stream.set_nonblocking(true).unwrap();
    let (mut asked, mut full) = (0_u64, 0);
    while full < 10 {
        assert!(asked < 1_000_000, "it takes requests without end");
        let (_, request) = client.encode(&Request::read(asked % 64 * 512, bytes));
        match client.stream.write(&request) {
            Ok(written) if written == request.len() => asked += 1,
            // Half a message: nothing can follow it.
            Ok(_) => break,
            // The server may take more.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    client.stream.set_nonblocking(false).unwrap();
    asked
}

#[test]
fn a_client_that_does_not_read_is_served_no_further_and_harms_nobody() {
    let servers = || [Server::of_memory(4 << 20), Server::over_tls(&Like::default(), Arc::new(memory(4 << 20)))];
    for (replies, server) in REPLIES.into_iter().flat_map(|replies| servers().map(|server| (replies, server))) {
        let mut witness = server.client(Replies::Simple);
        let content = pattern(2 << 20, 3);
        witness.write(0, &content);
        let mut client = server.client(replies);
        const BYTES: u32 = 500 << 10;
        let asked = ask_without_reading(&mut client, BYTES);
        // Meanwhile others of the same worker are served.
        assert!(witness.read(0, 4096) == content[..4096]);
        let ring = server.export.rings().into_iter().find(|ring| ring.index == 1).unwrap();
        assert!(ring.figures.bytes_read < 32 << 20, "read ahead without end: {}", ring.figures.bytes_read);
        // When it reads, the replies are there.
        for number in 0..asked.min(40) {
            let offset = number as usize % 64 * 512;
            // Memory answers in the order of the requests or not: the client knows which is which.
            let reply = client.answer();
            assert_eq!((reply.errno, reply.data.len()), (0, BYTES as usize), "{offset}");
            let at = (0..64).map(|number| number * 512).find(|at| content[*at..].starts_with(&reply.data[..1024]));
            assert!(at.is_some_and(|at| content[at..].starts_with(&reply.data)));
        }
        // It goes without having read the rest.
        drop(client);
        eventually("it is gone", || server.connections() == 1);
        assert!(witness.read(4096, 4096) == content[4096..8192]);
    }
}

#[test]
fn an_export_ends_though_a_client_does_not_read() {
    for server in [Server::of_memory(4 << 20), Server::over_tls(&Like::default(), Arc::new(memory(4 << 20)))] {
        let mut client = server.client(Replies::Structured);
        client.post_all(&vec![Request::read(0, 1 << 20); 50]);
        eventually("it cannot send any more", || server.export.ring(0).is_some_and(|ring| ring.figures.bytes_read > 0));
        server.export.end();
        assert_eq!(server.connections(), 0);
        assert!(server.engine.workers().iter().all(|worker| worker.rings.is_empty()));
    }
}

/// Both kinds of servers, a client of each, and the socket below it.
fn servers_of(storage: &Arc<Scripted>) -> [(Server, Client, UnixStream); 2] {
    let servers = [Server::new(storage.clone()), Server::over_tls(&Like::default(), storage.clone())];
    servers.map(|server| {
        let plain = server.plain_handshake();
        let socket = plain.stream.try_clone().unwrap();
        let handshake = match &server.tls {
            Some(config) => plain.over_tls(config),
            None => plain,
        };
        let client = handshake.go(NAME);
        (server, client, socket)
    })
}

/// Begins to end an export, which hears nothing any more of who is at the other end of `socket`.
fn begin_to_end(server: &Arc<Server>, socket: &UnixStream) -> JoinHandle<()> {
    let ending = {
        let server = server.clone();
        std::thread::spawn(move || server.export.end())
    };
    eventually("it hears nothing any more", || {
        let mut socket = socket;
        socket.write(&[]).is_err()
    });
    ending
}

#[test]
fn an_export_ends_though_much_becomes_ready_for_who_does_not_read() {
    let storage = Scripted::new(4 << 20);
    // Who reads stops at another place each time: wherever that is, the kernel must not be left waiting for more room.
    for step in 0..16 {
        for (server, mut client, socket) in servers_of(&storage) {
            storage.hold(|operation| matches!(operation, Operation::Read { .. }));
            client.post_all(&vec![Request::read(0, 2 << 20); 8]);
            eventually("all are in flight", || server.in_flight() == 8);
            let ending = begin_to_end(&Arc::new(server), &socket);
            storage.release();
            let mut some = vec![0; step * (64 << 10)];
            let _ = client.stream.read_exact(&mut some);
            eventually("it has ended", || ending.is_finished());
        }
    }
}

#[test]
fn no_reply_follows_one_that_was_cut_at_the_end_of_an_export() {
    let storage = Scripted::new(8 << 20);
    for (server, mut client, socket) in servers_of(&storage) {
        client.write(4 << 20, &vec![0xbb; 4 << 20]);
        storage.hold(|operation| matches!(operation, Operation::Read { .. }));
        client.post_all(&[Request::read(0, 4 << 20), Request::read(4 << 20, 4 << 20)]);
        eventually("both are in flight", || server.in_flight() == 2);
        let server = Arc::new(server);
        let ending = begin_to_end(&server, &socket);
        storage.hold(|operation| matches!(operation, Operation::Read { offset } if *offset > 0));
        eventually("the first was answered", || server.in_flight() == 1);
        // There is room again for more.
        client.stream.read_exact(&mut [0; 16]).unwrap();
        client.stream.read_exact(&mut [0; 100_000]).unwrap();
        storage.release();
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).unwrap();
        // On a busy machine it may have gone whole: then the second may follow.
        let first = rest.len().min((4 << 20) - 100_000);
        assert!(rest[..first].iter().all(|byte| *byte == 0), "it looks like more of the first");
        assert!(rest.len() == first || rest[first..].starts_with(&super::client::SIMPLE_MAGIC.to_be_bytes()));
        eventually("it has ended", || ending.is_finished());
    }
}

#[test]
fn long_writes_and_long_replies_pass_each_other() {
    let like = || Like { workers: 2, ..Like::default() };
    for server in
        [Server::like(&like(), Arc::new(memory(16 << 20))), Server::over_tls(&like(), Arc::new(memory(16 << 20)))]
    {
        pass_each_other(&server);
    }
}

/// Writes and reads of more than the sockets hold.
fn pass_each_other(server: &Server) {
    let mut client = server.client(Replies::Simple);
    let mut requests = Vec::new();
    for number in 0..12 {
        requests.push(Request::write(number << 20, &pattern(1 << 20, number)));
        requests.push(Request::read(number << 20, 1 << 20));
    }
    // Each read is behind its write on the wire, and may be done before it.
    for pair in client.exchange(&requests).chunks(2) {
        assert_eq!((pair[0].errno, pair[1].errno, pair[1].data.len()), (0, 0, 1 << 20));
    }
    for number in 0..12 {
        assert!(client.read(number << 20, 1 << 20) == pattern(1 << 20, number));
    }
}

#[test]
fn half_a_long_write_keeps_nobody_waiting() {
    for server in [Server::of_memory(64 << 20), Server::over_tls(&Like::default(), Arc::new(memory(64 << 20)))] {
        write_half(&server);
    }
}

fn write_half(server: &Server) {
    let mut slow = server.client(Replies::Simple);
    let (cookie, bytes) = slow.encode(&Request::write(0, &pattern(32 << 20, 2)));
    slow.send(&bytes[..bytes.len() - 1]);
    server.serves_others();
    assert_eq!(server.client(Replies::Simple).read(0, 4096), [0; 4096]);
    slow.send(&bytes[bytes.len() - 1..]);
    let reply = slow.answer();
    assert_eq!((reply.cookie, reply.errno), (cookie, 0));
    assert!(slow.read(0, 32 << 20) == pattern(32 << 20, 2));
    // What is announced and never comes is not written.
    let mut never = server.client(Replies::Simple);
    never.send(&Request::new(WRITE, 0, 32 << 20).bytes(1));
    never.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(never.stream.read(&mut [0]).unwrap(), 0);
    assert!(slow.read(0, 4096) == pattern(4096, 2));
}

/// Nobody hears of what it does, and it goes on: what has come by then is done, and no more.
#[test]
fn who_does_not_listen_is_not_served_for_ever() {
    let server = Server::of_memory(1 << 20);
    for replies in REPLIES {
        let mut client = server.client(replies);
        client.stream.shutdown(std::net::Shutdown::Read).unwrap();
        let (_, request) = client.encode(&Request::write(0, &pattern(4096, 1)));
        let start = std::time::Instant::now();
        while std::io::Write::write_all(&mut client.stream, &request).is_ok() {
            assert!(start.elapsed() < super::server::HANG, "it is served for ever");
        }
        eventually("it is gone", || server.connections() == 0);
    }
}
