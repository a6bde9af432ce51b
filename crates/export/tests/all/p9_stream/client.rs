//! A client of 9P2000.L that says what a test wants, and a server for it.

use engine::{Engine as Workers, Execution, Placement, Poll, WorkerSpec};
use export::{
    Carried, DAEMON, Engine, Export, ExportError, Hosting, P9Options, P9Policy, RingState, Socket, StreamListener,
};
use passthrough::{Options, Source, Tree};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use values::Listen;
use vhost_user::SocketOptions;

/// Longer than anything here can take on a loaded machine: a wait that reaches it is a hang.
pub const HANG: Duration = Duration::from_secs(60);
pub const MSIZE: u32 = 1 << 16;
/// Header of a write with its fields, rounded up as clients do.
pub const IO_HEADER: usize = 24;
pub const NOFID: u32 = u32::MAX;

/// Types of messages (include/net/9p/9p.h).
pub const RLERROR: u8 = 7;
pub const TLOPEN: u8 = 12;
pub const TLCREATE: u8 = 14;
pub const TGETATTR: u8 = 24;
pub const TSETATTR: u8 = 26;
pub const TREADDIR: u8 = 40;
pub const TFSYNC: u8 = 50;
pub const TLOCK: u8 = 52;
pub const TRENAMEAT: u8 = 74;
pub const TUNLINKAT: u8 = 76;
pub const TVERSION: u8 = 100;
pub const TATTACH: u8 = 104;
pub const TFLUSH: u8 = 108;
pub const TWALK: u8 = 110;
pub const TREAD: u8 = 116;
pub const TWRITE: u8 = 118;
pub const TCLUNK: u8 = 120;

/// Fields of a message.
#[derive(Clone, Default)]
pub struct Fields(pub Vec<u8>);

impl Fields {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn text(self, value: &str) -> Self {
        let mut fields = self.u16(value.len() as u16);
        fields.0.extend(value.as_bytes());
        fields
    }

    pub fn data(self, value: &[u8]) -> Self {
        let mut fields = self.u32(value.len() as u32);
        fields.0.extend(value);
        fields
    }
}

pub fn fields() -> Fields {
    Fields::default()
}

pub fn message(kind: u8, tag: u16, fields: Fields) -> Vec<u8> {
    let mut bytes = (fields.0.len() as u32 + 7).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(tag.to_le_bytes());
    bytes.extend(fields.0);
    bytes
}

pub fn read_of(fid: u32, offset: u64, count: u32) -> Fields {
    fields().u32(fid).u64(offset).u32(count)
}

pub fn write_of(fid: u32, offset: u64, data: &[u8]) -> Fields {
    fields().u32(fid).u64(offset).data(data)
}

/// A lock of one byte, which the client waits for if `wait` says so.
pub fn lock_of(fid: u32, kind: u8, wait: bool, owner: u32) -> Fields {
    fields().u32(fid).u8(kind).u32(u32::from(wait)).u64(0).u64(1).u32(owner).text("test")
}

pub const WRITE_LOCK: u8 = 1;
pub const UNLOCK: u8 = 2;
/// Answers to a lock.
pub const SUCCESS: u8 = 0;
pub const BLOCKED: u8 = 1;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub kind: u8,
    pub tag: u16,
    pub fields: Vec<u8>,
}

impl Answer {
    /// The errno of an Rlerror.
    pub fn errno(&self) -> i32 {
        assert_eq!(self.kind, RLERROR, "{self:?}");
        i32::from_le_bytes(self.fields[..4].try_into().unwrap())
    }

    /// The data of an Rread or Rreaddir.
    pub fn data(&self) -> &[u8] {
        let count = u32::from_le_bytes(self.fields[..4].try_into().unwrap());
        assert_eq!(self.fields.len(), 4 + count as usize);
        &self.fields[4..]
    }
}

pub trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// One connection.
pub struct Client {
    pub wire: Box<dyn Wire>,
}

impl Client {
    pub fn new(wire: impl Wire + 'static) -> Client {
        Client { wire: Box::new(wire) }
    }

    /// With a version agreed on, and the root attached as fid 0.
    pub fn attached(mut self, msize: u32) -> Client {
        let agreed = self.version(msize);
        assert_eq!(agreed, msize);
        self.attach();
        self
    }

