//! Clients of 9P over streams: what they send, in which pieces, and what becomes of those that do not behave.

// The client has more than each part of the tests needs.
#![allow(unreachable_pub)]

mod beside;
pub mod client;
mod order;
mod trace;
mod trouble;

use client::{
    Client, HANG, IO_HEADER, Like, MSIZE, Server, TFSYNC, TREAD, TREADDIR, TWRITE, eventually, fields, message,
    pattern, read_of, write_of,
};
use engine::{Execution, Poll};
use export::{Admission, Engine, StreamListener};
use passthrough::Options;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tempfile::TempDir;
use values::Listen;
use vhost_user::SocketOptions;

const EXECUTIONS: [Execution; 4] = [Execution::Inline, Execution::Auto, Execution::Uring, Execution::Pool(3)];

/// Writes a file of `bytes` bytes, in the largest messages there are, and reads it back.
fn write_and_read(client: &mut Client, name: &str, msize: u32, bytes: usize) -> Vec<u8> {
    let content = pattern(bytes, u64::from(msize));
    let most = msize as usize - IO_HEADER;
    client.create(1, name);
    for (index, piece) in content.chunks(most).enumerate() {
        assert_eq!(client.write(1, (index * most) as u64, piece), piece.len());
    }
    client.ask(TFSYNC, fields().u32(1).u32(0));
    let mut read = Vec::new();
    loop {
        let piece = client.read(1, read.len() as u64, most as u32);
        if piece.is_empty() {
            break;
        }
        read.extend(piece);
    }
    assert!(read == content, "not what was written");
    client.clunk(1);
    content
}

#[test]
fn files_are_whole_whatever_executes_and_carries_them() {
    for execution in EXECUTIONS {
        for tcp in [false, true] {
            let server = Server::new(&Like { execution, tcp, ..Like::default() });
            for msize in [4096, 8192, MSIZE, 1 << 20] {
                let name = format!("file-{msize}");
                let mut client = server.connect().attached(msize);
                let content = write_and_read(&mut client, &name, msize, 3 * msize as usize + 17);
                assert!(std::fs::read(server.file(&name)).unwrap() == content, "{execution} {msize}");
            }
            assert_eq!(server.export.failure(), None);
        }
    }
}

#[test]
fn more_than_the_largest_message_is_never_granted() {
    let server = Server::new(&Like::default());
    let mut client = server.connect();
    assert_eq!(client.version(u32::MAX), 1 << 20);
    client.attach();
    client.create(1, "file");
    // A read of more is one of what there is room for.
    let content = pattern(3 << 20, 0);
    std::fs::write(server.file("file"), &content).unwrap();
    let read = client.read(1, 5, u32::MAX);
    assert_eq!(read.len(), (1 << 20) - 11);
    assert!(read == content[5..5 + read.len()]);
}

#[test]
fn a_message_may_come_a_byte_at_a_time() {
    let server = Server::new(&Like::default());
    let mut client = server.connect();
    client.version(MSIZE);
    client.attach();
    client.create(1, "file");
    let content = pattern(3000, 1);
    for byte in message(TWRITE, 5, write_of(1, 0, &content)) {
        client.send(&[byte]);
    }
    let answer = client.answer();
    assert_eq!((answer.kind, answer.tag, answer.fields), (TWRITE + 1, 5, 3000_u32.to_le_bytes().to_vec()));
    // Several in one, and one that ends in the next.
    let mut bytes: Vec<u8> = (0..20).flat_map(|tag| message(TREAD, tag, read_of(1, u64::from(tag), 10))).collect();
    let rest = bytes.split_off(bytes.len() - 3);
    client.send(&bytes);
    client.send(&rest);
    for tag in 0..20 {
        let answer = client.answer();
        assert_eq!((answer.tag, answer.data()), (tag, &content[usize::from(tag)..usize::from(tag) + 10]));
    }
}

#[test]
fn pipelined_requests_of_any_size_are_answered_once_each() {
    for execution in EXECUTIONS {
        let server = Server::new(&Like { execution, ..Like::default() });
        let mut client = server.connect().attached(1 << 20);
        client.create(1, "file");
        let content = pattern(4 << 20, 2);
        std::fs::write(server.file("file"), &content).unwrap();
        let sizes = [1, 4096, 70_000, 1_000_000, 100, 300_000];
        // Eight at a time, as a client with readahead does.
        for round in 0..6_u16 {
            let ranges: Vec<(u64, usize)> = (0..8)
                .map(|at| (u64::from(round * 8 + at) * 60_001, sizes[usize::from(round + at) % sizes.len()]))
                .collect();
            let bytes: Vec<u8> = (ranges.iter().zip(0..))
                .flat_map(|((offset, count), tag)| message(TREAD, tag, read_of(1, *offset, *count as u32)))
                .collect();
            client.send(&bytes);
            let mut answered = [false; 8];
            for _ in 0..8 {
                let answer = client.answer();
                let (offset, count) = ranges[usize::from(answer.tag)];
                let end = content.len().min(offset as usize + count);
                assert!(answer.data() == &content[offset as usize..end], "{execution} {offset}");
                assert!(!std::mem::replace(&mut answered[usize::from(answer.tag)], true), "answered twice");
            }
        }
        // The same by writes, each of them the next one's neighbour.
        let mut bytes = Vec::new();
        let mut offset = 0;
        for (tag, size) in (0..).zip(sizes) {
            bytes.extend(message(TWRITE, tag, write_of(1, offset as u64, &pattern(size, 9)[..])));
            offset += size;
        }
        let mut sender = client;
        sender.send(&bytes);
        for _ in sizes {
            let answer = sender.answer();
            assert_eq!(answer.fields, (sizes[usize::from(answer.tag)] as u32).to_le_bytes());
        }
        let written = std::fs::read(server.file("file")).unwrap();
        let mut at = 0;
        for size in sizes {
            assert!(written[at..at + size] == pattern(size, 9), "{execution} {size}");
            at += size;
        }
    }
}

