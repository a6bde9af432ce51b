//! What a task of a volume remembers.

use super::batch::Batch;
use super::commit::{Answer, Waiter};
use super::cursor::Cursor;
use super::large::LargeRead;
use super::shared::Shared;
use crate::cache::{Cache, Pins};
use std::sync::{Arc, Mutex};
use storage::{Progress, Task};

/// What a task waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// The lower storage: a read or a discard.
    Lower,
    /// The end of a pass of write-back, to discard behind it.
    Pass,
    /// A free slot.
    Line,
    /// Another thread, which stores blocks of it.
    Store,
    /// Another thread, which copies what the cache has of its parts.
    Cover,
    /// The lower storage: a part of a read.
    Part,
    /// Another thread, which forgets the blocks of a discard.
    Forget,
    /// Company, holding the lead: for the deadline with this number, or somebody who takes the lead over.
    Company(u64),
    /// A commit, or the lead.
    Gather,
    /// The log write of its own batch.
    Log,
    /// Completions that are still owed, with nothing left to do.
    Owed,
}

/// Versions that a read has pinned.
pub(super) struct Overlay {
    cache: Arc<Cache>,
    pub(super) pins: Pins,
}

/// Where a task of a volume is. Made with the first request of a task and kept for those after it, so that they allocate nothing.
#[derive(Default)]
pub(super) struct LoggedProgress {
    pub(super) stage: Stage,
    /// A read or discard of the lower storage.
    pub(super) sub: Task,
    overlay: Option<Overlay>,
    /// A read that goes part by part.
    pub(super) large: Option<Arc<Mutex<LargeRead>>>,
    /// Bytes of the operation that are in the cache.
    pub(super) done: u64,
    /// Where those end in the task's buffers.
    pub(super) cursor: Cursor,
    /// It has been called out of the line: it need not stand behind those that still wait.
    pub(super) called: bool,
    /// When it asked for a commit, in nanoseconds.
    pub(super) since_ns: u64,
    /// A deadline is under way, or the turn that stands for a short one.
    pub(super) timer_owed: bool,
    /// A reply of its own is under way that says nothing.
    pub(super) echo_owed: bool,
    /// The end that waits for those two.
    pub(super) outcome: Option<Result<(), i32>>,
    /// Who will be told with it: requests of the pass that it leads.
    pub(super) waiters: Vec<Waiter>,
    /// Whom it tells what its log write has brought.
    pub(super) told: Vec<Answer>,
    /// It leads, and goes on with its pass when the record in flight has landed.
    pub(super) passing: bool,
    /// It is the parked leader.
    pub(super) parked: bool,
    /// Its batch, while that is written.
    pub(super) batch: Option<Box<Batch>>,
    /// Takes part in a commit.
    pub(super) member: Option<Arc<Shared>>,
}

impl LoggedProgress {
    pub(super) fn reset(&mut self) {
        debug_assert!(self.member.is_none() && self.batch.is_none(), "a task was begun while in flight");
        self.stage = Stage::Idle;
        self.large = None;
        self.done = 0;
        self.cursor = Cursor::default();
        self.called = false;
        self.outcome = None;
        self.parked = false;
        self.passing = false;
    }

    /// An empty list of pins of `cache`.
    pub(super) fn overlay(&mut self, cache: &Arc<Cache>) -> &mut Pins {
        let same = self.overlay.as_ref().is_some_and(|overlay| Arc::ptr_eq(&overlay.cache, cache));
        if !same {
            // The task's first read, or it has changed its storage.
            self.overlay = None;
        }
        let overlay = self.overlay.get_or_insert_with(|| Overlay { cache: cache.clone(), pins: Pins::new(cache) });
        debug_assert!(overlay.pins.is_empty());
        &mut overlay.pins
    }

    /// The list of pins that [`overlay`](Self::overlay) gave, and the task below.
    pub(super) fn pinned(&mut self) -> Option<&mut Pins> {
        self.overlay.as_mut().map(|overlay| &mut overlay.pins)
    }
}

impl Progress for LoggedProgress {
    fn rest(&mut self) {
        self.sub.rest();
    }
}

impl Drop for LoggedProgress {
    fn drop(&mut self) {
        // A ring that panicked is dropped with its tasks. One of them may have been about to lead, or its log write may be what
        // others wait for: nobody would ever tell them.
        if let Some(shared) = self.member.take() {
            shared.fail("a queue of the disk broke down in the middle of a commit");
        }
    }
}
