//! Where a disk has data, as clients are told.

use super::client::{BLOCK_STATUS, Client, DF, EINVAL, EIO, NO_HOLE, REQ_ONE, Request};
use super::server::{Like, NAME, Scripted, Server, eventually};
use export::RingFigures;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use storage::{FileOptions, FileStorage};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
const DATA: u32 = 0;
/// A hole that reads as zeroes.
const HOLE: u32 = 3;

fn client(server: &Server) -> Client {
    server.handshake().structured().allocation().go(NAME)
}

/// A file with data in some pages.
fn sparse(bytes: u64, pages: impl IntoIterator<Item = u64>) -> (tempfile::NamedTempFile, Arc<FileStorage>) {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(bytes).unwrap();
    for page in pages {
        file.as_file().write_all_at(&[1; 4096], page * 4096).unwrap();
    }
    let storage = FileStorage::open(&FileOptions::new(file.path())).unwrap();
    (file, Arc::new(storage))
}

fn status(offset: u64, len: u64) -> Request {
    Request::new(BLOCK_STATUS, offset, len as u32)
}

#[test]
fn holes_of_a_file_are_told() {
    let (_file, storage) = sparse(SIZE, [0, 256, 257]);
    let server = Server::new(storage);
    let mut client = client(&server);
    let whole = client.call(&status(0, SIZE)).extents;
    let behind = (SIZE - MIB - 8192) as u32;
    assert_eq!(whole, [(4096, DATA), ((MIB - 4096) as u32, HOLE), (8192, DATA), (behind, HOLE)]);
    assert_eq!(client.call(&status(0, SIZE).with(REQ_ONE)).extents, whole[..1]);
    assert_eq!(client.call(&status(4096, SIZE - 4096).with(REQ_ONE)).extents, whole[1..2]);
    assert_eq!(client.call(&status(512, 512)).extents, [(512, DATA)]);
    // What a client writes is data from then on, and what it clears is not.
    client.write(4 * MIB, &[7; 512]);
    let written = client.call(&status(4 * MIB, MIB)).extents;
    assert_eq!(written.first().map(|(_, flags)| *flags), Some(DATA));
    client.ask(&Request::new(super::client::WRITE_ZEROES, 0, 2 * MIB as u32));
    assert_eq!(client.call(&status(0, 2 * MIB)).extents, [(2 * MIB as u32, HOLE)]);
    assert_eq!(client.errno(&status(0, 0)), EINVAL);
    for flags in [DF, NO_HOLE] {
        assert_eq!(client.errno(&status(0, 512).with(flags)), EINVAL);
    }
}

/// Requests that lie in blocks of the disk have answers that do.
#[test]
fn extents_are_whole_blocks() {
    let (_file, storage) = sparse(SIZE, [3]);
    let server = Server::like(&Like { block_size_bytes: 4096, ..Like::default() }, storage);
    let mut client = client(&server);
    let hole = (12288, HOLE);
    assert_eq!(client.call(&status(0, 32768)).extents, [hole, (4096, DATA), (16384, HOLE)]);
    assert_eq!(client.errno(&status(512, 4096)), EINVAL);
}

/// As many extents as one reply may have, and the rest for who asks again.
#[test]
fn a_long_answer_comes_in_parts() {
    const BYTES: u64 = 32 * MIB;
    let (_file, storage) = sparse(BYTES, (0..BYTES / 8192).map(|pair| pair * 2));
    let server = Server::new(storage);
    let mut client = client(&server);
    let mut extents = Vec::new();
    let mut at = 0;
    while at < BYTES {
        let reply = client.call(&status(at, BYTES - at)).extents;
        assert!(reply.len() > 1000, "{}", reply.len());
        at += reply.iter().map(|(len, _)| u64::from(*len)).sum::<u64>();
        extents.extend(reply);
    }
    let pair = [(4096, DATA), (4096, HOLE)];
    assert_eq!(extents, pair.repeat((BYTES / 8192) as usize));
}

/// Other requests of the connection go on meanwhile, and all are answered.
#[test]
fn many_ask_at_once() {
    let (_file, storage) = sparse(SIZE, (0..1000).map(|page| page * 2));
    let server = Server::new(storage);
    let mut client = client(&server);
    let mixed: Vec<Request> = (0..200u64)
        .map(|at| if at % 3 == 0 { Request::read(at * 8192, 4096) } else { status(at * 8192, MIB) })
        .collect();
    for reply in client.exchange(&mixed) {
        assert_eq!(reply.errno, 0);
        assert!(reply.extents.is_empty() != reply.data.is_empty());
    }
    let asked = |ring: &RingFigures| ring.requests.iter().find(|(name, _)| *name == "block_status").map(|it| it.1);
    assert_eq!(asked(&server.export.ring(0).unwrap().figures), Some(133));
}

