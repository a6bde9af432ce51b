//! Which reply comes when: requests of one connection run at once, and a flush waits for what it flushes.

use super::client::{
    BLOCKED, Client, Like, MSIZE, SUCCESS, Server, TFLUSH, TGETATTR, TLOCK, TREAD, TVERSION, TWALK, UNLOCK, WRITE_LOCK,
    eventually, fields, lock_of, message, pattern, read_of,
};
use engine::Execution;
use std::time::Duration;

fn getattr(fid: u32) -> Vec<u8> {
    message(TGETATTR, 2, fields().u32(fid).u64(0x7ff))
}

#[test]
fn a_lock_is_dropped_at_once_though_the_client_would_wait() {
    let server = Server::new(&Like::default());
    let (mut holder, mut other) = holder_and_other(&server);
    other.send(&message(TLOCK, 1, lock_of(1, WRITE_LOCK, true, 20)));
    lock_is_waited_for(&server);
    // As F_SETLKW does on Linux, whatever the type.
    assert_eq!(holder.ask(TLOCK, lock_of(1, UNLOCK, true, 10)), [SUCCESS]);
    assert_eq!(other.answer().fields, [SUCCESS]);
    assert_eq!(holder.lock(1, WRITE_LOCK, 10), BLOCKED);
}

/// One that holds a lock on `file`, and one that has opened it too; both as fid 1.
fn holder_and_other(server: &Server) -> (Client, Client) {
    let (mut holder, mut other) = (server.client(), server.client());
    holder.create(1, "file");
    other.open(1, "file", libc::O_RDWR);
    assert_eq!(holder.lock(1, WRITE_LOCK, 10), SUCCESS);
    assert_eq!(other.lock(1, WRITE_LOCK, 20), BLOCKED);
    (holder, other)
}

/// Waits until the server waits for a lock.
fn lock_is_waited_for(server: &Server) {
    let waits = || server.export.rings().iter().any(|ring| ring.in_flight > 0);
    eventually("somebody waits", waits);
}

#[test]
fn who_waits_for_a_lock_is_overtaken_by_others_of_the_same_connection() {
    for execution in super::EXECUTIONS {
        let server = Server::new(&Like { execution, ..Like::default() });
        let (mut holder, mut other) = holder_and_other(&server);
        other.send(&message(TLOCK, 1, lock_of(1, WRITE_LOCK, true, 20)));
        other.send(&getattr(1));
        assert_eq!(other.answer().tag, 2, "{execution}");
        assert_eq!(holder.lock(1, UNLOCK, 10), SUCCESS);
        let answer = other.answer();
        assert_eq!((answer.kind, answer.tag, &answer.fields[..]), (TLOCK + 1, 1, &[SUCCESS][..]), "{execution}");
        assert_eq!(holder.lock(1, WRITE_LOCK, 10), BLOCKED);
        // A client that goes leaves no lock behind.
        drop(other);
        eventually("it is gone", || server.gone() == 1);
        assert_eq!(holder.lock(1, WRITE_LOCK, 10), SUCCESS);
    }
}

#[test]
fn a_flush_gives_a_lock_up_and_is_the_only_answer() {
    let server = Server::new(&Like::default());
    let (mut holder, mut other) = holder_and_other(&server);
    for _ in 0..50 {
        other.send(&message(TLOCK, 1, lock_of(1, WRITE_LOCK, true, 20)));
        other.send(&message(TFLUSH, 3, fields().u16(1)));
        // Flushed once more, and the flush itself.
        other.send(&message(TFLUSH, 4, fields().u16(1)));
        other.send(&message(TFLUSH, 5, fields().u16(4)));
        other.send(&getattr(1));
        let mut flushed = Vec::new();
        let mut others = Vec::new();
        for _ in 0..4 {
            let answer = other.answer();
            let tags = if answer.kind == TFLUSH + 1 { &mut flushed } else { &mut others };
            tags.push(answer.tag);
        }
        assert_eq!((flushed, others), (vec![3, 4, 5], vec![2]));
    }
    assert_eq!(holder.lock(1, UNLOCK, 10), SUCCESS);
    assert_eq!(holder.lock(1, WRITE_LOCK, 10), SUCCESS, "nobody waits for it any more");
}

#[test]
fn a_flush_is_answered_behind_what_it_flushes() {
    for execution in [Execution::Pool(4), Execution::Inline, Execution::Uring] {
        let server = Server::new(&Like { execution, delay: Duration::from_millis(2), ..Like::default() });
        let mut client = server.client();
        client.create(1, "file");
        std::fs::write(server.file("file"), pattern(100_000, 0)).unwrap();
        for _ in 0..20 {
            let mut bytes: Vec<u8> = (0..8).flat_map(|tag| message(TREAD, tag, read_of(1, 0, 50_000))).collect();
            bytes.extend((0..8).flat_map(|tag| message(TFLUSH, 100 + tag, fields().u16(tag))));
            client.send(&bytes);
            let mut answered = Vec::new();
            for _ in 0..16 {
                let answer = client.answer();
                if answer.kind == TFLUSH + 1 {
                    assert!(answered.contains(&(answer.tag - 100)), "{execution}: the flush came first");
                } else {
                    assert_eq!((answer.kind, answer.data().len()), (TREAD + 1, 50_000));
                    answered.push(answer.tag);
                }
            }
            assert_eq!(answered.len(), 8);
        }
        // Of nothing.
        let nothing = client.call(TFLUSH, fields().u16(9999));
        assert_eq!((nothing.kind, nothing.fields), (TFLUSH + 1, vec![]));
    }
}

