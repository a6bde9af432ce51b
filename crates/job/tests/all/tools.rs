//! Storages that count, hang and fail as a test wishes, and guests that write.

use engine::{Completion, Io, Reply, Solo, Token};
use job::Pull;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use storage::kit::Through;
use storage::{
    Action, Distribution, MemoryOptions, MemoryStorage, Operation, SimOptions, SimStorage, Step, Storage, StorageError,
    Task,
};
use testkit::Rng;
use testkit::storage::{read, run, write};
use values::{ByteSize, Span};

pub(crate) const CLUSTER: u64 = 64 << 10;

pub(crate) fn memory(bytes: u64) -> Arc<dyn Storage> {
    let options = MemoryOptions { size: Some(ByteSize(bytes)), ..MemoryOptions::default() };
    Arc::new(MemoryStorage::open(&options).unwrap())
}

/// A device that answers after some time, later operations sometimes earlier.
pub(crate) fn slow(bytes: u64, micros: u64) -> Arc<dyn Storage> {
    let latency = Span(Duration::from_micros(micros));
    let options = SimOptions {
        read_latency: latency,
        write_latency: latency,
        distribution: Distribution::Uniform,
        latency_spread: 0.8,
        ..SimOptions::new(ByteSize(bytes))
    };
    Arc::new(SimStorage::open(&options).unwrap())
}

pub(crate) fn contents(storage: &dyn Storage) -> Vec<u8> {
    read(&mut Solo::new().unwrap(), storage, 0, storage.capacity_bytes() as usize)
}

pub(crate) fn put(storage: &dyn Storage, offset: u64, data: &[u8]) {
    write(&mut Solo::new().unwrap(), storage, offset, data).unwrap();
}

/// Data, zeroes, and data again.
pub(crate) fn fill(storage: &dyn Storage, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; storage.capacity_bytes() as usize];
    for grain in bytes.chunks_mut(40 << 10) {
        if rng.below(3) > 0 {
            grain.fill_with(|| rng.word() as u8);
        }
    }
    put(storage, 0, &bytes);
    bytes
}

/// Ends a pull with the test, so that one that fails waits for nobody.
pub(crate) struct Ends<'a>(pub(crate) &'a Pull);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

pub(crate) fn soon(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: not within 20 seconds");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Changes a storage for some time, one operation after the other, within `sectors`; gives back what is there then.
pub(crate) fn churn(
    storage: &dyn Storage,
    sectors: Range<u64>,
    mut own: Vec<u8>,
    mut rng: Rng,
    operations: usize,
) -> Vec<u8> {
    let mut solo = Solo::new().unwrap();
    let count = sectors.end - sectors.start;
    for _ in 0..if count > 0 { operations } else { 0 } {
        let at = rng.below(count);
        let most = if rng.below(8) == 0 { count } else { 40 };
        let len = 1 + rng.below(most.min(count - at));
        let (offset, bytes) = ((sectors.start + at) * 512, len * 512);
        let own = &mut own[at as usize * 512..(at + len) as usize * 512];
        let mut task = Task::new();
        match rng.below(10) {
            0..6 => {
                let seed = rng.word();
                own.iter_mut().enumerate().for_each(|(n, byte)| *byte = (seed >> (n % 50)) as u8);
                write(&mut solo, storage, offset, own).unwrap();
            }
            6 | 7 => {
                own.fill(0);
                let (unmap, durable) = (rng.below(2) == 0, rng.below(4) == 0);
                task.begin(Operation::WriteZeroes { offset, len: bytes, unmap, durable });
                run(&mut solo, storage, &mut task).unwrap();
            }
            8 => {
                task.begin(Operation::Discard { offset, len: bytes });
                run(&mut solo, storage, &mut task).unwrap();
                // What becomes of it is the storage's business.
                own.copy_from_slice(&read(&mut solo, storage, offset, bytes as usize));
            }
            _ => {
                assert!(read(&mut solo, storage, offset, bytes as usize) == own, "a guest reads what it wrote");
                task.begin(Operation::Flush);
                run(&mut solo, storage, &mut task).unwrap();
            }
        }
        if rng.below(16) == 0 {
            std::thread::sleep(Duration::from_micros(rng.below(2000)));
        }
    }
    own
}

/// A storage that counts, and on some of whose operations something happens.
pub(crate) struct Gate {
    below: Arc<dyn Storage>,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) zeroes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    /// Reads, or changes, that go through before one fails, and all behind it.
    pub(crate) reads_left: AtomicU64,
    pub(crate) writes_left: AtomicU64,
    /// They panic instead.
    pub(crate) panics: AtomicBool,
    /// Writes take so long, on the thread that makes them.
    pub(crate) lag_micros: AtomicU64,
    /// Changes wait.
    hangs: AtomicBool,
    held: Mutex<Vec<Reply>>,
}

#[derive(Default)]
struct Held(bool);

impl storage::Progress for Held {}

impl Gate {
    pub(crate) fn new(below: Arc<dyn Storage>) -> Arc<Gate> {
        Arc::new(Gate {
            below,
            read_bytes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            zeroes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            reads_left: AtomicU64::new(u64::MAX),
            writes_left: AtomicU64::new(u64::MAX),
            panics: AtomicBool::new(false),
            lag_micros: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
            held: Mutex::default(),
        })
    }

    pub(crate) fn shut(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        let mut held = self.held.lock().unwrap();
        self.hangs.store(false, Ordering::SeqCst);
        held.drain(..).for_each(|reply| reply.complete(0));
    }

    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    fn count(&self, task: &Task) -> Result<(), StorageError> {
        let (left, action) = match task.operation {
            Operation::Read { .. } => {
                self.read_bytes.fetch_add(task.bytes(), Ordering::SeqCst);
                (&self.reads_left, Action::Read)
            }
            Operation::Flush => {
                self.flushes.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            Operation::Write { .. } => {
                self.writes.fetch_add(1, Ordering::SeqCst);
                (&self.writes_left, Action::Write)
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                self.zeroes.fetch_add(1, Ordering::SeqCst);
                (&self.writes_left, Action::WriteZeroes)
            }
        };
        let is_left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        assert!(is_left || !self.panics.load(Ordering::SeqCst), "as the test wishes");
        if is_left { Ok(()) } else { Err(StorageError::Injected(action)) }
    }
}

impl Through for Gate {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if let Err(error) = self.count(task) {
            return Step::Done(Err(error));
        }
        let mut held = self.held.lock().unwrap();
        let is_change = !matches!(task.operation, Operation::Read { .. } | Operation::Flush);
        if is_change && self.hangs.load(Ordering::SeqCst) {
            task.state.of::<Held>().0 = true;
            held.push(io.reply(token));
            return Step::Pending;
        }
        drop(held);
        if is_change {
            std::thread::sleep(Duration::from_micros(self.lag_micros.load(Ordering::SeqCst)));
        }
        self.below.start(task, token, io)
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        if task.state.get::<Held>().is_some_and(|held| std::mem::take(&mut held.0)) {
            return self.below.start(task, completion.token, io);
        }
        self.below.resume(task, completion, io)
    }
}
