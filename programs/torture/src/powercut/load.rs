//! Two queues that use a volume at once, each on a thread of its own as rings on two workers are, and somebody who makes its
//! disk larger meanwhile.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use engine::{Completion, Solo, Token};
use libc::iovec;
use storage::{Step, Storage, StorageError, Task};
use volume::LoggedStorage;

use super::record::Tape;
use super::stamp::{self, SECTOR_BYTES};
use super::trace::{Event, Found, Kind, Operation, Scene};
use crate::rng::Rng;

const QUEUES: u8 = 2;
/// Sectors of the largest request: 64 KiB.
pub(super) const SECTORS_MAX: u32 = 128;
/// Lengths in sectors, as often as they are drawn: smaller than a block, blocks, and runs of them.
const LENGTHS: &[u32] = &[1, 1, 1, 2, 3, 7, 8, 8, 8, 8, 9, 16, 24, 32, 64, SECTORS_MAX];
/// How long the disk keeps a size, at least and at most.
const SIZE_LASTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(60);
/// How long a queue now and then rests, so that others can be alone.
const REST: std::ops::RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(2);

/// Uses the volume until all operations of the scene were answered.
pub(super) fn run(volume: &LoggedStorage, tape: &Tape, scene: &Scene, rng: &mut Rng) -> Result<()> {
    let streams: Vec<Rng> = (0..=QUEUES).map(|_| Rng::new(rng.next(), 0)).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, rng) in (0..=QUEUES).zip(streams) {
            let body = move || match number {
                QUEUES => grow(volume, tape, scene, rng),
                _ => Queue::new(number, volume, tape, scene, rng)?.run(),
            };
            threads.push(thread::Builder::new().name(format!("queue {number}")).spawn_scoped(scope, body)?);
        }
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(anyhow!("a thread of the load has panicked")),
        });
        // All of them are waited for, whatever becomes of the first.
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Makes the disk larger, now and then.
fn grow(volume: &LoggedStorage, tape: &Tape, scene: &Scene, mut rng: Rng) -> Result<()> {
    for by_bytes in &scene.growth_bytes {
        thread::sleep(rng.time(SIZE_LASTS));
        let disk_bytes = volume.capacity_bytes() + by_bytes;
        tape.note(Event::Growing { disk_bytes });
        volume.resize(disk_bytes).with_context(|| format!("growing to {disk_bytes} bytes"))?;
        tape.note(Event::Grown { disk_bytes });
    }
    Ok(())
}

/// Reads the whole disk.
pub(super) fn read_all(volume: &LoggedStorage) -> Result<Found> {
    let mut solo = Solo::new()?;
    let mut task = Box::new(Task::new());
    let mut memory = vec![0; volume.capacity_bytes() as usize];
    let mut first = 0;
    for part in memory.chunks_mut(SECTORS_MAX as usize * SECTOR_BYTES) {
        task.buffers = vec![iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() }];
        task.begin(storage::Operation::Read { offset: first });
        first += part.len() as u64;
        let mut step = volume.start(&mut task, Token::request(0), &mut solo.io());
        loop {
            match step {
                Step::Done(result) => break result.context("reading the disk")?,
                Step::Pending => {
                    let completion = solo.wait()?;
                    step = volume.resume(&mut task, completion, &mut solo.io());
                }
            }
        }
    }
    Ok(Found { contents: contents(0, &memory) })
}

fn contents(first: u32, memory: &[u8]) -> Vec<stamp::Content> {
    (first..).zip(memory.chunks(SECTOR_BYTES)).map(|(sector, bytes)| stamp::read(sector, bytes)).collect()
}

/// Room for one operation; it does not move while one is in flight.
struct Slot {
    task: Task,
    memory: Vec<u8>,
    operation: Option<(u32, Operation)>,
}

struct Queue<'a> {
    number: u8,
    volume: &'a LoggedStorage,
    tape: &'a Tape,
    scene: &'a Scene,
    rng: Rng,
    solo: Solo,
    /// As many as ever: none of them moves.
    slots: Vec<Slot>,
    asked: u32,
    /// What went wrong first; nothing is asked for after that.
    failed: Option<Error>,
}

impl<'a> Queue<'a> {
    fn new(number: u8, volume: &'a LoggedStorage, tape: &'a Tape, scene: &'a Scene, rng: Rng) -> Result<Self> {
        let slot = || {
            let memory = vec![0; SECTORS_MAX as usize * SECTOR_BYTES];
            Slot { task: Task::new(), memory, operation: None }
        };
        let slots = (0..scene.depth).map(|_| slot()).collect();
        Ok(Self { number, volume, tape, scene, rng, solo: Solo::new()?, slots, asked: 0, failed: None })
    }

