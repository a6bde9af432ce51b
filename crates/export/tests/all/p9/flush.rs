//! Tflush: the old answer first, or none at all.

use crate::p9::client::{Client, Server, flush, getattr, lock, message, outcome, read};
use device::p9::Kind;
use engine::Execution;
use passthrough::Options;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

/// Every operation takes its time.
fn slow() -> Options {
    Options { delay: Duration::from_millis(20), ..Options::default() }
}

/// Locks a whole file as another process would: by an open file of its own.
fn take_lock(file: &File, kind: i32) {
    let lock = libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: a live descriptor, and a lock that lives as long as the call.
    let result = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()), libc::F_OFD_SETLK, &lock) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn what_a_pool_works_on_is_answered_before_its_flush() {
    let server = Server::new(1, Execution::Pool(1), slow());
    let mut client = Client::new(&server, 1);
    let old: Vec<_> = (1..=6).map(|tag| client.send(0, &getattr(tag, 1))).collect();
    let flushes: Vec<_> = (1..=6).rev().map(|tag| (tag, client.send(0, &flush(100 + tag, tag)))).collect();
    for (tag, sent) in flushes {
        let flushed = old[usize::from(tag) - 1];
        outcome(client.guest.wait(sent), Kind::Flush).unwrap();
        assert!(client.guest.place(flushed) < client.guest.place(sent), "tag {tag}");
        outcome(client.guest.wait(flushed), Kind::GetAttr).unwrap();
    }
    assert_eq!((server.answered("Tflush"), server.answered("Tgetattr")), (6, 6));
}

#[test]
fn a_flush_on_another_ring_waits_too() {
    let server = Server::new(2, Execution::Pool(1), slow());
    let mut client = Client::new(&server, 2);
    for _ in 0..10 {
        let old = client.send(0, &getattr(7, 1));
        // A flush that is seen before what it flushes finds nothing.
        while server.export.ring(0).unwrap().in_flight == 0 && !client.guest.is_answered(old) {
            std::thread::yield_now();
        }
        let sent = client.send(1, &flush(8, 7));
        outcome(client.guest.wait(sent), Kind::Flush).unwrap();
        assert!(client.guest.is_answered(old));
        outcome(client.guest.wait(old), Kind::GetAttr).unwrap();
    }
}

#[test]
fn flushes_of_what_is_not_there_are_answered() {
    for execution in [Execution::Inline, Execution::Uring, Execution::Pool(2)] {
        let server = Server::new(1, execution, Options::default());
        let mut client = Client::new(&server, 1);
        let fid = client.create("file");
        for round in 0..200_u16 {
            // Its own tag, one that nobody has, one that has its answer, one that is under way.
            let sent = [
                client.send(0, &flush(round, round)),
                client.send(0, &flush(round, 40_000)),
                client.send(0, &read(20_000, fid, 0, 10)),
                client.send(0, &flush(20_001, 20_000)),
                client.send(0, &flush(20_002, 20_001)),
            ];
            for sent in sent {
                client.guest.wait(sent).expect("an answer");
            }
        }
    }
}

#[test]
fn a_tag_is_used_again_with_its_answer_and_before() {
    let server = Server::new(1, Execution::Pool(2), slow());
    let mut client = Client::new(&server, 1);
    for _ in 0..10 {
        let sent = client.send(0, &getattr(5, 1));
        outcome(client.guest.wait(sent), Kind::GetAttr).unwrap();
    }
    // A client may not do this. Nothing is lost by it.
    let twice = [client.send(0, &getattr(5, 1)), client.send(0, &getattr(5, 1))];
    let flushed = client.send(0, &flush(6, 5));
    outcome(client.guest.wait(flushed), Kind::Flush).unwrap();
    for sent in twice {
        assert!(client.guest.place(sent) < client.guest.place(flushed));
        outcome(client.guest.wait(sent), Kind::GetAttr).unwrap();
    }
}

#[test]
fn a_lock_that_is_waited_for_is_given_up() {
    let server = Server::new(1, Execution::Auto, Options::default());
    let mut client = Client::new(&server, 1);
    let fid = client.create("file");
    let file = File::options().read(true).write(true).open(server.shared.path().join("file")).unwrap();
    take_lock(&file, libc::F_WRLCK);
    let waiting = client.send(0, &lock(10, fid, 1));
    server.wait_until("a lock is waited for", |status| status.locks_waiting == 1);
    // Others are served meanwhile.
    let other = client.send(0, &getattr(11, fid));
    outcome(client.guest.wait(other), Kind::GetAttr).unwrap();
    let sent = client.send(0, &flush(12, 10));
    outcome(client.guest.wait(sent), Kind::Flush).unwrap();
    assert!(client.guest.place(waiting) < client.guest.place(sent));
    assert_eq!(client.guest.wait(waiting), None, "its chain goes back without an answer");
    server.wait_until("no lock is waited for", |status| status.locks_waiting == 0);

    // One that is granted in the end.
    let waiting = client.send(0, &lock(10, fid, 1));
    server.wait_until("a lock is waited for", |status| status.locks_waiting == 1);
    take_lock(&file, libc::F_UNLCK);
    assert_eq!(outcome(client.guest.wait(waiting), Kind::Lock), Ok(vec![0]), "P9_LOCK_SUCCESS");
    let unlock = message(
        Kind::Lock,
        13,
        &[&fid.to_le_bytes(), &[2], &[0; 4], &[0; 16], &1_u32.to_le_bytes(), &crate::p9::client::string("guest")],
    );
    let sent = client.send(0, &unlock);
    assert_eq!(outcome(client.guest.wait(sent), Kind::Lock), Ok(vec![0]));
}

#[test]
fn a_storm_of_flushes_loses_nothing() {
    let server = Server::new(2, Execution::Auto, Options::default());
    let mut client = Client::new(&server, 2);
    let fid = client.create("file");
    client.write(0, fid, 0, &[7; 4096]);
    for round in 0..300_u16 {
        server.export.set_execution(if round % 2 == 0 { Execution::Uring } else { Execution::Pool(2) }).unwrap();
        let mut sent = Vec::new();
        for place in 0..6_u16 {
            let (old, queue) = (1 + place, usize::from(place % 2));
            sent.push((Kind::Read, client.send(queue, &read(old, fid, 0, 4096))));
            sent.push((Kind::Flush, client.send(queue, &flush(100 + place, old))));
        }
        for pair in sent.chunks(2) {
            let [(_, old), (_, flush)] = pair else { unreachable!("pairs") };
            outcome(client.guest.wait(*flush), Kind::Flush).unwrap();
            assert!(client.guest.place(*old) < client.guest.place(*flush), "round {round}");
        }
        for (kind, sent) in sent.iter().step_by(2) {
            outcome(client.guest.wait(*sent), *kind).unwrap();
        }
    }
}
