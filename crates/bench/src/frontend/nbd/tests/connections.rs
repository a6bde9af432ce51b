//! One connection, message by message.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::server::{Manners, answer};
use crate::frontend::buffers::Buffers;
use crate::frontend::nbd::Connection;
use crate::frontend::nbd::spec::{REQUEST_BYTES, command};
use crate::frontend::queue::Completion;

/// A limit for what comes at once.
const SOON: Duration = Duration::from_secs(20);
/// A time in which nothing comes.
const SHORT: Duration = Duration::from_millis(5);

/// A connection, the buffers of its slots, and its other end.
struct Fixture {
    connection: Connection,
    buffers: Buffers,
    server: UnixStream,
    _memory: Vec<u8>,
}

impl Fixture {
    fn new(depth: u16, block: usize) -> Self {
        let (client, server) = UnixStream::pair().unwrap();
        let mut memory = vec![0; usize::from(depth) * block];
        let buffers = Buffers::at(memory.as_mut_ptr() as usize, block, block).unwrap();
        let connection = Connection::new(client.into(), depth, block as u32);
        Self { connection, buffers, server, _memory: memory }
    }

    fn read(&mut self, offset: u64, slot: u16) {
        self.connection.read(offset, self.buffers.lend(slot), slot);
    }

    fn write(&mut self, offset: u64, slot: u16) {
        self.connection.write(offset, self.buffers.lend(slot), slot);
    }

    /// Sends what is ready; nothing has come.
    fn send(&mut self) {
        assert_eq!(self.connection.reap(0, SHORT).unwrap(), 0);
    }

    /// The cookies of so many requests without data, as the server receives them.
    fn cookies(&mut self, count: usize) -> Vec<[u8; 8]> {
        let mut heads = vec![0; count * REQUEST_BYTES];
        self.server.read_exact(&mut heads).unwrap();
        heads.chunks(REQUEST_BYTES).map(|head| head[8..16].try_into().unwrap()).collect()
    }

    fn say(&mut self, bytes: &[u8]) {
        self.server.write_all(bytes).unwrap();
    }

    fn reap(&mut self, least: usize) -> Vec<Completion> {
        let count = self.connection.reap(least, SOON).unwrap();
        (0..count).map(|index| self.connection.completion(index)).collect()
    }

    fn error(&mut self) -> String {
        self.connection.reap(1, SOON).unwrap_err().to_string()
    }
}

fn reply(error: u32, cookie: [u8; 8], data: &[u8]) -> Vec<u8> {
    [&b"\x67\x44\x66\x98"[..], &error.to_be_bytes(), &cookie, data].concat()
}

fn done(slot: u16) -> Completion {
    Completion { slot, result: 0 }
}

#[test]
fn requests_go_out_together_with_their_data_behind_them() {
    let mut it = Fixture::new(3, 512);
    it.buffers.slice(1).fill(0x5a);
    it.read(1024, 0);
    it.write(512, 1);
    it.connection.flush(2);
    it.send();
    let mut seen = [0; 3 * REQUEST_BYTES + 512];
    it.server.read_exact(&mut seen).unwrap();
    let (read, rest) = seen.split_at(REQUEST_BYTES);
    let (write, rest) = rest.split_at(REQUEST_BYTES);
    let (data, flush) = rest.split_at(512);
    assert_eq!((read[7], &read[16..]), (0, &b"\0\0\0\0\0\0\x04\0\0\0\x02\0"[..]));
    assert_eq!((write[7], &write[16..]), (1, &b"\0\0\0\0\0\0\x02\0\0\0\x02\0"[..]));
    assert!(data.iter().all(|byte| *byte == 0x5a));
    assert_eq!((flush[7], &flush[16..]), (3, &[0; 12][..]));
}

#[test]
fn replies_in_any_order_and_in_pieces_find_their_slots() {
    for block in [512, 32 << 10] {
        let mut it = Fixture::new(3, block);
        (0..3).for_each(|slot| it.read(0, slot));
        it.send();
        let cookies = it.cookies(3);
        let data = |slot: usize| vec![slot as u8 + 1; block];
        let all: Vec<u8> = [2, 0, 1].into_iter().flat_map(|slot| reply(0, cookies[slot], &data(slot))).collect();
        let mut completed = Vec::new();
        for piece in all.chunks(block / 3 + 1) {
            it.say(piece);
            completed.extend(it.reap(0));
        }
        assert_eq!(completed, [done(2), done(0), done(1)]);
        (0..3).for_each(|slot| assert_eq!(*it.buffers.slice(slot), *data(slot.into()), "slot {slot} of {block}"));
    }
}

#[test]
fn as_many_completions_are_waited_for_as_are_wanted() {
    let mut it = Fixture::new(3, 512);
    (0..3).for_each(|slot| it.connection.flush(slot));
    assert_eq!(it.connection.reap(1, SHORT).unwrap(), 0, "nothing has been answered");
    let cookies = it.cookies(3);
    let mut server = it.server.try_clone().unwrap();
    let answers = thread::spawn(move || {
        for cookie in cookies {
            for byte in reply(0, cookie, &[]) {
                server.write_all(&[byte]).unwrap();
                thread::yield_now();
            }
        }
    });
    assert_eq!(it.reap(3), [done(0), done(1), done(2)]);
    answers.join().unwrap();
    assert_eq!(it.connection.reap(1, SOON).unwrap(), 0, "nothing is in flight, so nothing is waited for");
}

