//! A server of a disk over NBD, and storage that does what a test wants.

use super::client::{ACK, Client, FIXED_NEWSTYLE, Handshake, NO_ZEROES, Replies, option};
use super::tunnel::tunnel;
use engine::{Completion, Io, Placement, Poll, Token, WorkerSpec};
use export::{Carried, DAEMON, DiskOptions, Engine, Export, Hosting, NbdOptions, RingState, Socket, StreamListener};
use rustls::ClientConfig;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use storage::kit::Through;
use storage::{Action, Extent, MemoryOptions, MemoryStorage, Operation, Step, Storage, StorageError, Task};
use tempfile::TempDir;
use testkit::certificates::{Authority, client};
use values::{ByteSize, Listen, Tls};
use vhost_user::SocketOptions;

pub use crate::p9_stream::client::{HANG, eventually, pattern};

/// Name of every export.
pub const NAME: &str = "disk";

/// What a server is to be like.
pub struct Like {
    pub queues: u16,
    pub workers: usize,
    pub poll: Poll,
    pub block_size_bytes: u32,
    pub write_back: bool,
    pub nbd: NbdOptions,
}

impl Default for Like {
    fn default() -> Like {
        Like {
            queues: 64,
            workers: 1,
            poll: Poll::Off,
            block_size_bytes: 512,
            write_back: true,
            nbd: NbdOptions::default(),
        }
    }
}

/// Zeroes in memory.
pub fn memory(bytes: u64) -> MemoryStorage {
    MemoryStorage::open(&MemoryOptions { size: Some(ByteSize(bytes)), ..MemoryOptions::default() }).unwrap()
}

/// An export of a disk.
pub struct Server {
    pub export: Export,
    pub engine: Engine,
    /// Where the socket lies, and certificates.
    pub dir: TempDir,
    /// What a client says and accepts that is let in, where TLS is asked for.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Server {
    pub fn new(storage: Arc<dyn Storage>) -> Server {
        Server::like(&Like::default(), storage)
    }

    /// Of memory with as many bytes.
    pub fn of_memory(bytes: u64) -> Server {
        Server::new(Arc::new(memory(bytes)))
    }

    pub fn like(like: &Like, storage: Arc<dyn Storage>) -> Server {
        Server::in_directory(TempDir::new().unwrap(), like, storage)
    }

    /// As [`like`](Self::like), over TLS: so are its clients.
    pub fn over_tls(like: &Like, storage: Arc<dyn Storage>) -> Server {
        let dir = TempDir::new().unwrap();
        Authority::new("server's").fill(dir.path());
        let about = Tls { certificates: dir.path().to_owned(), clients_may_be_anonymous: false };
        let certificates = tls::Certificates::read(&about).unwrap();
        let nbd = NbdOptions { tls: Some(Arc::new(certificates)), ..like.nbd.clone() };
        let config = client(dir.path(), true, &[]);
        let server = Server::in_directory(dir, &Like { nbd, ..*like }, storage);
        Server { tls: Some(config), ..server }
    }

    fn in_directory(dir: TempDir, like: &Like, storage: Arc<dyn Storage>) -> Server {
        let address = Listen::Unix(dir.path().join("nbd.sock"));
        let listener = StreamListener::bind(&address, &SocketOptions::default()).unwrap();
        let engine = Engine::new(like.workers);
        for _ in 0..like.workers {
            engine.worker_new(DAEMON, WorkerSpec::default(), like.poll).unwrap();
        }
        let hosting = Hosting {
            name: NAME.to_owned(),
            socket: Socket::Stream(listener),
            queue_size_max: 256,
            placement: Placement::Shared,
            poll: like.poll,
            workers: WorkerSpec::default(),
            session_ended: None,
            failed: None,
            carried: Carried::default(),
            resume: None,
        };
        let options = DiskOptions {
            queues: like.queues,
            serial: String::new(),
            block_size_bytes: like.block_size_bytes,
            write_back: like.write_back,
            write_back_changeable: false,
            nbd: like.nbd.clone(),
        };
        let export = Export::disk(hosting, options, storage, &engine).unwrap();
        Server { export, engine, dir, tls: None }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        stream
    }

    pub fn handshake(&self) -> Handshake {
        let handshake = self.plain_handshake();
        match &self.tls {
            Some(config) => handshake.over_tls(config),
            None => handshake,
        }
    }

    /// One that has not begun TLS.
    pub fn plain_handshake(&self) -> Handshake {
        Handshake::begun(self.connect(), FIXED_NEWSTYLE | NO_ZEROES)
    }

