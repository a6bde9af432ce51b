//! What of a disk is dirty, as clients are told that copy what was written since another moment.

use super::client::{
    ACK, BLOCK_STATUS, Client, EINVAL, ERR_INVALID, ERR_UNKNOWN, REQ_ONE, Request, contexts_of, option, option_of,
};
use super::server::{HANG, Like, Scripted, Server, memory};
use export::{DirtyBitmap, NbdOptions};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
const DATA: u32 = 0;
const CLEAN: u32 = 0;
const DIRTY: u32 = 1;
const ALLOCATION: &str = "base:allocation";
const DAILY: &str = "qemu:dirty-bitmap:daily";
const NAME: &str = "db";

/// Of these ranges.
fn bitmap(dirty: Vec<Range<u64>>) -> Arc<DirtyBitmap> {
    let first = move |asked: &Range<u64>| {
        let part = |range: &Range<u64>| range.start.max(asked.start)..range.end.min(asked.end);
        dirty.iter().map(part).find(|part| !part.is_empty())
    };
    Arc::new(DirtyBitmap::new("daily", first))
}

fn like(dirty: Vec<Range<u64>>) -> Like {
    Like {
        nbd: NbdOptions { name: Some(NAME.to_owned()), bitmap: Some(bitmap(dirty)), ..NbdOptions::default() },
        ..Like::default()
    }
}

fn server() -> Server {
    Server::like(&like(vec![4096..8192, MIB..2 * MIB]), Arc::new(memory(SIZE)))
}

fn client(server: &Server, contexts: &[&str]) -> Client {
    let mut handshake = server.handshake().structured();
    assert_eq!(handshake.contexts(option::SET_META_CONTEXT, NAME, contexts), contexts);
    handshake.go(NAME)
}

fn status(offset: u64, len: u64) -> Request {
    Request::new(BLOCK_STATUS, offset, len as u32)
}

#[test]
fn a_disk_may_have_another_name_than_its_export() {
    let server = server();
    let mut client = server.handshake().go(NAME);
    assert_eq!(client.read(0, 512), [0; 512]);
    let mut handshake = server.handshake();
    assert_eq!(handshake.kind(option::INFO, &super::client::go_of(super::server::NAME.as_bytes(), &[])), ERR_UNKNOWN);
    assert_eq!(handshake.ask(option::LIST, b"")[0].data[4..], *NAME.as_bytes());
}

#[test]
fn contexts_are_listed_by_namespace_and_chosen_by_name() {
    let server = server();
    let mut handshake = server.handshake().structured();
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (&[], &[ALLOCATION, DAILY], &[]),
        (&["qemu:"], &[DAILY], &[]),
        (&["base:", "qemu:dirty-bitmap:"], &[ALLOCATION, DAILY], &[]),
        (&[DAILY], &[DAILY], &[DAILY]),
        // Each once, however often it is asked for.
        (&[DAILY, ALLOCATION, DAILY, "qemu:"], &[ALLOCATION, DAILY], &[ALLOCATION, DAILY]),
        (&["qemu:dirty-bitmap:weekly", "qemu:allocation-depth", "x:", ALLOCATION], &[ALLOCATION], &[ALLOCATION]),
        (&["qemu:dirty-bitmap:dail", "qemu:dirty-bitmap:daily2", "daily"], &[], &[]),
    ];
    for (queries, listed, chosen) in cases {
        assert_eq!(handshake.contexts(option::LIST_META_CONTEXT, NAME, queries), listed, "{queries:?}");
        assert_eq!(handshake.contexts(option::SET_META_CONTEXT, NAME, queries), chosen, "{queries:?}");
    }
}

#[test]
fn what_is_dirty_is_told_of_what_was_chosen() {
    let server = server();
    let dirty = [(4096, CLEAN), (4096, DIRTY), ((MIB - 8192) as u32, CLEAN), (MIB as u32, DIRTY)];
    let rest = ((SIZE - 2 * MIB) as u32, CLEAN);
    let mut both = client(&server, &[ALLOCATION, DAILY]);
    let reply = both.call(&status(0, SIZE));
    assert_eq!((reply.extents, reply.dirty), (vec![(SIZE as u32, DATA)], [&dirty[..], &[rest]].concat()));
    let mut one = client(&server, &[DAILY]);
    assert_eq!(one.call(&status(0, 2 * MIB)).dirty, dirty);
    assert_eq!(one.call(&status(4096, SIZE - 4096).with(REQ_ONE)).dirty, [(4096, DIRTY)]);
    assert_eq!(one.call(&status(4608, 512)).dirty, [(512, DIRTY)]);
    // It is of one moment, whatever is written.
    one.write(0, &[7; 4096]);
    assert_eq!(one.call(&status(0, 8192)).dirty, dirty[..2]);
    let mut none = client(&server, &[]);
    assert_eq!(none.errno(&status(0, 4096)), EINVAL);
    // What was chosen last counts, of all contexts.
    let mut handshake = server.handshake().structured();
    handshake.contexts(option::SET_META_CONTEXT, NAME, &[ALLOCATION, DAILY]);
    handshake.contexts(option::SET_META_CONTEXT, NAME, &[ALLOCATION]);
    let reply = handshake.go(NAME).call(&status(0, SIZE));
    assert_eq!((reply.extents.len(), reply.dirty.len()), (1, 0));
}