#[test]
fn a_large_directory_is_listed_in_pieces() {
    let server = Server::new(&Like { execution: Execution::Pool(2), ..Like::default() });
    for index in 0..2000 {
        std::fs::write(server.file(&format!("a-name-that-is-not-short-{index:05}")), "").unwrap();
    }
    let mut client = server.client();
    client.ask(client::TWALK, fields().u32(0).u32(1).u16(0));
    client.ask(client::TLOPEN, fields().u32(1).u32(libc::O_DIRECTORY as u32));
    let (mut offset, mut names) = (0, 0);
    loop {
        let answer = client.call(TREADDIR, read_of(1, offset, 60_000));
        let mut entries = answer.data();
        if entries.is_empty() {
            break;
        }
        while !entries.is_empty() {
            offset = u64::from_le_bytes(entries[13..21].try_into().unwrap());
            let len = usize::from(u16::from_le_bytes([entries[22], entries[23]]));
            names += usize::from(entries[24..24 + len].starts_with(b"a-name"));
            entries = &entries[24 + len..];
        }
    }
    assert_eq!(names, 2000);
}

#[test]
fn many_clients_are_served_by_one_worker_and_then_are_gone() {
    let server = Server::new(&Like { connections: 64, ..Like::default() });
    std::thread::scope(|scope| {
        for index in 0..64 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..20 {
                    write_and_read(&mut client, &format!("file-{index}-{round}"), MSIZE, 5000);
                }
            });
        }
    });
    eventually("all connections are over", || !server.export.connected());
    let status = server.export.status();
    assert_eq!((status.sessions.connects, status.sessions.disconnects, status.sessions.errors), (64, 64, 0));
    let read: u64 = server.export.rings().iter().map(|ring| ring.figures.bytes_read).sum();
    assert_eq!((read, server.connections()), (64 * 20 * 5000, 0));
}

#[test]
fn no_more_connections_than_allowed() {
    let server = Server::new(&Like { connections: 2, ..Like::default() });
    let (first, mut second) = (server.client(), server.client());
    assert_eq!(server.connect().next(), None, "turned away at once");
    drop(first);
    eventually("a place is free", || server.gone() == 1);
    let mut third = server.client();
    third.create(1, "third");
    second.create(1, "second");
    // A client may be answered before it is listed.
    eventually("both are listed", || server.listed() == 2);
}

#[test]
fn what_a_socket_cannot_be_is_refused() {
    let refused = |queues, allow_direct_io| {
        let dir = TempDir::new().unwrap();
        let address = Listen::Unix(dir.path().join("9p.sock"));
        let listener = StreamListener::bind(&address, &SocketOptions::default()).unwrap();
        let tree = client::tree(dir.path(), Options { allow_direct_io, ..Options::default() });
        let options = client::options(queues, Execution::Auto);
        client::serve(listener, options, tree, Poll::Off, &Engine::new(1)).err().unwrap().to_string()
    };
    for queues in [0, 1025] {
        assert_eq!(refused(queues, false), format!("{queues} connections: a 9p socket serves 1 to 1024"));
    }
    let no_disk = "what 9p reads and writes lies behind a message's head, where no disk reaches it: `allow_direct_io` is for \
                   virtio-fs";
    assert_eq!(refused(1, true), no_disk);
}

