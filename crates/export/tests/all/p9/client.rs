//! A 9P2000.L client on that driver, and the server that it talks to.

use crate::p9::guest::{Guest, PATIENCE, Reply, Sent};
use device::p9::Kind;
use engine::{Execution, Placement, Poll, WorkerSpec};
use export::{Carried, Content, Engine, Export, Hosting, P9Options, P9Policy, P9Status, Socket};
use passthrough::{Options, Source, Tree};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;
use vhost_user::SocketOptions;

/// Largest message that the client asks for, in bytes.
pub(crate) const MSIZE: u32 = 8192;
pub(crate) const ROOT: u32 = 1;
/// Type of an answer that says what went wrong (Rlerror).
pub(crate) const ERROR: u8 = 7;
const NONE: u32 = u32::MAX;

/// A directory and the socket at which it is served.
pub(crate) struct Server {
    pub(crate) export: Export,
    pub(crate) engine: Engine,
    /// What is served.
    pub(crate) shared: TempDir,
    dir: TempDir,
}

impl Server {
    pub(crate) fn new(queues: u16, execution: Execution, options: Options) -> Server {
        let (dir, shared) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let tree = Arc::new(Tree::new(Source::Path(shared.path().to_owned()), options).unwrap());
        let hosting = Hosting {
            name: "shared".to_owned(),
            socket: Socket::Path { path: dir.path().join("9p.sock"), options: SocketOptions::default() },
            queue_size_max: 256,
            placement: Placement::One,
            poll: Poll::Off,
            workers: WorkerSpec::default(),
            session_ended: None,
            failed: None,
            carried: Carried::default(),
            resume: None,
        };
        let options = P9Options { tag: Some("shared".to_owned()), queues, policy: P9Policy::default(), execution };
        let engine = Engine::new(8);
        let export = Export::p9(hosting, options, tree, &engine).unwrap();
        Server { export, engine, shared, dir }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("9p.sock")
    }

    pub(crate) fn status(&self) -> P9Status {
        match self.export.status().content {
            Content::P9(status) => *status,
            other => panic!("it serves something else: {other:?}"),
        }
    }

    /// Waits until the status is as it must become.
    pub(crate) fn wait_until(&self, what: &str, is: impl Fn(&P9Status) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is(&self.status()) {
            assert!(Instant::now() < end, "it never comes to that: {what}");
            std::thread::yield_now();
        }
    }

    /// How many requests of a kind were answered on all rings.
    pub(crate) fn answered(&self, kind: &str) -> u64 {
        let rings = self.export.rings();
        let of_kind = |ring: &export::RingStatus| -> u64 {
            ring.figures.requests.iter().filter(|(name, _)| *name == kind).map(|(_, count)| count).sum()
        };
        rings.iter().map(of_kind).sum()
    }
}

