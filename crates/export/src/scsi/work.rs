//! What is left to be done of a command, between one step of its storage and the next.

use super::logical::Waiting;
use super::pass::Passing;
use super::swaps::SwapTurn;
use super::tasks::Word;
use device::scsi::{Compare, InitiatorPort, Query};
use libc::iovec;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use storage::{Extent, Operation, Room, StorageError, Task};
use vring::Segment;

/// Bytes that are read or written at once where they go through memory of ours.
pub(crate) const PART_BYTES: usize = 128 << 10;
/// Bytes of one discard or write zeroes, at most: what a virtio disk is asked for.
const RANGE_BYTES_MAX: u64 = 2 << 30;

/// What follows when that which was begun has ended.
#[derive(Debug)]
pub(crate) enum Work {
    /// The answer, behind which so many bytes of data were moved.
    Answer {
        /// Bytes of data.
        moved: u64,
    },
    /// A read, behind the flush that has begun.
    ReadBehindFlush {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The answer: the unit is stopped.
    Stop,
    /// More ranges.
    Ranges(Box<Ranges>),
    /// The next part is compared.
    Verify(Box<Verify>),
    /// The next part is written.
    Repeat(Box<Repeat>),
    /// A comparison, or the answer.
    Swap(Box<Swap>),
    /// The answer: a change of reservations is stored, and commands of those who were preempted have ended.
    Reserve(Box<Reserve>),
    /// The answer, which somebody else has by then.
    Look(Box<Look>),
    /// The answer, which another device gives.
    Pass(Box<Passing>),
}

impl Work {
    /// Bytes of ours that it keeps.
    pub(crate) fn kept_bytes(&self) -> usize {
        match self {
            Work::Verify(verify) => verify.buffer.capacity(),
            Work::Repeat(repeat) => repeat.buffer.capacity(),
            Work::Swap(swap) => swap.expected.capacity() + swap.next.capacity() + swap.found.capacity(),
            Work::Answer { .. }
            | Work::ReadBehindFlush { .. }
            | Work::Stop
            | Work::Ranges(_)
            | Work::Reserve(_)
            | Work::Look(_)
            | Work::Pass(_) => 0,
        }
    }
}

/// A change of reservations.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// Bytes of the parameter list.
    pub(crate) moved: u64,
    /// Whose commands have to end, those of its own driver not counted.
    pub(crate) aborted: Vec<InitiatorPort>,
    /// What it waits for.
    pub(crate) word: Weak<Word>,
    /// Its place among those that wait for them.
    #[expect(dead_code, reason = "is free when the command has ended")]
    pub(crate) place: Option<Waiting>,
    /// It is stored, or does not have to be.
    pub(crate) is_stored: bool,
}

impl Reserve {
    /// One that has been made, or is to be stored first.
    pub(crate) fn new(moved: u64, aborted: Vec<InitiatorPort>, place: Option<Waiting>, is_stored: bool) -> Reserve {
        Reserve { moved, aborted, word: Weak::new(), place, is_stored }
    }

    /// Nobody waits for it any more, so that nobody waits for what it waits for.
    pub(crate) fn lost(&self) {
        if let Some(word) = self.word.upgrade() {
            word.give_up();
        }
    }

    /// Whether it waits for commands of others.
    pub(crate) fn fences(&self) -> bool {
        !self.aborted.is_empty()
    }
}

/// Ranges that are discarded or zeroed one after the other.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// First byte and number of bytes of each.
    pub(crate) left: VecDeque<(u64, u64)>,
    /// Whether they read as zeroes from then on, and may lose their space by that; or no longer matter.
    pub(crate) zero: Option<bool>,
    pub(crate) durable: bool,
    pub(crate) moved: u64,
}

impl Ranges {
    /// What is next, if anything is left.
    pub(crate) fn next(&mut self) -> Option<Operation> {
        let (offset, len) = self.left.front_mut()?;
        let (at, part) = (*offset, (*len).min(RANGE_BYTES_MAX));
        (*offset, *len) = (at + part, *len - part);
        if *len == 0 {
            self.left.pop_front();
        }
        if part == 0 {
            return self.next();
        }
        Some(match self.zero {
            Some(unmap) => Operation::WriteZeroes { offset: at, len: part, unmap, durable: self.durable },
            None => Operation::Discard { offset: at, len: part },
        })
    }
}

/// A range that is read, and compared if it is to be.
#[derive(Debug)]
pub(crate) struct Verify {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) done: u64,
    pub(crate) buffer: Vec<u8>,
    pub(crate) compare: Compare,
    /// What it is compared with, which the guest may change, behind `skip` bytes.
    pub(crate) data: Vec<Segment>,
    pub(crate) skip: u64,
    pub(crate) block_bytes: u64,
}

