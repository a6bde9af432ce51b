//! Connections and exports that come, move, change and go under clients.

use super::client::{Client, EINVAL, ENOSPC, REPLIES, Replies, Request, option};
use super::server::{Like, NAME, Scripted, Server, eventually, memory, pattern};
use engine::Poll;
use export::{Limits, Rate};
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use storage::{Execution, FileOptions, FileStorage, SimOptions, SimStorage, Storage};
use values::ByteSize;

fn is_turned_away(mut stream: UnixStream) -> bool {
    stream.read(&mut [0; 18]).unwrap() == 0
}

#[test]
fn no_more_clients_than_allowed() {
    let server = Server::like(&Like { queues: 2, ..Like::default() }, Arc::new(memory(1 << 20)));
    // One that has chosen nothing has a place, too.
    let (first, mut second) = (server.handshake(), server.client(Replies::Simple));
    for _ in 0..3 {
        assert!(is_turned_away(server.connect()));
    }
    assert_eq!(second.read(0, 512), [0; 512]);
    drop(first);
    eventually("a place is free", || server.export.status().sessions.disconnects == 1);
    let mut third = server.client(Replies::Structured);
    third.write(0, &pattern(512, 1));
    assert_eq!(second.read(0, 512), pattern(512, 1));
    eventually("both are listed", || server.listed() == 2);
    assert!(is_turned_away(server.connect()));
}

#[test]
fn many_clients_are_served_by_one_worker_and_then_are_gone() {
    const CLIENTS: u64 = 64;
    let server = Server::of_memory(CLIENTS << 20);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client(REPLIES[number as usize % 2]);
                for round in 0..20 {
                    client.write(number << 20, &pattern(5120, round + number));
                    assert_eq!(client.read(number << 20, 5120), pattern(5120, round + number));
                }
                client.disconnect();
                assert_eq!(client.next(), None);
            });
        }
    });
    eventually("all connections are over", || !server.export.connected());
    let sessions = server.export.status().sessions;
    assert_eq!((sessions.connects, sessions.disconnects, sessions.errors), (CLIENTS, CLIENTS, 0));
    let figures: Vec<_> = server.export.rings().into_iter().map(|ring| ring.figures).collect();
    let moved = CLIENTS * 20 * 5120;
    assert_eq!(figures.iter().map(|ring| ring.bytes_read).sum::<u64>(), moved);
    assert_eq!(figures.iter().map(|ring| ring.bytes_written).sum::<u64>(), moved);
    assert_eq!(server.connections(), 0);
}

/// Writes and reads one client's MiBs until told to stop, with many requests in flight, and counts how often it has.
fn load(client: &mut Client, first: u64, stop: &AtomicBool, done: &AtomicU64) {
    // Short ones, and one that is waited for as a whole.
    let sizes = [512, 4096, 1 << 20, 70_144, 20_480, 512, 300 << 10];
    let mut rounds = 0;
    while !stop.load(Ordering::SeqCst) {
        let (mut writes, mut at) = (Vec::new(), first);
        for (number, size) in (0..).zip(sizes) {
            writes.push(Request::write(at, &pattern(size, rounds * 7 + number)));
            at += size as u64;
        }
        assert!(client.exchange(&writes).iter().all(|reply| reply.errno == 0));
        let reads: Vec<_> = writes.iter().map(|write| Request::read(write.offset, write.len)).collect();
        for (write, reply) in writes.iter().zip(client.exchange(&reads)) {
            assert!(reply.data == write.data, "round {rounds}: not what was written at {}", write.offset);
        }
        rounds += 1;
        done.store(rounds, Ordering::SeqCst);
    }
}

/// Loads of which each has gone through that many rounds.
fn all_have_done(rounds: u64, loads: &[AtomicU64]) -> bool {
    loads.iter().all(|done| done.load(Ordering::SeqCst) >= rounds)
}

fn move_under_load(storage: Arc<dyn Storage>, poll: Poll) {
    move_all(&Server::like(&Like { workers: 3, poll, ..Like::default() }, storage));
}