/// A message: its header, and the fields one behind the other.
pub(crate) fn message(kind: Kind, tag: u16, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    let size = 7 + body.len() as u32;
    [&size.to_le_bytes()[..], &[kind as u8], &tag.to_le_bytes(), &body].concat()
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn flush(tag: u16, oldtag: u16) -> Vec<u8> {
    message(Kind::Flush, tag, &[&oldtag.to_le_bytes()])
}

pub(crate) fn getattr(tag: u16, fid: u32) -> Vec<u8> {
    message(Kind::GetAttr, tag, &[&fid.to_le_bytes(), &0x7ff_u64.to_le_bytes()])
}

pub(crate) fn clunk(tag: u16, fid: u32) -> Vec<u8> {
    message(Kind::Clunk, tag, &[&fid.to_le_bytes()])
}

pub(crate) fn read(tag: u16, fid: u32, offset: u64, count: u32) -> Vec<u8> {
    message(Kind::Read, tag, &[&fid.to_le_bytes(), &offset.to_le_bytes(), &count.to_le_bytes()])
}

pub(crate) fn write(tag: u16, fid: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let count = data.len() as u32;
    message(Kind::Write, tag, &[&fid.to_le_bytes(), &offset.to_le_bytes(), &count.to_le_bytes(), data])
}

/// An exclusive lock of a whole file, waited for (P9_LOCK_TYPE_WRLCK, P9_LOCK_FLAGS_BLOCK of include/net/9p/9p.h).
pub(crate) fn lock(tag: u16, fid: u32, process: u32) -> Vec<u8> {
    let range = [0_u8; 16];
    let name = string("guest");
    message(Kind::Lock, tag, &[&fid.to_le_bytes(), &[1], &1_u32.to_le_bytes(), &range, &process.to_le_bytes(), &name])
}

/// What an answer is: data, or the number of an error.
pub(crate) fn outcome(reply: Option<Reply>, kind: Kind) -> Result<Vec<u8>, i32> {
    let reply = reply.expect("an answer");
    if reply.kind == ERROR {
        return Err(i32::from_le_bytes(reply.body.try_into().unwrap()));
    }
    assert_eq!(reply.kind, kind as u8 + 1, "the answer to a {}", kind.name());
    Ok(reply.body)
}

/// A mounted client.
pub(crate) struct Client {
    pub(crate) guest: Guest,
    next_fid: u32,
    next_tag: u16,
}

impl Client {
    /// Connects with so many queues, agrees on a version and attaches the root.
    pub(crate) fn new(server: &Server, queues: usize) -> Client {
        let mut client = Client { guest: Guest::new(&server.socket(), queues), next_fid: ROOT + 1, next_tag: 1000 };
        let version = client.call(0, Kind::Version, &[&MSIZE.to_le_bytes(), &string("9P2000.L")]).unwrap();
        assert_eq!(version, [&MSIZE.to_le_bytes()[..], &string("9P2000.L")].concat());
        let names = [string("root"), string("")].concat();
        client
            .call(0, Kind::Attach, &[&ROOT.to_le_bytes(), &NONE.to_le_bytes(), &names, &0_u32.to_le_bytes()])
            .unwrap();
        client
    }

    pub(crate) fn tag(&mut self) -> u16 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call(&mut self, queue: usize, kind: Kind, fields: &[&[u8]]) -> Result<Vec<u8>, i32> {
        let tag = self.tag();
        let sent = self.guest.send(queue, &message(kind, tag, fields));
        let reply = self.guest.wait(sent);
        assert_eq!(reply.as_ref().map(|reply| reply.tag), Some(tag));
        outcome(reply, kind)
    }

    /// Another fid, of what `name` is in the root; of the root itself, if it is empty.
    pub(crate) fn walk(&mut self, name: &str) -> Result<u32, i32> {
        self.next_fid += 1;
        let fid = self.next_fid;
        let names = if name.is_empty() { vec![0, 0] } else { [vec![1, 0], string(name)].concat() };
        self.call(0, Kind::Walk, &[&ROOT.to_le_bytes(), &fid.to_le_bytes(), &names]).map(|_| fid)
    }

    /// A new file, open for reading and writing.
    pub(crate) fn create(&mut self, name: &str) -> u32 {
        let fid = self.walk("").unwrap();
        let flags = libc::O_RDWR as u32 | libc::O_CREAT as u32;
        let fields = [&fid.to_le_bytes()[..], &string(name), &flags.to_le_bytes(), &[0xa4, 1, 0, 0], &[0; 4]].concat();
        self.call(0, Kind::Lcreate, &[&fields]).unwrap();
        fid
    }

    /// An existing file, open for reading and writing.
    pub(crate) fn open(&mut self, name: &str) -> u32 {
        let fid = self.walk(name).unwrap();
        self.call(0, Kind::Lopen, &[&fid.to_le_bytes(), &(libc::O_RDWR as u32).to_le_bytes()]).unwrap();
        fid
    }

    /// Writes, and returns how much of it.
    pub(crate) fn write(&mut self, queue: usize, fid: u32, offset: u64, data: &[u8]) -> u32 {
        let tag = self.tag();
        let sent = self.guest.send(queue, &write(tag, fid, offset, data));
        let body = outcome(self.guest.wait(sent), Kind::Write).unwrap();
        u32::from_le_bytes(body.try_into().unwrap())
    }

    pub(crate) fn read(&mut self, queue: usize, fid: u32, offset: u64, count: u32) -> Vec<u8> {
        let tag = self.tag();
        let sent = self.guest.send(queue, &read(tag, fid, offset, count));
        data_of(&outcome(self.guest.wait(sent), Kind::Read).unwrap())
    }

    pub(crate) fn send(&mut self, queue: usize, message: &[u8]) -> Sent {
        self.guest.send(queue, message)
    }
}

/// What an Rread brought.
pub(crate) fn data_of(body: &[u8]) -> Vec<u8> {
    let (count, data) = body.split_at(4);
    assert_eq!(u32::from_le_bytes(count.try_into().unwrap()) as usize, data.len());
    data.to_vec()
}
