//! Locks of two sessions, and waiting for them.

use super::client::{Body, CLIENTS, Client, Served, decoded, lock_body, message};
use device::p9::{Dialect, Kind, Request};
use passthrough::{Options, Wait};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

const READ: u8 = 0;
const WRITE: u8 = 1;
const UNLOCK: u8 = 2;
const SUCCESS: u8 = 0;
const BLOCKED: u8 = 1;
const ALL: (u64, u64) = (0, 0);

fn lock(client: &Client, fid: u32, kind: u8, range: (u64, u64), process: u32) -> Result<u8, Errno> {
    client.ask(Kind::Lock, &lock_body(fid, kind, 0, range, process)).map(|mut answer| answer.u8())
}

/// Waits for a lock on the whole file.
fn wait(client: &Client, fid: u32, kind: u8, process: u32) -> (Option<Arc<Wait>>, Receiver<Result<(), Errno>>) {
    let message = message(Kind::Lock, &lock_body(fid, kind, 1, ALL, process));
    let Request::Lock(request) = decoded(&message, Dialect::L) else { panic!("a lock is no lock") };
    assert!(request.waits());
    let (sender, receiver) = channel();
    let wait = client.session.wait_lock(&request, move |outcome| sender.send(outcome).unwrap());
    (wait, receiver)
}

fn two() -> (Served, Client, Client) {
    let served = Served::new();
    served.put("file", "content");
    let (one, two) = (served.client(), served.client());
    one.open(1, "file", 2).unwrap();
    two.open(1, "file", 2).unwrap();
    (served, one, two)
}

#[test]
fn sessions_lock_each_other_out() {
    let (_served, one, two) = two();
    assert_eq!(lock(&one, 1, WRITE, (10, 10), 5), Ok(SUCCESS));
    assert_eq!(lock(&two, 1, READ, (19, 1), 5), Ok(BLOCKED), "a process of another client is another one");
    assert_eq!(lock(&two, 1, READ, (20, 1), 5), Ok(SUCCESS));
    assert_eq!(lock(&one, 1, READ, (10, 10), 6), Ok(BLOCKED), "another process of the same client");
    assert_eq!(lock(&one, 1, READ, (10, 10), 5), Ok(SUCCESS), "its own lock becomes another");
    assert_eq!(lock(&two, 1, READ, (19, 1), 5), Ok(SUCCESS));
    assert_eq!(lock(&two, 1, WRITE, ALL, 5), Ok(BLOCKED));
    assert_eq!(lock(&one, 1, UNLOCK, ALL, 5), Ok(SUCCESS));
    assert_eq!(lock(&two, 1, WRITE, ALL, 5), Ok(SUCCESS));
    assert_eq!(lock(&one, 9, WRITE, ALL, 5), Err(Errno::BADF));
}

#[test]
fn a_client_leaves_locks_for_others() {
    let served = Served::with(Options { read_only: true, ..Options::default() });
    let most = served.service.tree().capacity().lock_owners;
    // Each client's own, and what one of them gets of the rest.
    let own = most / 4 / CLIENTS;
    let alone = own + (most - own * CLIENTS) * 8 / 9;
    let files: Vec<String> = (0..40).map(|file| format!("file-{file}")).collect();
    files.iter().for_each(|file| served.put(file, "content"));
    // Owner after owner, until there are no more: the files in turn, each by a fid that remembers so many.
    let until_refused = |client: &Client| {
        let lock = |owner: u32| lock(client, 1 + owner % files.len() as u32, READ, ALL, owner);
        let held = (0..most as u32 + 1).map(lock).take_while(|answer| *answer == Ok(SUCCESS)).count();
        assert_eq!(lock(held as u32), Err(Errno::NOLCK));
        held
    };
    let clients = [served.client(), served.client()];
    for client in &clients {
        (1..).zip(&files).for_each(|(fid, file)| client.open(fid, file, 0).unwrap());
    }
    assert_eq!(until_refused(&clients[0]), alone);
    let second = until_refused(&clients[1]);
    assert!(second >= own, "{second} owners of {own}");
    // What is unlocked, or closed, is there again.
    assert_eq!(lock(&clients[0], 1, UNLOCK, ALL, 0), Ok(SUCCESS));
    clients[0].clunk(2).unwrap();
    assert_eq!(lock(&clients[1], 3, READ, ALL, 99_999), Ok(SUCCESS));
    // And with its client.
    let [first, second] = clients;
    drop(first);
    assert_eq!(served.service.tree().describe().handles, files.len());
    let more = (50_000..50_500_u32).map(|owner| lock(&second, 1 + owner % 40, READ, ALL, owner));
    assert!(more.into_iter().all(|answer| answer == Ok(SUCCESS)));
}

#[test]
fn who_holds_a_lock_is_told() {
    let (_served, one, two) = two();
    let asked = |kind, (start, length)| {
        let body = Body::of(1).u8(kind).u64(start).u64(length).u32(7).string("two");
        let mut answer = two.ask(Kind::GetLock, &body)?;
        Ok::<_, Errno>((answer.u8(), answer.u64(), answer.u64(), answer.u32(), answer.string()))
    };
    assert_eq!(asked(WRITE, (3, 4)), Ok((UNLOCK, 3, 4, 7, "two".into())), "nothing is in the way");
    assert_eq!(lock(&one, 1, WRITE, (10, 10), 5), Ok(SUCCESS));
    let (kind, start, length, process, _) = asked(READ, ALL).unwrap();
    assert_eq!((kind, start, length, process), (WRITE, 10, 10, 5));
    assert_eq!(asked(UNLOCK, ALL).unwrap().0, WRITE, "so Linux asks");
    assert_eq!(lock(&one, 1, READ, ALL, 5), Ok(SUCCESS));
    assert_eq!(asked(READ, ALL).unwrap().0, UNLOCK);
    let (kind, start, length, ..) = asked(WRITE, ALL).unwrap();
    assert_eq!((kind, start, length), (READ, 0, 0));
    assert_eq!(asked(UNLOCK, ALL).unwrap().0, UNLOCK);
}