#[test]
fn connections_over_tls_move_between_workers_under_load() {
    let like = Like { workers: 3, ..Like::default() };
    move_all(&Server::over_tls(&like, Arc::new(memory(8 << 20))));
}

fn move_all(server: &Server) {
    let (stop, done) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    // One that is silent moves too, and one that has not chosen.
    let (mut silent, handshake) = (server.client(Replies::Simple), server.handshake());
    std::thread::scope(|scope| {
        for (number, done) in (0..).zip(&done) {
            let stop = &stop;
            let mut client = server.client(REPLIES[number as usize % 2]);
            scope.spawn(move || load(&mut client, number * (2 << 20), stop, done));
        }
        eventually("all are connected", || server.listed() == 5);
        let mut places = (0..3).cycle().flat_map(|worker| (0..5).map(move |ring| (ring, worker)));
        // However late a load has its turn: it is moved in the midst of its requests.
        eventually("all have been under way while they moved", || {
            for (ring, worker) in places.by_ref().take(400) {
                server.export.attach(ring, worker).unwrap();
            }
            all_have_done(2, &done)
        });
        stop.store(true, Ordering::SeqCst);
    });
    silent.write(0, &pattern(512, 3));
    assert_eq!(handshake.go(NAME).read(0, 512), pattern(512, 3));
    let moves: u64 = server.export.rings().iter().map(|ring| ring.stay.moves).sum();
    assert!(moves > 200, "{moves}");
    assert_eq!((server.export.failure(), server.export.status().sessions.errors), (None, 0));
}

#[test]
fn connections_to_memory_move_between_workers_under_load() {
    for poll in [Poll::Off, Poll::default()] {
        move_under_load(Arc::new(memory(8 << 20)), poll);
    }
}

#[test]
fn connections_to_a_file_move_between_workers_under_load() {
    for execution in [Execution::Uring, Execution::Pool(2)] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8 << 20).unwrap();
        let options = FileOptions { execution, ..FileOptions::new(image.path()) };
        move_under_load(Arc::new(FileStorage::open(&options).unwrap()), Poll::Off);
    }
}

#[test]
fn connections_to_slow_storage_move_between_workers_under_load() {
    let storage = SimStorage::open(&SimOptions::new(ByteSize(8 << 20))).unwrap();
    move_under_load(Arc::new(storage), Poll::Off);
}

#[test]
fn limits_hold_until_they_are_lifted_and_lose_nothing() {
    const COUNT: u64 = 50;
    let few_bytes = Limits { requests: None, bytes: Some(Rate::new(1, Some(1))) };
    let few_requests = Limits { requests: Some(Rate::new(1, Some(1))), bytes: None };
    for (limits, bytes) in [(few_bytes, 512), (few_requests, 512), (few_bytes, 65_536), (few_requests, 65_536)] {
        let server = Server::of_memory(COUNT * 65_536);
        let mut client = server.client(Replies::Structured);
        // A connection is served before the export knows that it runs, and gets the limits of that moment.
        eventually("it is known", || server.listed() == 1);
        server.export.set_limits(limits, None);
        let writes: Vec<_> =
            (0..COUNT).map(|number| Request::write(number * 65_536, &pattern(bytes, number))).collect();
        let mut cookies: Vec<u64> = Vec::new();
        let mut answered = Vec::new();
        let encoded: Vec<_> = writes
            .iter()
            .map(|write| {
                let (cookie, bytes) = client.encode(write);
                cookies.push(cookie);
                bytes
            })
            .collect();
        // The sockets do not hold all of it.
        let mut sender = client.stream.try_clone().unwrap();
        let thread = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &encoded.concat()).unwrap());
        answered.push(client.answer().cookie);
        // The rest would take a minute or many hours.
        let written = server.export.ring(0).unwrap().figures.bytes_written;
        assert!(written < COUNT / 2 * bytes as u64, "{written}");
        server.export.set_limits(Limits { requests: None, bytes: None }, None);
        answered.extend((1..COUNT).map(|_| client.answer().cookie));
        thread.join().unwrap();
        answered.sort_unstable();
        cookies.sort_unstable();
        assert_eq!(answered, cookies);
        for write in &writes {
            assert!(client.read(write.offset, bytes) == write.data);
        }
    }
}

