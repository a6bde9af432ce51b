//! A ring without a guest: requests wait in a queue, and each completion is counted.

// Every test binary uses its own part of this.
#![allow(unreachable_pub)]

use engine::{Bell, Completion, Engine, Io, Panic, Poll, Pool, Ring, SharedFile, Token, WorkerSpec};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything here can take on a loaded machine: a wait that reaches it is a hang.
pub const HANG: Duration = Duration::from_secs(60);
/// Requests that one ring can count.
pub const TOKENS_MAX: usize = 1 << 16;
const BATCH: usize = 32;
const BLOCK: usize = 512;

/// How a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Inline,
    /// After so many microseconds.
    Timer(u64),
    /// By a reply from a thread of its own.
    Thread,
    /// By a reply from the pool.
    Pool,
    /// By a reply that is dropped unused.
    Dropped,
    Read,
    Write,
    Sync,
    /// Panics in `serve`.
    Panic,
}

/// Every kind that ends by itself, cheap ones more often.
pub const MIX: [Work; 12] = [
    Work::Inline,
    Work::Read,
    Work::Timer(20),
    Work::Pool,
    Work::Inline,
    Work::Write,
    Work::Thread,
    Work::Read,
    Work::Dropped,
    Work::Timer(300),
    Work::Sync,
    Work::Inline,
];

/// What both sides of a ring see.
pub struct Front {
    queue: Mutex<VecDeque<(u32, Work)>>,
    next: AtomicU32,
    waiting: AtomicUsize,
    kick_wanted: AtomicBool,
    kick: OwnedFd,
    call: OwnedFd,
    completions: Vec<AtomicU32>,
    wrong: AtomicU32,
    published: AtomicUsize,
    poisoned: AtomicBool,
    lost: Mutex<Vec<Panic>>,
    /// What the end of the ring takes its time for.
    end: Mutex<Option<Receiver<()>>>,
}

impl Front {
    /// Has the ring's end take until what is returned is dropped.
    pub fn ends_slowly(&self) -> Sender<()> {
        let (sender, receiver) = channel();
        *self.end.lock().unwrap() = Some(receiver);
        sender
    }

    /// Queues a request; kicks if the worker asked for it.
    pub fn submit(&self, work: Work) {
        self.queue(work);
        if self.kick_wanted.load(Ordering::SeqCst) {
            self.kick();
        }
    }