#[test]
fn a_block_with_something_dirty_is_dirty() {
    let like = Like { block_size_bytes: 4096, ..like(vec![4608..5120, 8192 + 512..16384]) };
    let server = Server::like(&like, Arc::new(memory(SIZE)));
    let reply = client(&server, &[DAILY]).call(&status(0, 20480));
    assert_eq!(reply.dirty, [(4096, CLEAN), (12288, DIRTY), (4096, CLEAN)]);
}

/// Who only wants to know what is dirty does not ask the storage.
#[test]
fn a_storage_that_cannot_tell_where_it_has_data_can_be_dirty() {
    let storage = Scripted::new(SIZE);
    let server = Server::like(&like(std::iter::once(0..SIZE).collect()), storage.clone());
    let (mut one, mut both) = (client(&server, &[DAILY]), client(&server, &[ALLOCATION, DAILY]));
    storage.fail(Some(libc::EUCLEAN));
    assert_eq!(one.call(&status(0, SIZE)).dirty, [(SIZE as u32, DIRTY)]);
    assert_eq!(storage.looks(), 0);
    assert_eq!(both.errno(&status(0, SIZE)), super::client::EIO);
}

/// As many extents as one reply may have, and the rest for who asks again.
#[test]
fn a_long_answer_comes_in_parts() {
    let every_other = (0..SIZE / 1024).map(|pair| pair * 1024 + 512..pair * 1024 + 1024).collect();
    let server = Server::like(&like(every_other), Arc::new(memory(SIZE)));
    let mut client = client(&server, &[ALLOCATION, DAILY]);
    let (mut at, mut replies) = (0, 0);
    while at < SIZE {
        let dirty = client.call(&status(at, SIZE - at)).dirty;
        assert!(dirty.len() <= 2048 && dirty.iter().step_by(2).all(|extent| *extent == (512, CLEAN)));
        assert!(dirty.iter().skip(1).step_by(2).all(|extent| *extent == (512, DIRTY)));
        at += dirty.iter().map(|(len, _)| u64::from(*len)).sum::<u64>();
        replies += 1;
    }
    assert_eq!(replies, SIZE / 512 / 2048);
}

/// A client that asks for much has an answer soon, and no more memory than others.
#[test]
fn many_queries_and_contexts_that_are_not_there_are_bounded() {
    let server = server();
    let begin = Instant::now();
    let mut handshake = server.handshake().structured();
    let many = vec!["qemu:"; 1500];
    assert_eq!(handshake.contexts(option::LIST_META_CONTEXT, NAME, &many), [DAILY]);
    assert!(handshake.contexts(option::SET_META_CONTEXT, NAME, &many).is_empty());
    let long = format!("qemu:dirty-bitmap:{}", "d".repeat(4000));
    assert!(handshake.contexts(option::SET_META_CONTEXT, NAME, &[&long]).is_empty());
    let longer = format!("qemu:dirty-bitmap:{}", "d".repeat(4096));
    assert_eq!(handshake.kind(option::SET_META_CONTEXT, &contexts_of(NAME.as_bytes(), &[&longer])), ERR_INVALID);
    // A number of queries that lies.
    let mut lies = contexts_of(NAME.as_bytes(), &[DAILY]);
    lies[4 + NAME.len()..][..4].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(handshake.kind(option::SET_META_CONTEXT, &lies), ERR_INVALID);
    let mut client = handshake.go(NAME);
    assert_eq!(client.errno(&status(0, 4096)), EINVAL, "nothing is chosen by what fails");
    // More than is looked at ends the connection.
    let mut other = server.handshake().structured();
    let _ = other
        .stream
        .write_all(&option_of(option::SET_META_CONTEXT, &contexts_of(NAME.as_bytes(), &vec!["qemu:"; 3000])));
    assert_eq!(other.next(), None);
    assert!(begin.elapsed() < HANG);
    assert_eq!(server.handshake().go(NAME).read(0, 512), [0; 512]);
    assert_eq!(server.handshake().kind(option::ABORT, b""), ACK);
}