#[test]
fn who_goes_while_a_limit_holds_it_up_is_found_to_be_gone() {
    let server = Server::of_memory(1 << 20);
    let mut client = server.client(Replies::Simple);
    server.export.set_limits(Limits { requests: Some(Rate::new(100, Some(1))), bytes: None }, None);
    client.post_all(&vec![Request::read(0, 512); 20]);
    drop(client);
    eventually("it is over", || server.connections() == 0);
}

#[test]
fn what_a_client_only_says_costs_others_nothing() {
    let server = Server::of_memory(1 << 20);
    let (mut client, mut other) = (server.client(Replies::Simple), server.client(Replies::Simple));
    server.export.set_limits(Limits { requests: None, bytes: Some(Rate::new(10 << 20, None)) }, None);
    for _ in 0..5 {
        // Worth minutes, if one believed it.
        assert_eq!(client.errno(&Request::read(0, u32::MAX)), EINVAL);
        assert_eq!(client.errno(&Request::read(1 << 20, 4096)), EINVAL);
    }
    other.write(0, &pattern(4096, 1));
}

#[test]
fn an_export_that_ends_hangs_up() {
    let server = Server::like(&Like { workers: 2, ..Like::default() }, Arc::new(memory(1 << 20)));
    let mut clients: Vec<_> = (0..5).map(|number| server.client(REPLIES[number % 2])).collect();
    let mut handshake = server.handshake();
    server.export.end();
    for client in &mut clients {
        assert_eq!(client.next(), None);
    }
    assert_eq!(handshake.next(), None);
    assert!(!server.socket().exists());
    assert!(server.engine.workers().iter().all(|worker| worker.rings.is_empty()));
}

#[test]
fn an_export_that_ends_answers_what_is_in_flight() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    let mut clients = REPLIES.map(|replies| server.client(replies));
    storage.hold(|_| true);
    let requests: Vec<_> = (0..10)
        .flat_map(|number| [Request::write(number * 4096, &pattern(4096, number)), Request::read(512 << 10, 4096)])
        .collect();
    let cookies = clients.each_mut().map(|client| client.post_all(&requests));
    eventually("all are in flight", || server.in_flight() == 2 * requests.len());
    std::thread::scope(|scope| {
        scope.spawn(|| server.export.end());
        eventually("it is ending", || !server.socket().exists());
        assert_eq!(server.in_flight(), 2 * requests.len());
        storage.release();
        for (client, mut cookies) in clients.iter_mut().zip(cookies) {
            let mut answered = Vec::new();
            while let Some(reply) = client.next() {
                assert_eq!(reply.errno, 0);
                answered.push(reply.cookie);
            }
            answered.sort_unstable();
            cookies.sort_unstable();
            assert_eq!(answered, cookies);
        }
    });
    assert_eq!(server.connections(), 0);
    let again = Server::new(storage);
    let disk = again.contents(10 * 4096);
    assert!((0..10).all(|number| disk[number * 4096..][..4096] == pattern(4096, number as u64)));
}

#[test]
fn an_export_may_end_under_load_and_what_was_answered_is_there() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(4 << 20).unwrap();
    let storage = Arc::new(FileStorage::open(&FileOptions::new(image.path())).unwrap());
    let server = Server::like(&Like { workers: 2, ..Like::default() }, storage);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..4_u64)
            .map(|number| {
                let mut client = server.client(REPLIES[number as usize % 2]);
                scope.spawn(move || {
                    let mut answered = 0;
                    // Longer each time, so that what was answered last is there.
                    for round in 1.. {
                        let write = Request::write(number << 20, &pattern(4096, round));
                        let (_, bytes) = client.encode(&write);
                        if std::io::Write::write_all(&mut client.stream, &bytes).is_err() {
                            break;
                        }
                        match client.next() {
                            Some(reply) => assert_eq!(reply.errno, 0),
                            None => break,
                        }
                        answered = round;
                    }
                    answered
                })
            })
            .collect();
        eventually("all write", || {
            server.export.rings().iter().filter(|ring| ring.figures.bytes_written > 100 * 4096).count() == 4
        });
        server.export.end();
        let file = std::fs::read(image.path()).unwrap();
        for (number, load) in loads.into_iter().enumerate() {
            let answered = load.join().unwrap();
            let there = &file[number << 20..][..4096];
            // The one behind it may have been done as well.
            assert!(there == pattern(4096, answered) || there == pattern(4096, answered + 1), "{number}");
        }
    });
}