#[test]
fn requests_of_one_connection_run_at_once_on_a_pool() {
    let server =
        Server::new(&Like { execution: Execution::Pool(8), delay: Duration::from_millis(5), ..Like::default() });
    let mut client = server.client();
    client.create(1, "file");
    let content = pattern(1 << 20, 4);
    std::fs::write(server.file("file"), &content).unwrap();
    let ask = |tag: u16| message(TREAD, tag, read_of(1, u64::from(tag) * 4096, 4096));
    client.send(&(0..64).flat_map(ask).collect::<Vec<u8>>());
    let mut answered = [false; 64];
    for _ in 0..64 {
        let answer = client.answer();
        let at = usize::from(answer.tag);
        assert_eq!(answer.data(), &content[at * 4096..][..4096]);
        assert!(!std::mem::replace(&mut answered[at], true));
    }
    let ring = server.export.ring(0).unwrap();
    assert!(ring.figures.in_flight_max >= 8, "{}", ring.figures.in_flight_max);
    assert_eq!((ring.in_flight, ring.figures.bytes_read), (0, 64 * 4096));
}

#[test]
fn a_version_ends_what_came_before_it() {
    let server = Server::new(&Like { execution: Execution::Pool(2), ..Like::default() });
    let (mut holder, mut other) = holder_and_other(&server);
    other.send(&message(TLOCK, 1, lock_of(1, WRITE_LOCK, true, 20)));
    lock_is_waited_for(&server);
    let version = message(TVERSION, u16::MAX, fields().u32(8192).text("9P2000.L"));
    other.send(&[getattr(1), version, getattr(1)].concat());
    // What was answered before the version is answered before the version's answer.
    let mut kinds = Vec::new();
    loop {
        let answer = other.answer();
        kinds.push((answer.kind, answer.tag));
        if answer.tag == u16::MAX {
            break;
        }
    }
    assert!(kinds.contains(&(TGETATTR + 1, 2)), "{kinds:?}");
    assert_eq!(other.answer().errno(), libc::EBADF, "its fids are gone");
    other.attach();
    other.open(1, "file", libc::O_RDWR);
    assert_eq!(other.lock(1, WRITE_LOCK, 20), BLOCKED);
    assert_eq!(holder.lock(1, UNLOCK, 10), SUCCESS);
    assert_eq!(other.lock(1, WRITE_LOCK, 20), SUCCESS);
    // It said that it takes no longer messages.
    assert_eq!(other.read(1, 0, MSIZE).len(), 0);
}

#[test]
fn a_hundred_waiting_locks_leave_room_for_the_one_that_ends_them() {
    let server = Server::new(&Like::default());
    let (mut holder, mut other) = holder_and_other(&server);
    // More than may wait: the rest are told to ask again.
    let waiting: Vec<u8> =
        (100..400).flat_map(|tag| message(TLOCK, tag, lock_of(1, WRITE_LOCK, true, u32::from(tag)))).collect();
    other.send(&waiting);
    lock_is_waited_for(&server);
    other.send(&message(TWALK, 1, fields().u32(0).u32(9).u16(0)));
    let mut told = 0;
    loop {
        let answer = other.answer();
        if answer.tag == 1 {
            break;
        }
        told += 1;
    }
    assert!(told > 0);
    assert_eq!(holder.lock(1, UNLOCK, 10), SUCCESS);
    // One of those that wait has it now, and gives it to the next by going.
    let first = loop {
        let answer = other.answer();
        if answer.kind == TLOCK + 1 && answer.fields == [SUCCESS] {
            break answer.tag;
        }
    };
    assert!((100..400).contains(&first));
    drop(other);
    eventually("it is gone", || server.gone() == 1);
    assert_eq!(holder.lock(1, WRITE_LOCK, 10), SUCCESS);
}

#[test]
fn others_have_their_turns_while_a_client_with_many_fids_begins_anew() {
    // So many are given up in one turn, at most.
    const AT_ONCE: u32 = 64;
    const TURNS: u32 = 20;
    let server = Server::new(&Like::default());
    let mut client = server.client();
    for fid in 1..=TURNS * AT_ONCE {
        client.ask(TWALK, fields().u32(0).u32(fid).u16(0));
    }
    let worker = server.engine.workers()[0].number;
    let turns = || server.engine.worker_figures(worker).unwrap().turns;
    let before = turns();
    client.version(MSIZE);
    let turns = turns() - before;
    assert!(turns >= u64::from(TURNS), "{turns} turns of the worker");
    client.attach();
    assert_eq!(client.call(TGETATTR, fields().u32(1).u64(0x7ff)).errno(), libc::EBADF);
}