#[test]
fn memory_has_data_everywhere() {
    let server = Server::new(Scripted::new(SIZE));
    assert_eq!(client(&server).call(&status(0, SIZE)).extents, [(SIZE as u32, DATA)]);
}

/// A storage that cannot tell is an error of its request.
#[test]
fn a_storage_that_cannot_be_asked_is_an_error() {
    let storage = Scripted::new(SIZE);
    let server = Server::new(storage.clone());
    let mut client = client(&server);
    storage.fail(Some(libc::ENOMEM));
    assert_eq!(client.errno(&status(0, 4096)), super::client::ENOMEM);
    storage.fail(Some(libc::EUCLEAN));
    assert_eq!(client.errno(&status(0, 4096)), EIO);
    storage.fail(None);
    assert_eq!(client.call(&status(0, 4096)).extents, [(4096, DATA)]);
}

/// Work of storages does not wait for those who ask, however many they are.
#[test]
fn questions_that_take_their_time_keep_no_work_waiting() {
    let storage = Scripted::new(SIZE);
    let server = Server::new(storage.clone());
    storage.hold_looks(true);
    let mut asking: Vec<Client> = (0..4).map(|_| client(&server)).collect();
    asking.iter_mut().for_each(|client| drop(client.post_all(&[status(0, SIZE), status(0, 512)])));
    eventually("two are looked at", || storage.looks() == 2);
    // More than is done on the spot.
    let mut other = client(&server);
    other.ask(&Request::new(super::client::WRITE_ZEROES, 0, SIZE as u32));
    assert_eq!(storage.looks(), 2);
    storage.hold_looks(false);
    for client in &mut asking {
        assert_eq!([client.answer().extents, client.answer().extents], [[(SIZE as u32, DATA)], [(512, DATA)]]);
    }
}

/// Nobody waits for the answers.
#[test]
fn what_a_client_that_has_left_wanted_to_know_is_not_looked_for() {
    let storage = Scripted::new(SIZE);
    let server = Server::new(storage.clone());
    storage.hold_looks(true);
    let mut leaving = client(&server);
    leaving.post_all(&vec![status(0, SIZE); 100]);
    eventually("one is looked at", || storage.looks() == 1 && server.in_flight() == 100);
    drop(leaving);
    storage.hold_looks(false);
    eventually("it is gone", || server.connections() == 0);
    assert!(storage.looks() < 50, "{} were looked for", storage.looks());
    // Nor does the end of an export wait for them.
    storage.hold_looks(true);
    let before = storage.looks();
    let mut staying = client(&server);
    staying.post_all(&vec![status(0, SIZE); 100]);
    eventually("one is looked at", || storage.looks() == before + 1 && server.in_flight() == 100);
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| server.export.end());
        eventually("the others are left", || server.in_flight() <= 1);
        storage.hold_looks(false);
        ending.join().unwrap();
    });
    assert_eq!(storage.looks(), before + 1);
    let errors: Vec<_> = std::iter::from_fn(|| staying.next()).map(|answer| answer.errno).collect();
    assert_eq!(errors.iter().filter(|errno| **errno == super::client::ESHUTDOWN).count(), 99, "{errors:?}");
}

/// "The server MUST handle all outstanding requests" (under `NBD_CMD_DISC`), and the client is there.
#[test]
fn who_disconnects_behind_questions_is_answered() {
    let server = Server::new(Scripted::new(SIZE));
    for disconnects in [true, false] {
        let mut client = client(&server);
        client.post_all(&vec![status(0, SIZE); 200]);
        match disconnects {
            true => client.disconnect(),
            false => client.stream.shutdown(std::net::Shutdown::Write).unwrap(),
        }
        for _ in 0..200 {
            let answer = client.answer();
            assert_eq!((answer.errno, answer.extents), (0, vec![(SIZE as u32, DATA)]));
        }
        assert_eq!(client.next(), None);
    }
}

/// A disk whose storage does not answer is no other's trouble, whatever is asked of both.
#[test]
fn a_storage_that_hangs_keeps_no_other_waiting() {
    let (hanging, healthy) = (Scripted::new(SIZE), Scripted::new(SIZE));
    let (one, other) = (Server::new(hanging.clone()), Server::new(healthy));
    hanging.hold_looks(true);
    let mut asking: Vec<Client> = (0..8).map(|_| client(&one)).collect();
    asking.iter_mut().for_each(|client| drop(client.post_all(&[status(0, SIZE)])));
    eventually("some are looked at", || hanging.looks() == 2);
    assert_eq!(client(&other).call(&status(0, SIZE)).extents, [(SIZE as u32, DATA)]);
    assert_eq!(hanging.looks(), 2, "the one still hangs, and has no more threads than its own");
    hanging.hold_looks(false);
    asking.iter_mut().for_each(|client| assert_eq!(client.answer().errno, 0));
}
