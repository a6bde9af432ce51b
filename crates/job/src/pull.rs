//! A disk as it was at one moment, for whoever reads it meanwhile.

use crate::before::{Before, Guards, Lifted};
use crate::control::Control;
use crate::copying::{Copying, Course};
use crate::error::check_target;
use crate::marks::Marks;
use crate::sync::AtomicBool;
use crate::{JobError, Progress};
use engine::{Completion, Io, Token};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use storage::copy::Copied;
use storage::extent::{Extent, Extents, ask};
use storage::kit::range as part_of;
use storage::{Action, Description, Execution, Handed, Operation, Step, Storage, StorageError, Task};

/// Changes of kind that one question about extents goes through, so that it ends soon.
const RUNS_MAX: usize = 4096;

/// Keeps what a disk held when the [filter](Self::filter) was put in place, for those who read it through the [view](Self::view). Before
/// a guest writes over something that is not saved yet, its old contents go to a scratch storage; nothing else is copied.
///
/// The size is the one at the beginning.
pub struct Pull {
    from: Arc<dyn Storage>,
    scratch: Arc<dyn Storage>,
    guards: Arc<Guards>,
    /// What no lane has had.
    todo: Marks,
    is_completing: AtomicBool,
}

impl Pull {
    /// Of `from`, with a scratch storage that is blank and as large.
    ///
    /// # Errors
    /// The scratch storage is read-only or too small.
    pub fn new(from: Arc<dyn Storage>, scratch: Arc<dyn Storage>) -> Result<Pull, StorageError> {
        check_target(&*from, &*scratch)?;
        let todo = Marks::new(from.capacity_bytes(), true);
        let guards = Arc::new(Guards::new(todo.again()));
        Ok(Pull { from, scratch, guards, todo, is_completing: AtomicBool::new(false) })
    }

    /// What guests use instead of the disk, as that of a [backup](crate::Backup::filter).
    pub fn filter(&self) -> Arc<dyn Storage> {
        Arc::new(Before::new(self.from.clone(), self.guards.clone()))
    }

    /// The disk as it was, read-only. Before the filter is in place it is the disk as it is; once the job is over, reads fail.
    pub fn view(&self) -> Arc<dyn Storage> {
        let (from, scratch, guards) = (self.from.clone(), self.scratch.clone(), self.guards.clone());
        Arc::new(View { from, scratch, guards })
    }

    /// Saves what guests are about to write over, until it is told to [complete](Self::complete). Calls `ready` once, on this thread, when
    /// it does. Once: a second call is as good as cancelled.
    ///
    /// # Errors
    /// A storage's, or the job was cancelled. Guests go on.
    pub fn run(&self, ready: &mut dyn FnMut()) -> Result<Copied, JobError> {
        self.guards.control.begin()?;
        let _until_the_end = Lifted(&self.guards);
        let copying = Copying::new(&*self.from, &*self.scratch, true, self);
        let mut copying = copying.map_err(JobError::in_scratch)?;
        ready();
        loop {
            // The pass has armed the bell before it looked at what is told here.
            match copying.pass().and_then(|()| self.check()) {
                Ok(()) => copying.wait(self.deadline_ns()),
                Err(JobError::Cancelled) if self.guards.control.check().is_ok() => return Ok(copying.copied()),
                Err(error) => return Err(error.in_scratch()),
            }
        }
    }

    /// Ends the job, as somebody does who has read what he needs of the view. Guests go on at once.
    pub fn complete(&self) {
        self.is_completing.store(true, Ordering::SeqCst);
        self.guards.control.ring();
    }

    /// How much is saved.
    pub fn progress(&self) -> Progress {
        self.guards.control.progress(0)
    }

    /// As [that of a backup](crate::Backup::set_patience).
    pub fn set_patience(&self, patience: Duration) {
        self.guards.set_patience(patience);
    }

    /// Ends the job. Guests go on at once; [`run`](Self::run) returns when what it has under way has ended.
    pub fn cancel(&self) {
        self.guards.control.cancel();
        self.guards.lift_all();
    }
}

impl Course for Pull {
    fn todo(&self) -> &Marks {
        &self.todo
    }

    fn walks(&self) -> bool {
        false
    }

    fn check(&self) -> Result<(), JobError> {
        self.guards.control.check()?;
        // Nobody needs what is saved, or is about to be.
        if self.is_completing.load(Ordering::SeqCst) {
            return Err(JobError::Cancelled);
        }
        self.guards.check_patience()
    }

    fn guards(&self) -> Option<&Guards> {
        Some(&self.guards)
    }

    fn control(&self) -> &Control {
        &self.guards.control
    }