    /// Queues a request without a kick.
    pub fn queue(&self, work: Work) {
        let token = self.next.fetch_add(1, Ordering::SeqCst);
        self.queue.lock().unwrap().push_back((token, work));
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Makes the worker itself panic: it looks at the ring outside of the ring's own work.
    pub fn kill_worker(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
        self.kick();
    }

    /// What the ring was told when it was lost; at most one thing.
    pub fn lost(&self) -> Option<Panic> {
        let lost = self.lost.lock().unwrap();
        assert!(lost.len() <= 1, "lost twice: {lost:?}");
        lost.first().cloned()
    }

    /// Takes kicks out of the eventfd, as a frontend does that stops a device.
    pub fn consume_kick(&self) {
        let _ = rustix::io::read(&self.kick, &mut [0; 8]);
    }

    pub fn published(&self) -> usize {
        self.published.load(Ordering::SeqCst)
    }

    pub fn submitted(&self) -> usize {
        self.next.load(Ordering::SeqCst) as usize
    }

    /// Sleeps on the call eventfd until everything submitted so far is published.
    pub fn wait_all(&self) {
        let want = self.submitted();
        let start = Instant::now();
        while self.published() < want {
            assert!(start.elapsed() < HANG, "{} of {want} published", self.published());
            let mut polled = [PollFd::new(&self.call, PollFlags::IN)];
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            // A signal that was lost shows as a second without one.
            if rustix::event::poll(&mut polled, Some(&second)).unwrap() == 0 {
                assert!(self.published() < want, "published without a call");
                continue;
            }
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
    }

    /// Whether a call came since this was asked last.
    pub fn take_call(&self) -> bool {
        rustix::io::read(&self.call, &mut [0; 8]).is_ok()
    }

    /// Every request so far has been completed once, with the result that belongs to it.
    pub fn check(&self) {
        for token in 0..self.submitted() {
            assert_eq!(self.completions[token].load(Ordering::SeqCst), 1, "token {token}");
        }
        assert_eq!(self.wrong.load(Ordering::SeqCst), 0, "wrong results");
        assert_eq!(self.published(), self.submitted());
    }
}

struct Pending {
    want: i32,
    // Boxed: the kernel writes here while the map may grow.
    buffer: Box<[u8; BLOCK]>,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the vectors point into the buffer beside them, which moves with them.
unsafe impl Send for Pending {}

/// What carries requests out.
pub struct Back {
    pub file: Arc<SharedFile>,
    pub pool: Pool,
}

impl Back {
    pub fn new() -> Arc<Back> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        Arc::new(Back {
            file: Arc::new(SharedFile::new(OwnedFd::from(file))),
            pool: Pool::new("test-pool", 2).unwrap(),
        })
    }

    pub fn with_file(file: File) -> Arc<Back> {
        Arc::new(Back {
            file: Arc::new(SharedFile::new(OwnedFd::from(file))),
            pool: Pool::new("test-pool", 1).unwrap(),
        })
    }
}

pub struct FakeRing {
    front: Arc<Front>,
    bell: Bell,
    back: Arc<Back>,
    pending: HashMap<Token, Pending>,
    finished: usize,
    kicks: bool,
}

/// A ring that kicks, and its other side.
pub fn ring(back: &Arc<Back>) -> (FakeRing, Arc<Front>) {
    let nonblocking = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let front = Arc::new(Front {
        queue: Mutex::default(),
        next: AtomicU32::new(0),
        waiting: AtomicUsize::new(0),
        kick_wanted: AtomicBool::new(true),
        kick: eventfd(0, nonblocking).unwrap(),
        call: eventfd(0, nonblocking).unwrap(),
        completions: (0..TOKENS_MAX).map(|_| AtomicU32::new(0)).collect(),
        wrong: AtomicU32::new(0),
        published: AtomicUsize::new(0),
        poisoned: AtomicBool::new(false),
        lost: Mutex::default(),
        end: Mutex::default(),
    });
    let bell = Bell::new(front.call.try_clone().unwrap()).unwrap();
    let (pending, back) = (HashMap::new(), back.clone());
    (FakeRing { front: front.clone(), bell, back, pending, finished: 0, kicks: true }, front)
}

impl Drop for FakeRing {
    fn drop(&mut self) {
        let end = self.front.end.lock().unwrap().take();
        // As the last owner of a disk does that has much to write back.
        if let Some(end) = end {
            let _ = end.recv();
        }
    }
}

impl FakeRing {
    /// A ring that has to be polled.
    pub fn without_kick(mut self) -> Self {
        self.kicks = false;
        self
    }

    /// A ring whose kick is some other descriptor.
    pub fn with_kick(mut self, kick: OwnedFd) -> Self {
        let front = Arc::get_mut(&mut self.front).expect("nobody else holds the front yet");
        front.kick = kick;
        self
    }

    pub fn front(&self) -> Arc<Front> {
        self.front.clone()
    }

    fn start(&mut self, number: u32, work: Work, io: &mut Io<'_>) {
        let token = Token::other(number);
        let want = match work {
            Work::Read | Work::Write => BLOCK as i32,
            Work::Thread | Work::Pool => 7,
            Work::Dropped => -libc::EIO,
            Work::Inline | Work::Timer(_) | Work::Sync => 0,
            Work::Panic => panic!("as the test wished"),
        };
        let mut buffer = Box::new([number as u8; BLOCK]);
        let half = BLOCK / 2;
        let base = buffer.as_mut_ptr();
        // SAFETY: both halves lie in the buffer.
        let second = unsafe { base.add(half) };
        // One buffer and two take different ways through the engine.
        let vectors = if number.is_multiple_of(2) {
            vec![libc::iovec { iov_base: base.cast(), iov_len: BLOCK }]
        } else {
            vec![
                libc::iovec { iov_base: base.cast(), iov_len: half },
                libc::iovec { iov_base: second.cast(), iov_len: half },
            ]
        };
        let pending = Pending { want, buffer, vectors };
        let offset = u64::from(number % 1024) * BLOCK as u64;
        let back = self.back.clone();
        match work {
            Work::Inline => {}
            Work::Timer(us) => io.timer(token, io.now_ns() + us * 1000),
            Work::Thread => {
                let reply = io.reply(token);
                std::thread::spawn(move || reply.complete(7));
            }
            Work::Pool => back.pool.run(io.reply(token), || 7),
            Work::Dropped => drop(io.reply(token)),
            // SAFETY: the buffer and the vectors stay in `pending` until the completion.
            Work::Read => unsafe { io.read(token, (&*back.file).into(), &pending.vectors, offset) },
            // SAFETY: as above.
            Work::Write => unsafe {
                io.write(token, (&*back.file).into(), &pending.vectors, offset, number.is_multiple_of(5));
            },
            Work::Sync => io.sync(token, (&*back.file).into(), true),
            Work::Panic => unreachable!(),
        }
        assert!(self.pending.insert(token, pending).is_none());
        if work == Work::Inline {
            self.complete(Completion { token, part: 0, result: 0 }, io);
        }
    }
}

impl Ring for FakeRing {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kicks.then(|| self.front.kick.as_fd())
    }

    fn ready(&self) -> bool {
        assert!(!self.front.poisoned.load(Ordering::SeqCst), "the worker is to die");
        self.front.waiting.load(Ordering::SeqCst) > 0
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        let batch: Vec<_> = {
            let mut queue = self.front.queue.lock().unwrap();
            let count = queue.len().min(BATCH);
            queue.drain(..count).collect()
        };
        self.front.waiting.fetch_sub(batch.len(), Ordering::SeqCst);
        for &(number, work) in &batch {
            self.start(number, work, io);
        }
        batch.len()
    }

    fn complete(&mut self, completion: Completion, _io: &mut Io<'_>) {
        let Completion { token, result, .. } = completion;
        self.front.completions[token.number().unwrap() as usize].fetch_add(1, Ordering::SeqCst);
        match self.pending.remove(&token) {
            Some(pending) if pending.want == result => {
                drop(pending.buffer);
                self.finished += 1;
            }
            _ => {
                self.front.wrong.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn publish(&mut self, io: &mut Io<'_>) {
        let finished = std::mem::take(&mut self.finished);
        if finished > 0 {
            self.front.published.fetch_add(finished, Ordering::SeqCst);
            io.signal(&mut self.bell);
        }
    }

    fn arm(&mut self) -> bool {
        self.front.kick_wanted.store(true, Ordering::SeqCst);
        self.ready()
    }

    fn disarm(&mut self) {
        self.front.kick_wanted.store(false, Ordering::SeqCst);
    }

    fn lost(&mut self, why: &Panic, _is_dropped: bool) {
        self.front.lost.lock().unwrap().push(why.clone());
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.finished
    }
}

/// An engine with `workers` workers numbered from 0.
pub fn engine<R: Ring>(workers: u32, poll: Poll) -> Engine<R> {
    let engine = Engine::new(workers as usize);
    for number in 0..workers {
        assert_eq!(engine.worker_new("test", WorkerSpec::default(), poll).unwrap(), number);
    }
    engine
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls `f` on a thread of its own and fails instead of hanging with it.
pub fn within<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(f()));
    receiver.recv_timeout(HANG).unwrap_or_else(|_| panic!("{what} hangs or failed"))
}