#[test]
fn errors_are_negative_numbers_and_have_no_data() {
    let mut it = Fixture::new(3, 512);
    (0..3).for_each(|slot| it.read(0, slot));
    it.send();
    let cookies = it.cookies(3);
    it.say(&[reply(5, cookies[0], &[]), reply(u32::MAX, cookies[1], &[]), reply(0, cookies[2], &[7; 512])].concat());
    assert_eq!(it.reap(3), [Completion { slot: 0, result: -5 }, Completion { slot: 1, result: -5 }, done(2)]);
    assert_eq!(*it.buffers.slice(2), [7; 512]);
}

#[test]
fn a_reply_to_nothing_ends_the_connection() {
    let asked = || {
        let mut it = Fixture::new(2, 512);
        it.connection.flush(0);
        it.send();
        let cookie = it.cookies(1)[0];
        (it, cookie)
    };
    let (mut it, _) = asked();
    it.say(&reply(0, 1_u64.to_be_bytes(), &[]));
    assert_eq!(it.error(), "a reply has the cookie 0x1, which no request in flight has");
    let (mut it, _) = asked();
    it.say(&reply(0, 0xffff_u64.to_be_bytes(), &[]));
    assert_eq!(it.error(), "a reply has the cookie 0xffff, which no request in flight has");
    let (mut it, cookie) = asked();
    it.say(&reply(0, cookie, &[]));
    assert_eq!(it.reap(1), [done(0)]);
    // The same slot again: the old cookie is nobody's.
    it.connection.flush(0);
    it.say(&reply(0, cookie, &[]));
    assert_eq!(it.error(), "a reply has the cookie 0x0, which no request in flight has");
    let (mut it, cookie) = asked();
    it.say(&[&b"\x66\x8e\x33\xef"[..], &[0; 4], &cookie].concat());
    assert_eq!(it.error(), "a reply begins with 0x668e33ef, which is no simple reply");
}

#[test]
fn a_write_is_not_answered_before_it_is_sent() {
    let mut it = Fixture::new(1, 8 << 20);
    it.write(0, 0);
    // The first write's cookie. No socket holds its data.
    it.say(&reply(0, [0; 8], &[]));
    assert_eq!(it.error(), "a write was answered before its data was sent");
}

#[test]
fn a_server_that_hangs_up_is_said_to() {
    let mut it = Fixture::new(2, 512);
    (0..2).for_each(|slot| it.read(0, slot));
    it.send();
    let cookie = it.cookies(2)[0];
    it.say(&reply(0, cookie, &[0; 100]));
    it.server.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(it.error(), "the server closed it with 2 requests in flight");
    assert_eq!(it.error(), "the server closed it with 2 requests in flight");
    it.connection.flush(1);
    assert_eq!(it.error(), "the server closed it with 3 requests in flight");
}

#[test]
fn replies_are_taken_while_a_server_takes_no_requests() {
    // It writes each reply before it reads on, and no socket holds 32 of 64 KiB: neither the requests nor the replies.
    const BLOCK: usize = 64 << 10;
    let mut it = Fixture::new(64, BLOCK);
    let mut server = it.server.try_clone().unwrap();
    let serving = thread::spawn(move || {
        let disk = Mutex::new(vec![0x33; 64 * BLOCK]);
        for _ in 0..3 * 64 {
            let reply = answer(&mut server, &disk, &Manners::default()).unwrap();
            server.write_all(&reply).unwrap();
        }
        disk.into_inner().unwrap()
    });
    let offset = |slot: u16| u64::from(slot) * BLOCK as u64;
    let mut ended = 0;
    let mut free: Vec<u16> = (0..64).rev().collect();
    let mut begun = 0;
    while ended < 3 * 64 {
        while let Some(slot) = free.pop_if(|_| begun < 3 * 64) {
            if begun % 2 == 0 {
                it.read(offset(slot), slot);
            } else {
                it.buffers.slice(slot).fill(slot as u8);
                it.write(offset(slot), slot);
            }
            begun += 1;
        }
        let completed = it.reap(1);
        assert!(completed.iter().all(|completion| completion.result == 0));
        ended += completed.len();
        free.extend(completed.iter().map(|completion| completion.slot));
    }
    let disk = serving.join().unwrap();
    for (slot, block) in disk.chunks(BLOCK).enumerate() {
        assert!(block.iter().all(|byte| *byte == 0x33) || block.iter().all(|byte| usize::from(*byte) == slot));
    }
}

#[test]
fn a_server_is_told_that_the_client_goes() {
    let mut it = Fixture::new(1, 512);
    it.connection.flush(0);
    it.send();
    let cookie = it.cookies(1)[0];
    it.say(&reply(0, cookie, &[]));
    assert_eq!(it.reap(1), [done(0)]);
    let Fixture { connection, mut server, .. } = it;
    drop(connection);
    let mut said = Vec::new();
    server.read_to_end(&mut said).unwrap();
    assert_eq!((said.len(), said[6..8].to_vec()), (REQUEST_BYTES, command::DISC.to_be_bytes().to_vec()));
}