#[test]
fn connections_move_between_workers_under_load() {
    for (execution, poll) in [
        (Execution::Inline, Poll::Off),
        (Execution::Uring, Poll::default()),
        (Execution::Pool(2), Poll::Off),
        (Execution::Auto, Poll::default()),
    ] {
        let server = Server::new(&Like { execution, workers: 3, poll, ..Like::default() });
        let (stop, done) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
        // One that is silent moves too.
        let mut silent = server.client();
        std::thread::scope(|scope| {
            for (index, done) in done.iter().enumerate() {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || {
                    let mut client = server.connect().attached(1 << 20);
                    while !stop.load(Ordering::SeqCst) {
                        let name = format!("file-{index}-{}", done.load(Ordering::SeqCst));
                        write_and_read(&mut client, &name, 1 << 20, (1 << 20) + 5);
                        std::fs::remove_file(server.file(&name)).unwrap();
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            eventually("all are connected", || server.listed() == 4);
            let mut places = (0..3).cycle().flat_map(|worker| (0..4).map(move |ring| (ring, worker)));
            // However late a load has its turn: it is moved in the midst of its requests.
            eventually("all have been under way while they moved", || {
                for (ring, worker) in places.by_ref().take(600) {
                    server.export.attach(ring, worker).unwrap();
                }
                done.iter().all(|done| done.load(Ordering::SeqCst) >= 2)
            });
            stop.store(true, Ordering::SeqCst);
        });
        silent.create(1, "silent");
        let moves: u64 = server.export.rings().iter().map(|ring| ring.stay.moves).sum();
        assert!(moves > 300, "{moves}");
    }
}

#[test]
fn a_pair_that_was_inherited_is_served_until_it_ends() {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let listener = StreamListener::from_fd(ours).unwrap();
    let server = Server::on(listener, TempDir::new().unwrap(), &Like::default());
    assert!(matches!(server.address, Listen::Fd(_)));
    let stream = UnixStream::from(theirs);
    stream.set_read_timeout(Some(HANG)).unwrap();
    let mut client = Client::new(stream).attached(MSIZE);
    write_and_read(&mut client, "file", MSIZE, 100_000);
    assert!(server.export.connected());
    drop(client);
    eventually("it is over", || !server.export.connected());
    let refused = server.export.look().wait(Instant::now() + HANG).map(|_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "its one connection has ended: remove it");
}

#[test]
fn only_a_listener_without_clients_is_handed_over() {
    let server = Server::new(&Like::default());
    let mut client = server.client();
    let refused = server.export.look().wait(Instant::now() + HANG).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("1 connected client(s)"), "{refused}");
    client.create(1, "goes on");
    drop(client);
    eventually("it is over", || !server.export.connected());
    let (state, hold) = server.export.pause(Instant::now() + HANG).wait(Instant::now() + HANG).unwrap();
    // Another program would go on with this one; meanwhile nobody accepts but it.
    let adopted = StreamListener::adopt(state.socket, None).unwrap();
    let Listen::Unix(path) = &server.address else { panic!("{}", server.address) };
    assert_eq!(state.file.map(|file| file.path).as_ref(), Some(path));
    drop((adopted, hold));
    server.client().create(1, "and on");
}

#[test]
fn an_export_that_ends_hangs_up() {
    let server = Server::new(&Like { workers: 2, ..Like::default() });
    let mut clients: Vec<Client> = (0..5).map(|_| server.client()).collect();
    let Listen::Unix(path) = &server.address else { panic!("{}", server.address) };
    assert!(path.exists());
    server.export.end();
    for client in &mut clients {
        assert_eq!(client.next(), None);
    }
    assert!(!path.exists());
    let again = StreamListener::bind(&server.address, &SocketOptions::default()).unwrap();
    drop(again);
}

/// The effective user of the calling thread alone, which is who connects for the kernel.
fn become_for_this_thread(uid: u32) {
    // SAFETY: it changes nothing but ids of this thread, which ends soon.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    assert_eq!(result, 0);
}

#[test]
fn another_user_is_turned_away_whatever_the_sockets_mode() {
    use std::os::unix::fs::PermissionsExt;
    let (own, nobody) = (rustix::process::geteuid().as_raw(), 65534);
    let dir = TempDir::new().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let address = Listen::Unix(dir.path().join("9p.sock"));
    let options = SocketOptions { mode: Some(0o666), ..SocketOptions::default() };
    // A test that is not root's is itself the other user.
    let user = Some(if own == 0 { own } else { own ^ 1 });
    let listener = StreamListener::bind(&address, &options).unwrap().admitting(Admission { user, cids: Vec::new() });
    let server = Server::on(listener, dir, &Like::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if own == 0 {
                become_for_this_thread(nobody);
            }
            assert_eq!(server.connect().next(), None, "closed at once");
        });
    });
    eventually("it is counted", || server.export.status().sessions.errors == 1);
    let said = server.export.status().last_error.unwrap();
    assert!(said.contains("turned away user"), "{said}");
    if own == 0 {
        server.client().create(1, "by root");
    }
}

#[test]
fn a_client_that_is_no_virtual_machine_is_none_of_those_named() {
    let dir = TempDir::new().unwrap();
    let listener = StreamListener::bind(&"tcp:0".parse().unwrap(), &SocketOptions::default()).unwrap();
    let listener = listener.admitting(Admission { user: None, cids: vec![3] });
    let server = Server::on(listener, dir, &Like { tcp: true, ..Like::default() });
    assert_eq!(server.connect().next(), None, "closed at once");
    eventually("it is counted", || server.export.status().sessions.errors == 1);
}
