//! What a task of a container remembers.

use super::pool::{Buffer, Place};
use storage::{Progress, Task};

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// It waits for a buffer.
    Line,
    /// It lets others have the worker.
    Yield,
    /// The storage below moves so many bytes.
    Piece(u64),
    /// The storage below does the rest.
    Rest,
}

/// See the top.
#[derive(Default)]
pub(super) struct LuksProgress {
    pub(super) stage: Stage,
    /// Bytes of the operation that are done.
    pub(super) done: u64,
    /// Pieces that are done.
    pub(super) pieces: u64,
    /// Bytes that were encrypted or decrypted since others last had the worker.
    pub(super) at_once: u64,
    /// What the task has in the storage below.
    pub(super) sub: Task,
    pub(super) buffers: Vec<Buffer>,
    pub(super) place: Option<Place>,
}

impl LuksProgress {
    pub(super) fn reset(&mut self) {
        self.stage = Stage::Idle;
        self.done = 0;
        self.pieces = 0;
        self.at_once = 0;
        self.buffers.clear();
        self.place = None;
    }
}

impl Progress for LuksProgress {
    fn rest(&mut self) {
        self.sub.rest();
    }

    fn lost(&mut self) {
        self.place = None;
        self.sub.lost();
    }
}