#[test]
fn locks_go_with_their_fid_and_with_their_session() {
    let (served, one, two) = two();
    one.open(2, "file", 0).unwrap();
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(SUCCESS));
    one.clunk(2).unwrap();
    assert_eq!(lock(&two, 1, WRITE, ALL, 5), Ok(BLOCKED), "another fid's end is nothing to it");
    one.clunk(1).unwrap();
    assert_eq!(lock(&two, 1, WRITE, ALL, 5), Ok(SUCCESS));
    one.open(1, "file", 0).unwrap();
    assert_eq!(lock(&one, 1, READ, ALL, 5), Ok(BLOCKED));
    drop(two);
    assert_eq!(lock(&one, 1, READ, ALL, 5), Ok(SUCCESS));
    drop(one);
    assert_eq!(served.service.tree().describe().lock_owners, 0);
}

/// As flock(2) does on a read-only mount, whose kernel asks for it by a lock for writing.
#[test]
fn a_file_that_nobody_may_write_is_locked_exclusively() {
    let served = Served::with(Options { read_only: true, ..Options::default() });
    served.put("file", "content");
    let (one, two) = (served.client(), served.client());
    one.open(1, "file", 0).unwrap();
    two.open(1, "file", 0).unwrap();
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(SUCCESS));
    assert_eq!(lock(&two, 1, WRITE, ALL, 5), Ok(BLOCKED));
    assert_eq!(lock(&two, 1, READ, ALL, 5), Ok(BLOCKED));
    let (_, granted) = wait(&two, 1, WRITE, 5);
    assert!(granted.try_recv().is_err());
    one.clunk(1).unwrap();
    assert_eq!(granted.recv(), Ok(Ok(())));
    drop(two);
    one.open(1, "file", 0).unwrap();
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(SUCCESS));
    drop(one);
    assert_eq!(served.service.tree().describe().lock_owners, 0);
}

#[test]
fn a_lock_is_waited_for() {
    let (served, one, two) = two();
    let (_, free) = wait(&one, 1, WRITE, 5);
    assert_eq!(free.recv(), Ok(Ok(())));
    assert_eq!(one.session.locks_waiting(), 0);
    let (_, granted) = wait(&two, 1, WRITE, 5);
    assert_eq!(two.session.locks_waiting(), 1);
    assert!(granted.try_recv().is_err());
    assert_eq!(lock(&one, 1, UNLOCK, ALL, 5), Ok(SUCCESS));
    assert_eq!(granted.recv(), Ok(Ok(())));
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(BLOCKED));
    assert_eq!(two.session.locks_waiting(), 0);
    // Who is flushed waits no longer.
    let (cancel, cancelled) = wait(&one, 1, WRITE, 5);
    cancel.unwrap().cancel();
    assert_eq!(cancelled.recv(), Ok(Err(Errno::INTR)));
    // Nor does a session that ends.
    let (_, ended) = wait(&one, 1, WRITE, 5);
    one.session.reset();
    assert_eq!(ended.recv(), Ok(Err(Errno::INTR)));
    let (_, unknown) = wait(&one, 1, WRITE, 5);
    assert_eq!(unknown.recv(), Ok(Err(Errno::BADF)));
    drop((one, two));
    assert_eq!(served.service.tree().describe().handles, 0);
}

#[test]
fn a_lock_that_is_granted_too_late_is_given_back() {
    let (served, one, two) = two();
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(SUCCESS));
    let (_, late) = wait(&two, 1, WRITE, 5);
    two.clunk(1).unwrap();
    assert_eq!(lock(&one, 1, UNLOCK, ALL, 5), Ok(SUCCESS));
    assert_eq!(late.recv(), Ok(Ok(())));
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(SUCCESS));
    assert_eq!(served.service.tree().describe().handles, 1);
}

#[test]
fn who_has_no_locks_is_forgotten() {
    let (_served, one, two) = two();
    // More owners than one fid remembers, and none that keeps anything.
    for process in 0..5000 {
        assert_eq!(lock(&one, 1, WRITE, (0, 10), process), Ok(SUCCESS), "{process}");
        assert_eq!(lock(&one, 1, UNLOCK, (0, 10), process), Ok(SUCCESS));
    }
    assert_eq!(lock(&two, 1, WRITE, ALL, 1), Ok(SUCCESS));
    for process in 0..5000 {
        assert_eq!(lock(&one, 1, WRITE, (0, 10), process), Ok(BLOCKED), "{process}");
    }
}

#[test]
fn too_many_who_wait_ask_again() {
    let (_served, one, two) = two();
    assert_eq!(lock(&one, 1, WRITE, ALL, 5), Ok(SUCCESS));
    let waiting: Vec<_> = (0..32).map(|process| wait(&two, 1, WRITE, process)).collect();
    let (none, refused) = wait(&two, 1, WRITE, 99);
    assert!(none.is_none());
    assert_eq!(refused.recv(), Ok(Err(Errno::INTR)));
    let (none, granted) = wait(&two, 1, UNLOCK, 99);
    assert!(none.is_none());
    assert_eq!(granted.recv(), Ok(Ok(())));
    drop(two);
    for (_, ended) in waiting {
        assert_eq!(ended.recv(), Ok(Err(Errno::INTR)));
    }
}
