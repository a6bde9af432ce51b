//! What is written is what is read, whatever executes it and however it is answered.

use super::client::{Client, FUA, NO_HOLE, READ, REPLIES, Replies, Request, TRIM, WRITE, WRITE_ZEROES};
use super::server::{Like, Random, Scripted, Server, eventually, memory, pattern};
use std::sync::Arc;
use storage::{
    Execution, FileOptions, FileStorage, NullOptions, NullStorage, Operation, SimOptions, SimStorage, Storage,
};
use values::{ByteSize, Span};

const BLOCK: usize = 512;
/// Blocks that one client has for itself.
const REGION: usize = 1024;
const CLIENTS: usize = 4;
const DISK_BYTES: u64 = (CLIENTS * REGION * BLOCK) as u64;

/// A client, and what its part of the disk must be.
struct Load {
    client: Client,
    first: usize,
    bytes: Vec<u8>,
    /// Of each block: nobody knows what is in one that was trimmed.
    known: Vec<bool>,
    random: Random,
}

impl Load {
    fn new(client: Client, number: usize) -> Load {
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
        Load { client, first: number * REGION, bytes: vec![0; REGION * BLOCK], known: vec![true; REGION], random }
    }

    /// Requests that do not overlap, in no order, with flushes among them.
    fn requests(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        let mut block = self.random.below(64);
        while block < REGION {
            let most = if self.random.below(10) == 0 { 300 } else { 24 };
            let blocks = (1 + self.random.below(most)).min(REGION - block);
            let (offset, len) = (((self.first + block) * BLOCK) as u64, blocks * BLOCK);
            let flags = if self.random.below(4) == 0 { FUA } else { 0 };
            requests.push(match self.random.below(8) {
                0..3 => Request::write(offset, &pattern(len, self.random.next())).with(flags),
                3 => Request::new(TRIM, offset, len as u32).with(flags),
                4 => Request::new(WRITE_ZEROES, offset, len as u32).with(flags),
                5 => Request::new(WRITE_ZEROES, offset, len as u32).with(flags | NO_HOLE),
                _ => Request::read(offset, len as u32).with(flags),
            });
            block += blocks + self.random.below(16);
        }
        requests.extend([Request::flush(), Request::flush()]);
        for last in (1..requests.len()).rev() {
            requests.swap(last, self.random.below(last + 1));
        }
        requests
    }

    /// Asks for some requests at once, and holds the replies against what is known.
    fn round(&mut self) {
        let requests = self.requests();
        let replies = self.client.exchange(&requests);
        for (request, reply) in requests.iter().zip(replies) {
            assert_eq!(reply.errno, 0, "{} at {}", request.command, request.offset);
            let at = (request.offset as usize).saturating_sub(self.first * BLOCK);
            let range = at..at + request.len as usize;
            let blocks = range.start / BLOCK..range.end / BLOCK;
            match request.command {
                READ => {
                    for (block, data) in blocks.zip(reply.data.chunks(BLOCK)) {
                        self.check(block, data);
                    }
                }
                WRITE => self.bytes[range].copy_from_slice(&request.data),
                WRITE_ZEROES => self.bytes[range].fill(0),
                TRIM => {
                    self.known[blocks].fill(false);
                    continue;
                }
                _ => continue,
            }
            if request.command != READ {
                self.known[at / BLOCK..(at + request.len as usize) / BLOCK].fill(true);
            }
        }
    }

    fn check(&self, block: usize, data: &[u8]) {
        let expected = &self.bytes[block * BLOCK..][..BLOCK];
        assert!(!self.known[block] || data == expected, "block {} is not what was written", self.first + block);
    }

    /// Holds all of the client's part against the whole disk.
    fn check_all(&self, disk: &[u8]) {
        for block in 0..REGION {
            self.check(block, &disk[(self.first + block) * BLOCK..][..BLOCK]);
        }
    }
}

/// Several clients, half of them with structured replies, write and read at once, each its own part; the disk is what they have
/// made of it.
fn play(server: &Server, rounds: usize) -> Vec<Load> {
    let mut loads: Vec<_> = (0..CLIENTS).map(|number| Load::new(server.client(REPLIES[number % 2]), number)).collect();
    std::thread::scope(|scope| {
        for load in &mut loads {
            scope.spawn(move || (0..rounds).for_each(|_| load.round()));
        }
    });
    let disk = server.contents(DISK_BYTES as usize);
    loads.iter().for_each(|load| load.check_all(&disk));
    assert!(loads.iter().any(|load| load.known.contains(&true) && load.bytes.iter().any(|byte| *byte != 0)));
    assert_eq!(server.export.failure(), None);
    loads
}

