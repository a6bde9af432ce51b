//! Storage that writes down all that it is asked to do, and that takes its time, so that much is in flight together and
//! ends in another order than it began.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Completion, Execution, Io, Token};
use libc::iovec;
use storage::{Action, Description, Handed, Step, Storage, StorageError, Task};

use super::stamp::SECTOR_BYTES;
use super::trace::{Event, Found, LowerWrite, Operation, Time, Trace};
use crate::rng::Rng;

/// Tells somebody else the number of an event, at the moment at which it happens.
type Mark = Box<dyn FnMut(Time) -> io::Result<()> + Send>;

/// A trace that grows, with the devices that it tells of.
pub(super) struct Tape {
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) trace: Trace,
    /// What a read of each device gives.
    devices: Vec<Vec<u8>>,
    flushes: u32,
    rng: Rng,
    mark: Option<Mark>,
    /// Why an event could not be told to somebody else.
    unmarked: Option<io::Error>,
}

impl Tape {
    /// Goes on from what `trace` says was there before.
    pub(super) fn new(trace: Trace, rng: Rng) -> Arc<Self> {
        let devices = trace.before.clone();
        let inner = Inner { trace, devices, flushes: 0, rng, mark: None, unmarked: None };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// A tape of what a load sees, on devices of which somebody else keeps a record. Each event is told to `mark`, in their order
    /// and before anybody can know that it has happened.
    pub(super) fn marking(trace: Trace, mark: impl FnMut(Time) -> io::Result<()> + Send + 'static) -> Arc<Self> {
        let (mark, rng): (Option<Mark>, _) = (Some(Box::new(mark)), Rng::new(0, 0));
        let inner = Inner { trace, devices: Vec::new(), flushes: 0, rng, mark, unmarked: None };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// The first failure to mark an event; those behind it are not marked either.
    pub(super) fn unmarked(&self) -> Option<io::Error> {
        self.lock().unmarked.take()
    }

    /// The tape, for several entries that belong together.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one event down.
    pub(super) fn note(&self, event: Event) {
        self.lock().push(event);
    }

    /// What was written down, if nobody uses the devices any more.
    pub(super) fn finish(self: Arc<Self>) -> Option<Trace> {
        let inner = Arc::into_inner(self)?.inner;
        Some(inner.into_inner().unwrap_or_else(PoisonError::into_inner).trace)
    }
}

impl Inner {
    fn push(&mut self, event: Event) {
        self.trace.events.push(event);
        if let (Some(mark), None) = (&mut self.mark, &self.unmarked) {
            self.unmarked = mark(self.trace.events.len() as Time).err();
        }
    }

    /// The volume is open, and all of its disk was read.
    pub(super) fn opened(&mut self, found: Found, disk_bytes: u64) {
        self.push(Event::Opened { found: self.trace.found.len() as u32, disk_bytes });
        self.trace.found.push(found);
    }

    /// The load was answered with data.
    pub(super) fn read_back(&mut self, operation: u32, found: Found) {
        self.push(Event::Read { operation, found: self.trace.found.len() as u32 });
        self.trace.found.push(found);
    }

    /// The load is about to ask; the number of its operation.
    pub(super) fn ask(&mut self, operation: Operation) -> u32 {
        let number = self.trace.operations.len() as u32;
        self.trace.operations.push(operation);
        self.push(Event::Asked { operation: number });
        number
    }

    /// A device was given a write.
    fn begin_write(&mut self, device: u8, offset: u64, bytes: u64, source: Option<&[iovec]>, durable: bool) -> u32 {
        let number = self.trace.writes.len() as u32;
        let data = source.map(|buffers| {
            let start = self.trace.data.len();
            for buffer in buffers {
                // SAFETY: the buffers of a task that was started are mapped, and those of a volume do not change.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.iov_base.cast::<u8>(), buffer.iov_len) };
                self.trace.data.extend_from_slice(bytes);
            }
            start as u64
        });
        self.trace.writes.push(LowerWrite { device, offset, bytes: bytes as u32, data, durable });
        self.push(Event::Written { write: number });
        number
    }

    fn end_write(&mut self, number: u32) {
        let write = self.trace.writes[number as usize];
        let contents = &mut self.devices[usize::from(write.device)][write.offset as usize..][..write.bytes as usize];
        match self.trace.data_of(&write) {
            Some(data) => contents.copy_from_slice(data),
            None => contents.fill(0),
        }
        self.push(Event::WriteDone { write: number });
    }

    fn read(&self, device: u8, offset: u64, buffers: &[iovec]) {
        let mut rest = self.devices[usize::from(device)].get(offset as usize..).unwrap_or_default();
        for buffer in buffers {
            let (part, behind) = rest.split_at(buffer.iov_len.min(rest.len()));
            // SAFETY: the buffers of a task that was started are mapped and hold `iov_len` bytes, of which `part` has no more.
            unsafe { part.as_ptr().copy_to_nonoverlapping(buffer.iov_base.cast::<u8>(), part.len()) };
            rest = behind;
        }
    }
}

/// One device of a tape.
pub(super) struct Recorder {
    tape: Arc<Tape>,
    device: u8,
    delay_max_us: u64,
    /// What is under way, by the place of its task, which does not move meanwhile.
    under_way: Mutex<HashMap<usize, Work>>,
}

/// What remains to be done when a device has taken its time.
#[derive(Clone, Copy)]
enum Work {
    Read,
    Write {
        number: u32,
    },
    Flush {
        number: u32,
    },
    /// The device does nothing with a discard.
    Ignore,
}

impl Recorder {
    /// Device `device` of the tape; most operations take much less than `delay_max_us`, in microseconds.
    pub(super) fn new(tape: &Arc<Tape>, device: u8, delay_max_us: u64) -> Self {
        Self { tape: tape.clone(), device, delay_max_us, under_way: Mutex::new(HashMap::new()) }
    }

    /// Writes down that an operation has begun.
    fn begin(&self, tape: &mut Inner, task: &Task) -> Work {
        use storage::Operation::{Discard, Flush, Read, Write, WriteZeroes};
        match task.operation {
            Read { .. } => Work::Read,
            Write { offset, durable } => {
                let number = tape.begin_write(self.device, offset, task.bytes(), Some(&task.buffers), durable);
                Work::Write { number }
            }
            Discard { .. } if tape.rng.once_in(4) => Work::Ignore,
            Discard { offset, len } => Work::Write { number: tape.begin_write(self.device, offset, len, None, false) },
            WriteZeroes { offset, len, durable, .. } => {
                Work::Write { number: tape.begin_write(self.device, offset, len, None, durable) }
            }
            Flush => {
                let number = tape.flushes;
                tape.flushes += 1;
                tape.push(Event::Flushing { device: self.device, flush: number });
                Work::Flush { number }
            }
        }
    }

    /// Does what was begun.
    fn end(&self, tape: &mut Inner, task: &Task, work: Work) {
        match (work, task.operation) {
            (Work::Write { number }, _) => tape.end_write(number),
            (Work::Flush { number }, _) => {
                tape.push(Event::FlushDone { device: self.device, flush: number });
            }
            (Work::Read, storage::Operation::Read { offset }) => tape.read(self.device, offset, &task.buffers),
            (Work::Read | Work::Ignore, _) => {}
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<usize, Work>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long an operation takes, in nanoseconds; nothing, if it ends on the spot.
    fn delay_ns(&self, rng: &mut Rng) -> Option<u64> {
        let most_ns = self.delay_max_us * 1000;
        match rng.within(0..=9) {
            0..=2 => None,
            3..=7 => Some(rng.within(0..=most_ns / 20)),
            8 => Some(rng.within(0..=most_ns / 4)),
            _ => Some(rng.within(0..=most_ns)),
        }
    }
}

/// First byte and length of what an operation touches.
fn extent(task: &Task) -> (u64, u64) {
    use storage::Operation::{Discard, Flush, Read, Write, WriteZeroes};
    match task.operation {
        Read { offset } | Write { offset, .. } => (offset, task.bytes()),
        Flush => (0, 0),
        Discard { offset, len } | WriteZeroes { offset, len, .. } => (offset, len),
    }
}

fn action(task: &Task) -> Action {
    use storage::Operation::{Discard, Flush, Read, Write, WriteZeroes};
    match task.operation {
        Read { .. } => Action::Read,
        Write { .. } => Action::Write,
        Flush => Action::Flush,
        Discard { .. } => Action::Discard,
        WriteZeroes { .. } => Action::WriteZeroes,
    }
}

impl Storage for Recorder {
    fn describe(&self) -> Description {
        Description {
            kind: "record",
            target: format!("device {}", self.device),
            read_only: false,
            direct: true,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 0,
            discard: true,
            discard_granularity_bytes: 512,
            write_zeroes: true,
            execution: Execution::Auto,
            execution_chosen: Execution::Uring,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.tape.lock().devices[usize::from(self.device)].len() as u64
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let mut tape = self.tape.lock();
        let (offset, len) = extent(task);
        let capacity = tape.devices[usize::from(self.device)].len() as u64;
        let inside = offset.checked_add(len).is_some_and(|end| end <= capacity);
        if !inside || !(offset | len).is_multiple_of(SECTOR_BYTES as u64) {
            return Step::Done(Err(StorageError::OutOfRange(action(task))));
        }
        let work = self.begin(&mut tape, task);
        match self.delay_ns(&mut tape.rng) {
            None => {
                self.end(&mut tape, task, work);
                Step::Done(Ok(()))
            }
            Some(delay_ns) => {
                drop(tape);
                self.under_way().insert(std::ptr::from_ref(task).addr(), work);
                io.timer(token, io.now_ns() + delay_ns);
                Step::Pending
            }
        }
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        let Some(work) = self.under_way().remove(&std::ptr::from_ref(task).addr()) else {
            // The volume has resumed what it has not started, or what has ended.
            return Step::Done(Err(StorageError::Unsupported(action(task))));
        };
        self.end(&mut self.tape.lock(), task, work);
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let mut tape = self.tape.lock();
        let device = &mut tape.devices[usize::from(self.device)];
        let present_bytes = device.len() as u64;
        if capacity_bytes < present_bytes {
            let target = self.describe().target;
            return Err(StorageError::Shrink { target, present_bytes, asked_bytes: capacity_bytes });
        }
        if capacity_bytes > present_bytes {
            device.resize(capacity_bytes as usize, 0);
            tape.push(Event::Resized { device: self.device, bytes: capacity_bytes });
        }
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        Err(StorageError::Execution { execution, kind: "record" })
    }
}