#[test]
fn a_disk_that_has_grown_is_larger_for_old_and_new_clients() {
    const OLD: u64 = 1 << 20;
    const NEW: u64 = 3 << 20;
    for workers in [1, 2] {
        let storage = Arc::new(memory(OLD));
        let server = Server::like(&Like { workers, ..Like::default() }, storage.clone());
        let mut clients = REPLIES.map(|replies| server.client(replies));
        let mut handshake = server.handshake();
        assert_eq!(handshake.told(option::INFO, NAME).size_bytes, OLD);
        for client in &mut clients {
            assert_eq!(client.told.size_bytes, OLD);
            assert_eq!(client.errno(&Request::read(OLD, 4096)), EINVAL);
            assert_eq!(client.errno(&Request::write(NEW - 4096, &[1; 4096])), ENOSPC);
        }
        // A client is answered a moment before its ring is one of those that are told.
        eventually("all are connected", || server.listed() == 3);
        server.export.check_capacity(NEW).unwrap();
        storage.resize(NEW).unwrap();
        // Nobody has said so yet.
        assert_eq!(clients[0].errno(&Request::read(OLD, 4096)), EINVAL);
        server.export.follow_capacity().unwrap();
        for (client, number) in clients.iter_mut().zip(1..) {
            client.write(OLD - 4096, &pattern(8192, number));
            client.write(NEW - 4096, &pattern(4096, number));
            assert_eq!(client.errno(&Request::write(NEW - 4096, &[1; 8192])), ENOSPC);
            assert_eq!(client.read(OLD, 4096), pattern(8192, number)[4096..]);
        }
        // Who had asked before and goes on now is told anew.
        let mut late = handshake.go(NAME);
        assert_eq!(late.told.size_bytes, NEW);
        assert_eq!(late.read(NEW - 4096, 4096), pattern(4096, 2));
        assert_eq!(server.client(Replies::Simple).told.size_bytes, NEW);
    }
}

#[test]
fn a_disk_grows_under_load() {
    let storage = Arc::new(memory(6 << 20));
    let server = Server::like(&Like { workers: 2, ..Like::default() }, storage.clone());
    let (stop, done) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    std::thread::scope(|scope| {
        for (number, done) in (0..).zip(&done) {
            let (stop, mut client) = (&stop, server.client(Replies::Simple));
            scope.spawn(move || load(&mut client, number * (2 << 20), stop, done));
        }
        eventually("both are under way", || all_have_done(1, &done));
        for step in 1..=20 {
            let size = (6 << 20) + step * 65_536;
            storage.resize(size).unwrap();
            server.export.follow_capacity().unwrap();
            assert_eq!(server.client(Replies::Simple).told.size_bytes, size);
        }
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn only_a_listener_without_clients_is_handed_over() {
    let hang = || Instant::now() + Duration::from_secs(60);
    let server = Server::of_memory(1 << 20);
    let mut client = server.client(Replies::Simple);
    let refused = server.export.look().wait(hang()).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("a disk over NBD to 1 connected client(s)"), "{refused}");
    client.write(0, &pattern(512, 1));
    drop(client);
    eventually("it is over", || !server.export.connected());
    let (state, hold) = server.export.pause(hang()).wait(hang()).unwrap();
    assert_eq!(state.file.map(|file| file.path), Some(server.socket()));
    drop((state.socket, hold));
    assert_eq!(server.client(Replies::Simple).read(0, 512), pattern(512, 1));
}