    pub fn client(&self, replies: Replies) -> Client {
        let handshake = self.handshake();
        match replies {
            Replies::Simple => handshake.go(NAME),
            Replies::Structured => handshake.structured().go(NAME),
        }
    }

    /// Connections that are served.
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

    /// Requests in flight on all connections.
    pub fn in_flight(&self) -> usize {
        self.export.rings().iter().map(|ring| ring.in_flight).sum()
    }

    /// The first bytes of the disk, as another client has them.
    pub fn contents(&self, bytes: usize) -> Vec<u8> {
        let mut client = self.client(Replies::Simple);
        let pieces = (0..bytes).step_by(1 << 20).map(|at| client.read(at as u64, (bytes - at).min(1 << 20)));
        pieces.collect::<Vec<_>>().concat()
    }

    /// The export serves whoever comes.
    pub fn serves_others(&self) {
        self.client(Replies::Structured).read(0, 4096);
        assert_eq!(self.export.failure(), None);
    }
}

impl Handshake {
    /// Begins TLS.
    pub fn over_tls(mut self, config: &Arc<ClientConfig>) -> Handshake {
        assert_eq!(self.kind(option::STARTTLS, &[]), ACK);
        self.stream = tunnel(self.stream, config.clone());
        self
    }
}

/// Which operations do not begin for now.
type Held = fn(&Operation) -> bool;

/// The part of a request that waits for the test.
const HELD: u16 = 7;
/// How long it is left alone at a time, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 500_000;

/// Memory that says what was asked of it, and waits or fails as a test wants.
pub struct Scripted {
    memory: MemoryStorage,
    script: Mutex<Script>,
}

struct Script {
    started: Vec<Operation>,
    held: Held,
    /// A test that fails must not wait forever for what it holds back.
    until: Instant,
    errno: Option<i32>,
    /// Questions where there is data that have come, and whether they wait.
    looks: usize,
    looks_wait: bool,
}

impl Scripted {
    pub fn new(bytes: u64) -> Arc<Scripted> {
        let script = Script {
            started: Vec::new(),
            held: |_| false,
            until: Instant::now(),
            errno: None,
            looks: 0,
            looks_wait: false,
        };
        Arc::new(Scripted { memory: memory(bytes), script: Mutex::new(script) })
    }

    /// Holds back what `held` says from now on.
    pub fn hold(&self, held: Held) {
        let mut script = self.script.lock().unwrap();
        (script.held, script.until) = (held, Instant::now() + HANG);
    }

    /// Lets everything go on.
    pub fn release(&self) {
        self.hold(|_| false);
    }

    /// Questions where there is data wait from now on, or not.
    pub fn hold_looks(&self, wait: bool) {
        let mut script = self.script.lock().unwrap();
        (script.looks_wait, script.until) = (wait, Instant::now() + HANG);
    }

    /// Questions where there is data that have come.
    pub fn looks(&self) -> usize {
        self.script.lock().unwrap().looks
    }

    /// Everything fails with this error of Linux from now on.
    pub fn fail(&self, errno: Option<i32>) {
        self.script.lock().unwrap().errno = errno;
    }

    /// What was asked since somebody looked last.
    pub fn asked(&self) -> Vec<Operation> {
        std::mem::take(&mut self.script.lock().unwrap().started)
    }

    fn begin(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let (held, until, errno) = {
            let script = self.script.lock().unwrap();
            (script.held, script.until, script.errno)
        };
        // Which may panic.
        if held(&task.operation) && Instant::now() < until {
            io.timer(token.part(HELD), io.now_ns() + LOOK_AGAIN_NS);
            return Step::Pending;
        }
        match errno {
            Some(errno) => Step::Done(Err(StorageError::errno(task.operation.action(), errno))),
            None => self.memory.start(task, token, io),
        }
    }
}

impl Through for Scripted {
    fn below(&self) -> &dyn Storage {
        &self.memory
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.script.lock().unwrap().started.push(task.operation);
        self.begin(task, token, io)
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        match completion.part {
            HELD => self.begin(task, completion.token, io),
            _ => self.memory.resume(task, completion, io),
        }
    }

    fn extents_through(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        self.script.lock().unwrap().looks += 1;
        let waits = || {
            let script = self.script.lock().unwrap();
            script.looks_wait && Instant::now() < script.until
        };
        while waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
        match self.script.lock().unwrap().errno {
            Some(errno) => Err(StorageError::errno(Action::Look, errno)),
            None => self.memory.extents(range, most),
        }
    }
}

/// Numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }
}