    /// Not before it is in the scratch storage, where readers look for it from now on.
    fn has_copied(&self, bytes: &Range<u64>) {
        self.guards.lift(bytes);
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The job is over, and what the disk held then is lost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over;

impl From<Over> for StorageError {
    fn from(Over: Over) -> StorageError {
        let source = io::Error::new(io::ErrorKind::NotConnected, "the job that kept its contents is over");
        StorageError::Io { action: Action::Read, source }
    }
}

impl Guards {
    /// The first bytes of `bytes` whose old contents are not in the disk for certain, but in the scratch storage: asked *after* something
    /// was read of the disk, of what was read. The rest of it was read before any guest could write over it, since a guard that is
    /// found now stood all the time.
    ///
    /// # Errors
    /// Guards were lifted with nothing saved. That is said before it is done, and before any guest goes on by it, so it is looked at last:
    /// a guard that is found counts no more than one that is lifted.
    pub(crate) fn saved(&self, bytes: &Range<u64>) -> Result<Option<Range<u64>>, Over> {
        // What was read comes before the look. Of a guest it is the other way round, see `Before`.
        fence(Ordering::Acquire);
        let saved = self.unguarded(bytes);
        if self.is_over() { Err(Over) } else { Ok(saved) }
    }
}

/// What a reader has under way.
#[derive(Default)]
struct Reading {
    /// Of the disk first, then of the scratch storage piece by piece.
    part: Task,
    /// What is still to be looked at; `None` while the disk is read.
    rest: Option<Range<u64>>,
}

impl storage::Progress for Reading {
    fn rest(&mut self) {
        self.part.rest();
    }

    fn lost(&mut self) {
        self.part.lost();
    }
}

/// The disk as it was. A reader takes what it reads from the disk, without a lock, and then from the scratch storage what guests
/// may have written over meanwhile.
struct View {
    from: Arc<dyn Storage>,
    scratch: Arc<dyn Storage>,
    guards: Arc<Guards>,
}

impl View {
    /// Goes on with a read of which a part has come so far.
    fn go_on(&self, task: &mut Task, mut step: Step, token: Token, io: &mut Io<'_>) -> Step {
        let (offset, len) = task.extent();
        let Task { buffers, state, .. } = task;
        let reading = state.of::<Reading>();
        loop {
            match step {
                Step::Done(Ok(())) => {}
                step => return step,
            }
            let rest = reading.rest.get_or_insert(offset..offset + len);
            let saved = match self.guards.saved(rest) {
                Ok(Some(saved)) => saved,
                Ok(None) => return Step::Done(Ok(())),
                Err(over) => return Step::Done(Err(over.into())),
            };
            rest.start = saved.end;
            part_of(buffers, saved.start - offset, saved.end - saved.start, &mut reading.part.buffers);
            reading.part.begin(Operation::Read { offset: saved.start });
            step = self.scratch.start(&mut reading.part, token, io);
        }
    }
}

impl Storage for View {
    fn describe(&self) -> Description {
        let from = self.from.describe();
        Description { read_only: true, discard: false, write_zeroes: false, ..from }
    }

    fn capacity_bytes(&self) -> u64 {
        self.guards.size_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let (offset, len) = match task.check(self.capacity_bytes(), true) {
            Ok((offset, len)) if task.operation != Operation::Flush => (offset, len),
            checked => return Step::Done(checked.map(|_| ())),
        };
        let Task { operation, buffers, state, .. } = task;
        let reading = state.of::<Reading>();
        reading.rest = None;
        if !self.guards.has_some(offset, len) {
            // The disk has nothing to say of it.
            reading.rest = Some(offset..offset + len);
            return self.go_on(task, Step::Done(Ok(())), token, io);
        }
        reading.part.buffers.clear();
        reading.part.buffers.extend_from_slice(buffers);
        reading.part.begin(*operation);
        let step = self.from.start(&mut reading.part, token, io);
        self.go_on(task, step, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let token = completion.token;
        let reading = task.state.of::<Reading>();
        let storage = if reading.rest.is_none() { &self.from } else { &self.scratch };
        let step = storage.resume(&mut reading.part, completion, io);
        self.go_on(task, step, token, io)
    }

    fn resize(&self, _capacity_bytes: u64) -> Result<(), StorageError> {
        Err(StorageError::ReadOnly(Action::Write))
    }

    fn hand_over(&self) -> io::Result<Handed> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// That is the disk's.
    fn set_execution(&self, _execution: Execution) -> Result<(), StorageError> {
        Ok(())
    }

    fn fills(&self) -> bool {
        self.from.fills() && self.scratch.fills()
    }

    /// As of a read: first of the disk, then of the scratch storage.
    fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        let mut all = Extents::of(range.clone(), most);
        let (mut start, mut runs) = (range.start, 0);
        for Extent { bytes, data } in ask(&*self.from, range.clone(), most)? {
            let end = start.saturating_add(bytes).min(range.end);
            while start < end {
                runs += 1;
                if runs > RUNS_MAX {
                    return Ok(all.into_list());
                }
                let saved = self.guards.saved(&(start..end))?.unwrap_or(end..end);
                if !all.add(saved.start - start, data) {
                    return Ok(all.into_list());
                }
                start = saved.end;
                if saved.is_empty() {
                    continue;
                }
                let mut told = 0;
                for Extent { bytes, data } in ask(&*self.scratch, saved.clone(), most)? {
                    if !all.add(bytes, data) {
                        return Ok(all.into_list());
                    }
                    told += bytes;
                }
                if told < saved.end - saved.start {
                    return Ok(all.into_list());
                }
            }
        }
        Ok(all.into_list())
    }
}