#[test]
fn memory_is_what_several_clients_make_of_it() {
    for workers in [1, 3] {
        let server = Server::like(&Like { workers, ..Like::default() }, Arc::new(memory(DISK_BYTES)));
        play(&server, 40);
    }
}

#[test]
fn a_file_is_what_several_clients_make_of_it() {
    for execution in [Execution::Auto, Execution::Uring, Execution::Inline, Execution::Pool(3)] {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(DISK_BYTES).unwrap();
        let options = FileOptions { execution, ..FileOptions::new(image.path()) };
        let server =
            Server::like(&Like { workers: 2, ..Like::default() }, Arc::new(FileStorage::open(&options).unwrap()));
        let loads = play(&server, 6);
        let file = std::fs::read(image.path()).unwrap();
        loads.iter().for_each(|load| load.check_all(&file));
    }
}

#[test]
fn storage_that_takes_its_time_is_what_several_clients_make_of_it() {
    for execution in [Execution::Auto, Execution::Pool(4)] {
        let storage = SimStorage::open(&SimOptions { execution, ..SimOptions::new(ByteSize(DISK_BYTES)) }).unwrap();
        play(&Server::new(Arc::new(storage)), 10);
    }
}

#[test]
fn the_longest_write_and_read_go_through() {
    const LONGEST: usize = 32 << 20;
    let server = Server::of_memory(LONGEST as u64 + (1 << 20));
    for replies in REPLIES {
        let mut client = server.client(replies);
        let content = pattern(LONGEST, replies as u64);
        client.write(4096, &content);
        assert!(client.read(4096, LONGEST) == content, "{replies:?}");
        assert_eq!(client.read(0, 4096), [0; 4096]);
        assert_eq!(client.read((LONGEST + 4096) as u64, 4096), [0; 4096]);
    }
    // Several at once, with short ones between them.
    let mut client = server.client(Replies::Structured);
    let content = pattern(LONGEST, 1);
    let long = Request::read(4096, LONGEST as u32);
    let short = Request::read(8192, 4096);
    for (number, reply) in client.exchange(&[long.clone(), short.clone(), long, short]).iter().enumerate() {
        let expected = if number % 2 == 0 { &content[..] } else { &content[4096..8192] };
        assert!(reply.errno == 0 && reply.data == expected, "{number}");
    }
    let moved = |of: fn(&export::RingFigures) -> u64| -> u64 {
        server.export.rings().iter().map(|ring| of(&ring.figures)).sum()
    };
    assert_eq!(moved(|ring| ring.bytes_read), (4 * LONGEST + 6 * 4096) as u64);
    assert_eq!(moved(|ring| ring.bytes_written), 2 * LONGEST as u64);
}

#[test]
fn requests_of_any_size_come_one_behind_the_other() {
    let server = Server::of_memory(8 << 20);
    let mut random = Random(77);
    for replies in REPLIES {
        let mut client = server.client(replies);
        let sizes: Vec<_> = [1, 8, 63, 64, 65, 128, 500, 2000, 1, 1, 3000, 1, 2].map(|blocks| blocks * BLOCK).into();
        let mut writes = Vec::new();
        let mut offset = 0;
        for size in &sizes {
            writes.push(Request::write(offset, &pattern(*size, random.next())));
            offset += *size as u64;
        }
        assert!(client.exchange(&writes).iter().all(|reply| reply.errno == 0));
        let reads: Vec<_> = writes.iter().map(|write| Request::read(write.offset, write.len)).collect();
        for (write, reply) in writes.iter().zip(client.exchange(&reads)) {
            assert!(reply.data == write.data, "{replies:?} {}", write.offset);
        }
        // A byte at a time.
        let (cookie, bytes) = client.encode(&Request::write(1024, &pattern(1024, 5)));
        bytes.iter().for_each(|byte| client.send(&[*byte]));
        let reply = client.answer();
        assert_eq!((reply.cookie, reply.errno), (cookie, 0));
        assert_eq!(client.read(512, 2048)[512..1536], pattern(1024, 5));
    }
}

