//! A storage that passes everything on, remembers writes, and fails when it is told to.

use engine::{Completion, Io, Token};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use storage::kit::Through;
use storage::{Operation, Step, Storage, StorageError, Task};

/// What was asked of the storage below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A write has begun: offset, bytes, durable.
    Begins(u64, u64, bool),
    /// A write has ended: offset, and whether well.
    Ends(u64, bool),
    /// A flush has begun.
    Flush,
}

/// See the top.
pub struct Probe {
    below: Arc<dyn Storage>,
    seen: Mutex<Vec<Seen>>,
    /// Durable writes that will fail, counted from the next.
    failures: AtomicU64,
}

impl Probe {
    /// Over a storage.
    pub fn new(below: Arc<dyn Storage>) -> Arc<Probe> {
        Arc::new(Probe { below, seen: Mutex::new(Vec::new()), failures: AtomicU64::new(0) })
    }

    /// Lets the next durable writes fail, after they have been done: as a cable does that breaks on the way back.
    pub fn fail_next(&self, writes: u64) {
        self.failures.store(writes, Ordering::SeqCst);
    }

    /// What was seen since the last time.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    fn saw(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }

    fn ended(&self, task: &Task, step: Step) -> Step {
        let Step::Done(result) = step else { return step };
        let Operation::Write { offset, durable } = task.operation else { return Step::Done(result) };
        let fails = durable
            && self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let result = if fails {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            Err(StorageError::Io { action: storage::Action::Write, source })
        } else {
            result
        };
        self.saw(Seen::Ends(offset, result.is_ok()));
        Step::Done(result)
    }
}

impl Through for Probe {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        match task.operation {
            Operation::Write { offset, durable } => self.saw(Seen::Begins(offset, task.bytes(), durable)),
            Operation::Flush => self.saw(Seen::Flush),
            _ => {}
        }
        let step = self.below.start(task, token, io);
        self.ended(task, step)
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let step = self.below.resume(task, completion, io);
        self.ended(task, step)
    }
}