    fn run(mut self) -> Result<()> {
        loop {
            self.ask_some();
            if self.in_flight() == 0 {
                if self.failed.is_some() || self.asked == self.scene.operations {
                    return self.failed.map_or(Ok(()), Err);
                }
                continue;
            }
            match self.solo.wait() {
                Ok(completion) => self.resume(completion),
                Err(error) => {
                    // What is in flight may still use its memory.
                    std::mem::forget(self.slots);
                    return Err(error).context("waiting for a completion");
                }
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| slot.operation.is_some()).count()
    }

    /// Asks for something in most of the slots at rest.
    fn ask_some(&mut self) {
        if self.rng.once_in(40) {
            thread::sleep(self.rng.time(REST));
        }
        for at in 0..self.slots.len() {
            let may_ask = self.asked < self.scene.operations && self.failed.is_none();
            if may_ask && self.slots[at].operation.is_none() && !self.rng.once_in(4) {
                self.asked += 1;
                self.ask(at);
            }
        }
    }

    fn ask(&mut self, at: usize) {
        let operation = self.draw();
        // On the tape before the volume knows of it: no effect stands before its cause.
        let number = self.tape.lock().ask(operation);
        let slot = &mut self.slots[at];
        let len = operation.count as usize * SECTOR_BYTES;
        if operation.kind == Kind::Write {
            stamp::write(number, operation.first, &mut slot.memory[..len]);
        }
        slot.task.buffers.clear();
        if matches!(operation.kind, Kind::Write | Kind::Read) {
            let mut rest = &mut slot.memory[..len];
            while !rest.is_empty() {
                let sectors = (rest.len() / SECTOR_BYTES) as u64;
                let taken = if self.rng.once_in(2) { sectors } else { self.rng.within(1..=sectors) };
                let (part, behind) = rest.split_at_mut(taken as usize * SECTOR_BYTES);
                slot.task.buffers.push(iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
                rest = behind;
            }
        }
        slot.operation = Some((number, operation));
        slot.task.begin(lower(&operation, self.rng.once_in(2)));
        let step = self.volume.start(&mut slot.task, Token::request(at as u16), &mut self.solo.io());
        self.step(at, step);
    }

    fn resume(&mut self, completion: Completion) {
        let at = completion.index();
        match self.slots.get_mut(at) {
            Some(slot) if slot.operation.is_some() => {
                let step = self.volume.resume(&mut slot.task, completion, &mut self.solo.io());
                self.step(at, step);
            }
            _ => self.fail(anyhow!("queue {}: {completion:?} of a task at rest", self.number)),
        }
    }

    fn step(&mut self, at: usize, step: Step) {
        let Step::Done(result) = step else { return };
        let slot = &mut self.slots[at];
        let Some((number, operation)) = slot.operation.take() else { return };
        match result {
            Ok(()) if operation.kind == Kind::Read => {
                let memory = &slot.memory[..operation.count as usize * SECTOR_BYTES];
                let found = Found { contents: contents(operation.first, memory) };
                self.tape.lock().read_back(number, found);
            }
            Ok(()) => self.tape.note(Event::Answered { operation: number }),
            Err(error) => self.fail(refused(number, &operation, &error)),
        }
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    fn draw(&mut self) -> Operation {
        let sectors = (self.volume.capacity_bytes() / SECTOR_BYTES as u64) as u32;
        let rng = &mut self.rng;
        let kind = if rng.once_in(self.scene.flushes) {
            Kind::Flush
        } else {
            rng.pick(&[
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::Write,
                Kind::WriteZeroes,
                Kind::Discard,
                Kind::Read,
                Kind::Read,
            ])
        };
        let durable = matches!(kind, Kind::Write | Kind::WriteZeroes) && rng.once_in(self.scene.durables);
        if kind == Kind::Flush {
            return Operation { kind, first: 0, count: 0, durable, queue: self.number };
        }
        let count = rng.pick(LENGTHS).min(self.scene.sectors_max);
        // Half of it in a part that is written again and again.
        let end = if rng.once_in(2) { sectors / 8 } else { sectors } - SECTORS_MAX;
        let mut first = rng.within(0..=u64::from(end)) as u32;
        if rng.once_in(2) {
            first &= !7;
        }
        Operation { kind, first, count, durable, queue: self.number }
    }
}

fn refused(number: u32, operation: &Operation, error: &StorageError) -> Error {
    anyhow!("operation {number} ({operation}) failed: {error}")
}

/// The operation in the words of a storage.
fn lower(operation: &Operation, unmap: bool) -> storage::Operation {
    let offset = u64::from(operation.first) * SECTOR_BYTES as u64;
    let len = u64::from(operation.count) * SECTOR_BYTES as u64;
    let durable = operation.durable;
    match operation.kind {
        Kind::Write => storage::Operation::Write { offset, durable },
        Kind::WriteZeroes => storage::Operation::WriteZeroes { offset, len, unmap, durable },
        Kind::Discard => storage::Operation::Discard { offset, len },
        Kind::Flush => storage::Operation::Flush,
        Kind::Read => storage::Operation::Read { offset },
    }
}