#[test]
fn nothing_is_read_and_written_where_a_request_is_of_nothing() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    for replies in REPLIES {
        let mut client = server.client(replies);
        for command in [READ, WRITE, TRIM, WRITE_ZEROES] {
            for offset in [0, 4096, 1 << 20] {
                let data = client.ask(&Request::new(command, offset, 0));
                assert!(data.is_empty(), "{command}");
            }
        }
    }
    assert_eq!(storage.asked(), []);
}

#[test]
fn replies_come_as_requests_end_and_are_told_apart_by_their_cookies() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    server.client(Replies::Simple).write(0, &pattern(1 << 20, 3));
    for replies in REPLIES {
        let mut client = server.client(replies);
        storage.hold(|operation| matches!(operation, Operation::Read { offset } if offset % 8192 == 0));
        let reads: Vec<_> = (0..16).map(|number| Request::read(number * 4096, 4096 + 512 * number as u32)).collect();
        let cookies = client.post_all(&reads);
        let mut answered = Vec::new();
        for number in 0..16 {
            if number == 8 {
                // The others wait, and whatever came behind them is answered.
                assert!(answered.iter().all(|cookie| cookies.iter().skip(1).step_by(2).any(|odd| odd == cookie)));
                storage.release();
            }
            let reply = client.answer();
            let which = cookies.iter().position(|cookie| *cookie == reply.cookie).unwrap();
            assert!(!answered.contains(&reply.cookie), "answered twice");
            let (at, len) = (which * 4096, 4096 + 512 * which);
            assert!(reply.errno == 0 && reply.data == pattern(1 << 20, 3)[at..at + len], "{replies:?} {which}");
            answered.push(reply.cookie);
        }
    }
}

#[test]
fn requests_of_one_connection_are_in_flight_together() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    let mut client = server.client(Replies::Structured);
    let reads = (0..400).map(|number| Request::read(number % 256 * 4096, 512)).collect();
    let reads: Vec<_> = reads;
    // Large ones have buffers of which there are less than requests.
    let large = vec![Request::read(0, 1 << 20); 400];
    for (requests, bytes, at_once) in [(reads, 512, 256), (vec![Request::flush(); 400], 0, 256), (large, 1 << 20, 16)] {
        storage.hold(|_| true);
        client.post_all(&requests);
        // More of them wait until some have been answered.
        eventually("as many as may be are in flight", || server.in_flight() == at_once);
        storage.release();
        for _ in 0..400 {
            let reply = client.answer();
            assert_eq!((reply.errno, reply.data), (0, vec![0; bytes]));
        }
        eventually("nothing is in flight", || server.in_flight() == 0);
        assert_eq!(storage.asked().len(), 400);
        assert!(server.export.ring(0).unwrap().figures.in_flight_max >= at_once);
    }
}

/// What the storage is asked for by one request.
fn asked(client: &mut Client, storage: &Scripted, request: &Request) -> Vec<Operation> {
    client.ask(request);
    storage.asked()
}

#[test]
fn the_storage_is_asked_for_what_the_flags_say() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(storage.clone());
    let mut client = server.client(Replies::Simple);
    let (offset, len) = (4096, 8192);
    let data = pattern(8192, 1);
    for (flags, durable) in [(0, false), (FUA, true)] {
        let write = Request::write(offset, &data).with(flags);
        assert_eq!(asked(&mut client, &storage, &write), [Operation::Write { offset, durable }]);
        for (no_hole, unmap) in [(0, true), (NO_HOLE, false)] {
            let zeroes = Request::new(WRITE_ZEROES, offset, len as u32).with(flags | no_hole);
            let expected = Operation::WriteZeroes { offset, len, unmap, durable };
            assert_eq!(asked(&mut client, &storage, &zeroes), [expected]);
        }
        let read = Request::read(offset, len as u32).with(flags);
        assert_eq!(asked(&mut client, &storage, &read), [Operation::Read { offset }]);
        assert_eq!(asked(&mut client, &storage, &Request::flush().with(flags)), [Operation::Flush]);
    }
    let trim = Request::new(TRIM, offset, len as u32);
    assert_eq!(asked(&mut client, &storage, &trim), [Operation::Discard { offset, len }]);
    let durably = [Operation::Discard { offset, len }, Operation::Flush];
    assert_eq!(asked(&mut client, &storage, &trim.with(FUA)), durably);
}

