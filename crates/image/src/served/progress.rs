//! What a task of an image remembers.

use super::chain::Piece;
use super::change::Plan;
use super::error::Trouble;
use super::shared::{InLine, Shared};
use crate::claims::Claim;
use crate::epochs::Inside;
use engine::{Io, Token};
use libc::iovec;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use storage::{Operation, Progress, Task};

/// What another thread is doing for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Makes the image ready before the first change.
    Ready,
    /// Loads an L2 table of the first image.
    Load,
    /// Finds out where what is read lies.
    Find,
    /// Decompresses, or zeroes, so many bytes of the buffers.
    Fill(u64),
    /// Prepares an allocating write.
    Prepare,
    /// Links so many bytes of it.
    Link(u64),
    /// Lets so many bytes read as zeroes.
    Unmap(u64),
    /// Frees what was in limbo.
    Settle,
    /// Frees what was in limbo, because there is no room.
    Room,
    /// Marks the image as corrupt.
    Mark,
    /// Nothing: the worker is for others.
    Yield,
}

/// What a file is doing for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sub {
    /// Moves so many bytes of the operation.
    Move(u64),
    /// Moves once more what found no room, to see why.
    Again,
    /// Writes the data of an allocating write.
    Data,
    /// Brings it to stable storage.
    Barrier,
    /// Brings the data file to stable storage, for a flush.
    CoverData,
    /// Brings the image to stable storage, for a flush.
    Cover,
}

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// It looks for what comes next.
    Look,
    /// It waits for clusters that somebody else changes.
    Line,
    /// Another thread works for it.
    Job(Job),
    /// The file with this number works for it.
    Sub(Sub, usize),
    /// What it prepared is to be linked.
    Link,
    /// What it did is to be brought to stable storage.
    Cover,
    /// It has ended, so far well.
    End,
}

/// Where a write writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Writes {
    #[default]
    All,
    /// Where the first image has nothing itself.
    Gaps,
}

/// What a job has brought.
pub(super) type Brought = Result<Gift, Trouble>;

/// See [`Brought`].
pub(super) enum Gift {
    Nothing,
    /// An allocating write is prepared.
    Plan(Plan),
    /// So many bytes of the disk lie here.
    Piece(Piece, u64),
    /// It goes on with this.
    Stage(Stage),
}

/// See the top.
#[derive(Default)]
pub(super) struct Qcow2Progress {
    pub(super) stage: Stage,
    pub(super) writes: Writes,
    /// Bytes of the operation that are done.
    pub(super) done: u64,
    /// Steps since the worker was last left to others.
    pub(super) steps: u32,
    /// Bytes that were zeroed or copied on the worker.
    pub(super) on_the_spot: u64,
    /// Changes that a flush will cover.
    pub(super) covers: u64,
    /// What the task has in a file.
    pub(super) sub: Task,
    // A ring that falls drops what follows, in this order.
    pub(super) plan: Option<Plan>,
    pub(super) claim: Option<(Claim<InLine>, Range<u64>)>,
    pub(super) inside: Option<Inside>,
    /// It has made room once.
    pub(super) made_room: bool,
    /// Something was written that only a flush makes durable.
    pub(super) owes_flush: bool,
    pub(super) brought: Option<Arc<Mutex<Option<Brought>>>>,
}

impl Qcow2Progress {
    pub(super) fn reset(&mut self) {
        debug_assert!(self.claim.is_none() && self.inside.is_none(), "a task was begun while in flight");
        (self.done, self.on_the_spot, self.owes_flush, self.made_room) = (0, 0, false, false);
        self.plan = None;
        self.brought = None;
        self.stage = Stage::Look;
    }
}

impl Progress for Qcow2Progress {
    fn rest(&mut self) {
        self.sub.rest();
    }

    /// It leaves the line. What it has begun to change stays claimed until the kernel has no part of it, which may be never: whoever
    /// comes there is refused, and does not wait. What it has looked up is given to nobody until then.
    fn lost(&mut self) {
        if self.stage == Stage::Line {
            self.claim = None;
        }
        if let Some((claim, _)) = &self.claim {
            claim.lose();
        }
        self.sub.lost();
    }
}

/// A task taken apart, with the means to go on.
pub(super) struct Parts<'a, 'io> {
    pub(super) operation: Operation,
    pub(super) buffers: &'a mut Vec<iovec>,
    pub(super) progress: &'a mut Qcow2Progress,
    pub(super) token: Token,
    pub(super) io: &'a mut Io<'io>,
    pub(super) shared: &'a Arc<Shared>,
}

impl Parts<'_, '_> {
    /// First byte and length of the operation.
    pub(super) fn extent(&self) -> (u64, u64) {
        match self.operation {
            Operation::Read { offset } | Operation::Write { offset, .. } => (offset, storage::kit::total(self.buffers)),
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => (offset, len),
            Operation::Flush => (0, 0),
        }
    }
}