impl Verify {
    /// Reads the next part; false when nothing is left.
    pub(crate) fn read(&mut self, task: &mut Task) -> bool {
        let part = (self.len - self.done).min(PART_BYTES as u64);
        self.buffer.resize(part as usize, 0);
        if part == 0 {
            return false;
        }
        lend(task, &mut self.buffer);
        task.begin(Operation::Read { offset: self.offset + self.done });
        true
    }

    /// The part that was read: the first byte of the data that differs from it, if one does.
    pub(crate) fn compare(&mut self) -> Option<u64> {
        let (done, part) = (self.done, self.buffer.len());
        self.done += part as u64;
        let mut wanted = vec![0; part];
        match self.compare {
            Compare::Nothing => return None,
            Compare::Data => {
                vring::copy::read_at(&self.data, self.skip + done, &mut wanted);
            }
            Compare::Block => {
                let block = self.block_bytes as usize;
                vring::copy::read_at(&self.data, self.skip, &mut wanted[..block.min(part)]);
                let (first, rest) = wanted.split_at_mut(block.min(part));
                rest.chunks_mut(first.len().max(1)).for_each(|to| to.copy_from_slice(&first[..to.len()]));
            }
        }
        let differs = self.buffer.iter().zip(&wanted).position(|(read, wanted)| read != wanted)? as u64;
        Some(match self.compare {
            Compare::Block => differs % self.block_bytes,
            Compare::Nothing | Compare::Data => done + differs,
        })
    }
}

/// A range that is filled with the same block.
#[derive(Debug)]
pub(crate) struct Repeat {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) done: u64,
    /// The block, as often as a part has it.
    pub(crate) buffer: Vec<u8>,
    pub(crate) durable: bool,
    pub(crate) moved: u64,
}

impl Repeat {
    /// Writes the next part; false when nothing is left.
    pub(crate) fn write(&mut self, task: &mut Task) -> bool {
        let part = (self.len - self.done).min(self.buffer.len() as u64);
        if part == 0 {
            return false;
        }
        lend(task, &mut self.buffer[..part as usize]);
        task.begin(Operation::Write { offset: self.offset + self.done, durable: self.durable });
        self.done += part;
        true
    }
}

/// Both halves of a COMPARE AND WRITE, copied before anything is compared: what a guest changes meanwhile is no part of it.
#[derive(Debug)]
pub(crate) struct Swap {
    pub(crate) offset: u64,
    pub(crate) expected: Vec<u8>,
    pub(crate) next: Vec<u8>,
    pub(crate) found: Vec<u8>,
    pub(crate) durable: bool,
    pub(crate) step: SwapStep,
    /// Its turn on the unit, or its place in the line.
    pub(crate) turn: Option<SwapTurn>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwapStep {
    /// Another one has the unit.
    Waits,
    /// It has the unit: what is there is read.
    Reads,
    /// That was as expected, and what is to be there is written.
    Writes,
}

impl Swap {
    /// Reads what is there.
    pub(crate) fn read(&mut self, task: &mut Task) {
        self.step = SwapStep::Reads;
        self.found.resize(self.expected.len(), 0);
        lend(task, &mut self.found);
        task.begin(Operation::Read { offset: self.offset });
    }

    /// The first byte that is not as expected.
    pub(crate) fn differs(&self) -> Option<u64> {
        self.found.iter().zip(&self.expected).position(|(found, expected)| found != expected).map(|at| at as u64)
    }

    /// Writes what is to be there.
    pub(crate) fn write(&mut self, task: &mut Task) {
        self.step = SwapStep::Writes;
        lend(task, &mut self.next);
        task.begin(Operation::Write { offset: self.offset, durable: self.durable });
        // On no other image than the one that was compared.
        task.follows = true;
    }
}

/// A question that only a file system answers, or what is like one.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) asks: Asks,
    /// Most bytes of the answer.
    pub(crate) allocation: u32,
    /// Where the driver wants it: the writable segments of its chain.
    pub(crate) room: Vec<Segment>,
    pub(crate) place: Place,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asks {
    /// Where there is data, from this byte on.
    Data(u64),
    /// How much is used, for the answer to this.
    Room(Query),
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Found {
    Data(Vec<Extent>),
    /// Nothing where nobody counts.
    Room(Option<Room>),
}

/// Where that is put.
pub(crate) type Place = Arc<OnceLock<Result<Found, StorageError>>>;

/// Lends a task memory that stays where it is until the task has ended: it belongs to the same request.
fn lend(task: &mut Task, buffer: &mut [u8]) {
    task.buffers.clear();
    task.buffers.push(iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
}