#[test]
fn a_disk_without_a_write_cache_writes_durably() {
    let storage = Scripted::new(1 << 20);
    let server = Server::like(&Like { write_back: false, ..Like::default() }, storage.clone());
    let mut client = server.client(Replies::Simple);
    let (offset, len) = (4096, 4096);
    let write = Request::write(offset, &[1; 4096]);
    assert_eq!(asked(&mut client, &storage, &write), [Operation::Write { offset, durable: true }]);
    let zeroes = Request::new(WRITE_ZEROES, offset, len as u32);
    let expected = Operation::WriteZeroes { offset, len, unmap: true, durable: true };
    assert_eq!(asked(&mut client, &storage, &zeroes), [expected]);
}

#[test]
fn long_ranges_are_done_in_parts_and_whole() {
    const GIB: u64 = 1 << 30;
    let storage = Scripted::new(4 * GIB);
    let server = Server::new(storage.clone());
    let mut client = server.client(Replies::Structured);
    let marks = [0, GIB, 2 * GIB - 512, 2 * GIB, 3 * GIB - 512, 3 * GIB, 4 * GIB - 512];
    for (command, first) in [(WRITE_ZEROES, 0), (TRIM, 0), (WRITE_ZEROES, GIB)] {
        marks.iter().for_each(|mark| client.write(*mark, &[0xcc; 512]));
        storage.asked();
        let operations = asked(&mut client, &storage, &Request::new(command, first, 3 << 30).with(FUA));
        let mut next = first;
        for operation in &operations {
            match *operation {
                Operation::WriteZeroes { offset, len, unmap: true, durable: true } if command == WRITE_ZEROES => {
                    assert_eq!(offset, next);
                    next += len;
                }
                Operation::Discard { offset, len } if command == TRIM => {
                    assert_eq!(offset, next);
                    next += len;
                }
                Operation::Flush if command == TRIM => assert_eq!(next, first + 3 * GIB),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((next, operations.len()), (first + 3 * GIB, if command == TRIM { 3 } else { 2 }));
        for mark in marks {
            let inside = (first..first + 3 * GIB).contains(&mark);
            if !inside || command == WRITE_ZEROES {
                assert_eq!(client.read(mark, 512), [if inside { 0 } else { 0xcc }; 512], "{mark}");
            }
        }
    }
}

#[test]
fn a_flush_waits_for_what_was_answered_before_it() {
    // The simulated device loses nothing, but its flush fails: only a request that flushes is told.
    let options = SimOptions {
        flush_error_rate: Some(1.0),
        write_latency: Span::default(),
        ..SimOptions::new(ByteSize(1 << 20))
    };
    let server = Server::new(Arc::new(SimStorage::open(&options).unwrap()) as Arc<dyn Storage>);
    let mut client = server.client(Replies::Simple);
    client.write(0, &[1; 4096]);
    client.ask(&Request::new(TRIM, 8192, 4096));
    assert_eq!(client.errno(&Request::new(TRIM, 8192, 4096).with(FUA)), super::client::EIO);
    assert_eq!(client.errno(&Request::flush()), super::client::EIO);
    assert_eq!(client.read(0, 4096), [1; 4096]);
}

/// A guest's memory stays as it is; what a client is sent was the daemon's, and may have been another's.
#[test]
fn a_storage_without_contents_shows_nothing_of_others() {
    let other = Server::of_memory(4 << 20);
    let nothing = NullOptions { size: ByteSize(4 << 20), ..NullOptions::default() };
    let server = Server::new(Arc::new(NullStorage::open(&nothing).unwrap()));
    for replies in REPLIES {
        for bytes in [512, 20_480, 70_144, 1 << 20] {
            let secret = pattern(bytes, 7);
            let mut client = other.client(replies);
            client.write(0, &secret);
            assert_eq!(client.read(0, bytes), secret);
            drop(client);
            let mut client = server.client(replies);
            for _ in 0..8 {
                assert!(client.read(0, bytes).iter().all(|byte| *byte == 0), "{bytes}");
            }
        }
    }
}