    pub fn version(&mut self, msize: u32) -> u32 {
        let fields = self.ask(TVERSION, fields().u32(msize).text("9P2000.L"));
        assert_eq!(fields[4..], *b"\x08\x009P2000.L");
        u32::from_le_bytes(fields[..4].try_into().unwrap())
    }

    pub fn attach(&mut self) {
        self.ask(TATTACH, fields().u32(0).u32(NOFID).text("").text("").u32(rustix::process::getuid().as_raw()));
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.wire.write_all(bytes).unwrap();
    }

    /// The next reply; `None` when the server has ended the connection.
    pub fn next(&mut self) -> Option<Answer> {
        let mut header = [0; 7];
        let mut there = 0;
        while there < header.len() {
            match self.wire.read(&mut header[there..]) {
                Ok(0) if there == 0 => return None,
                Ok(0) => panic!("half a header"),
                Ok(bytes) => there += bytes,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
        let size = u32::from_le_bytes(header[..4].try_into().unwrap()) as usize;
        let mut fields = vec![0; size - 7];
        self.wire.read_exact(&mut fields).unwrap();
        Some(Answer { kind: header[4], tag: u16::from_le_bytes([header[5], header[6]]), fields })
    }

    pub fn answer(&mut self) -> Answer {
        self.next().expect("the server hung up")
    }

    /// Asks for one thing; returns the reply.
    pub fn call(&mut self, kind: u8, fields: Fields) -> Answer {
        let tag = if kind == TVERSION { u16::MAX } else { 77 };
        self.send(&message(kind, tag, fields));
        let answer = self.answer();
        assert_eq!(answer.tag, tag);
        answer
    }

    /// As [`call`](Self::call), of what must succeed; returns the fields.
    pub fn ask(&mut self, kind: u8, fields: Fields) -> Vec<u8> {
        let answer = self.call(kind, fields);
        assert_eq!(answer.kind, kind + 1, "{answer:?}");
        answer.fields
    }

    /// Makes fid `fid` stand for an entry of the root.
    pub fn walk(&mut self, fid: u32, name: &str) {
        self.ask(TWALK, fields().u32(0).u32(fid).u16(1).text(name));
    }

    /// Opens an entry of the root as `fid`.
    pub fn open(&mut self, fid: u32, name: &str, flags: i32) {
        self.walk(fid, name);
        self.ask(TLOPEN, fields().u32(fid).u32(flags as u32));
    }

    /// Makes a file in the root and opens it for both as `fid`.
    pub fn create(&mut self, fid: u32, name: &str) {
        self.ask(TWALK, fields().u32(0).u32(fid).u16(0));
        self.ask(TLCREATE, fields().u32(fid).text(name).u32(libc::O_RDWR as u32).u32(0o644).u32(0));
    }

    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Vec<u8> {
        self.ask(TREAD, read_of(fid, offset, count))[4..].to_vec()
    }

    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> usize {
        let fields = self.ask(TWRITE, write_of(fid, offset, data));
        u32::from_le_bytes(fields.try_into().unwrap()) as usize
    }

    pub fn clunk(&mut self, fid: u32) {
        self.ask(TCLUNK, fields().u32(fid));
    }

    /// Opens a file of the root again and again, as `fid` and those behind it, until that is refused; how often it was opened, and
    /// the error.
    pub fn open_until_refused(&mut self, fid: u32, name: &str) -> (usize, i32) {
        for opened in 0.. {
            let fid = fid + opened;
            self.walk(fid, name);
            let answer = self.call(TLOPEN, fields().u32(fid).u32(libc::O_RDONLY as u32));
            if answer.kind == RLERROR {
                return (opened as usize, answer.errno());
            }
        }
        unreachable!("there are fewer fids than that");
    }

    pub fn lock(&mut self, fid: u32, kind: u8, owner: u32) -> u8 {
        self.ask(TLOCK, lock_of(fid, kind, false, owner))[0]
    }
}

/// What a server is to be like.
pub struct Like {
    pub execution: Execution,
    pub connections: u16,
    pub workers: usize,
    pub tcp: bool,
    /// Every operation takes this long.
    pub delay: Duration,
    pub poll: Poll,
    /// Files that all clients may have open.
    pub open_files: usize,
    /// How long a connection may be silent; none for as long as by default.
    pub greeting: Option<Duration>,
}

impl Default for Like {
    fn default() -> Like {
        Like {
            execution: Execution::Auto,
            connections: 64,
            workers: 1,
            tcp: false,
            delay: Duration::ZERO,
            poll: Poll::Off,
            open_files: Options::default().open_files_max,
            greeting: None,
        }
    }
}

pub fn tree(root: &Path, options: Options) -> Arc<Tree> {
    Arc::new(Tree::new(Source::Path(root.to_owned()), options).unwrap())
}

pub fn options(connections: u16, execution: Execution) -> P9Options {
    P9Options { tag: None, queues: connections, policy: P9Policy::default(), execution }
}

/// Serves a tree on the engine's shared workers.
pub fn serve(
    listener: StreamListener,
    options: P9Options,
    tree: Arc<Tree>,
    poll: Poll,
    engine: &Engine,
) -> Result<Export, ExportError> {
    let hosting = Hosting {
        name: "files".to_owned(),
        socket: Socket::Stream(listener),
        queue_size_max: 256,
        placement: Placement::Shared,
        poll,
        workers: WorkerSpec::default(),
        session_ended: None,
        failed: None,
        carried: Carried::default(),
        resume: None,
    };
    Export::p9(hosting, options, tree, engine)
}

/// An export of a directory of its own.
pub struct Server {
    pub export: Export,
    pub engine: Engine,
    pub address: Listen,
    /// The socket lies here, beside the directory that is served.
    dir: TempDir,
}

impl Server {
    pub fn new(like: &Like) -> Server {
        let dir = TempDir::new().unwrap();
        let address =
            if like.tcp { "tcp::0".to_owned() } else { format!("unix:{}", dir.path().join("9p.sock").display()) };
        let listener = StreamListener::bind(&address.parse().unwrap(), &SocketOptions::default()).unwrap();
        Server::on(listener, dir, like)
    }

    pub fn on(listener: StreamListener, dir: TempDir, like: &Like) -> Server {
        let address = listener.address().clone();
        let root = dir.path().join("served");
        std::fs::create_dir(&root).unwrap();
        let options_of_tree =
            Options { delay: like.delay, xattr: true, open_files_max: like.open_files, ..Options::default() };
        let tree = tree(&root, options_of_tree);
        let engine: Workers<export::Ring> = Engine::new(like.workers);
        for _ in 0..like.workers {
            engine.worker_new(DAEMON, WorkerSpec::default(), like.poll).unwrap();
        }
        let mut options = options(like.connections, like.execution);
        options.policy.greeting = like.greeting.unwrap_or(options.policy.greeting);
        let export = serve(listener, options, tree, like.poll, &engine).unwrap();
        Server { export, engine, address, dir }
    }

    /// A file of the host's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("served").join(name)
    }

    pub fn unix(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("9p.sock")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        stream
    }

    pub fn connect(&self) -> Client {
        match &self.address {
            Listen::Tcp(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(HANG)).unwrap();
                stream.set_write_timeout(Some(HANG)).unwrap();
                stream.set_nodelay(true).unwrap();
                Client::new(stream)
            }
            _ => Client::new(self.unix()),
        }
    }

    pub fn client(&self) -> Client {
        self.connect().attached(MSIZE)
    }

    /// Clients that are gone with all that they had.
    pub fn gone(&self) -> u64 {
        self.export.status().sessions.disconnects
    }

    /// Connections that are served. One that is not may not have let go of everything yet.
    pub fn connections(&self) -> usize {
        let status = self.export.status();
        let sessions = status.sessions;
        // Who is not let in is an error and no connection.
        let left = sessions.connects.saturating_sub(sessions.disconnects + sessions.errors);
        if status.frontend.is_some() { self.listed().max(usize::try_from(left).unwrap()) } else { self.listed() }
    }

    /// Those of which the export knows: one that has just come may be served before.
    pub fn listed(&self) -> usize {
        self.export.rings().iter().filter(|ring| ring.state == RingState::Running).count()
    }
}

/// Bytes that tell where they belong.
pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed) & 0xff) as u8).collect()
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
