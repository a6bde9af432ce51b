//! The stages of a task: what comes after which completion.
//!
//! A task may have several things under way: a deadline and a reply, while it waits for company, or a reply that says nothing, beside
//! its log write. The part of a completion says which of them has ended ([`Event`]).

use super::LoggedStorage;
use super::progress::{LoggedProgress, Stage};
use super::reply::Event;
use engine::{Completion, Io, Token};
use libc::iovec;
use storage::{Operation, Step, Storage, StorageError, Task};

/// A task taken apart: what is asked, where its data is, and how far it is.
pub(super) struct Parts<'a> {
    pub(super) operation: Operation,
    pub(super) buffers: &'a mut Vec<iovec>,
    pub(super) progress: &'a mut LoggedProgress,
}

impl<'a> Parts<'a> {
    pub(super) fn of(task: &'a mut Task) -> Parts<'a> {
        let progress = task.state.of::<LoggedProgress>();
        Parts { operation: task.operation, buffers: &mut task.buffers, progress }
    }
}

impl LoggedStorage {
    pub(super) fn begin(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let (_, len) = match task.check(self.capacity_bytes(), false) {
            Ok(extent) => extent,
            Err(error) => return Step::Done(Err(error)),
        };
        let mut parts = Parts::of(task);
        parts.progress.reset();
        if self.shared.is_dead() {
            return self.done(&parts, Err(libc::EIO));
        }
        match parts.operation {
            Operation::Read { offset } => self.read(&mut parts, offset, len, token, io),
            Operation::Write { .. } | Operation::WriteZeroes { .. } => self.write(&mut parts, token, io),
            Operation::Discard { .. } => self.discard(&mut parts, token, io),
            Operation::Flush => self.flush(&mut parts, token, io),
        }
    }

    pub(super) fn proceed(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let mut parts = Parts::of(task);
        let Completion { token, part, result } = completion;
        let Some(event) = Event::of(part) else {
            return self.storage_below_ended(&mut parts, completion, io);
        };
        match (event, parts.progress.stage) {
            (Event::Echo, _) => {
                parts.progress.echo_owed = false;
                self.end(&mut parts)
            }
            (Event::Late, stage) => {
                parts.progress.timer_owed = false;
                match stage {
                    Stage::Company(ticket) => self.company_is_late(&mut parts, ticket, token, io),
                    Stage::Owed => self.end(&mut parts),
                    _ => Step::Pending,
                }
            }
            (Event::Lead, Stage::Company(_) | Stage::Gather) => self.called(&mut parts, token, io),
            (Event::Commit, Stage::Company(_) | Stage::Gather) => self.told(&mut parts, result, token, io),
            (Event::Job, Stage::Store) => self.stored(&mut parts, result, token, io),
            (Event::Job, Stage::Cover) => self.covered(&mut parts, result, token, io),
            (Event::Job, Stage::Forget) if result == 0 => self.forgotten(&mut parts, token, io),
            (Event::Room, Stage::Pass) if result == 0 => self.discard_below(&mut parts, token, io),
            (Event::Room, Stage::Line) if result == 0 => {
                parts.progress.called = true;
                self.write(&mut parts, token, io)
            }
            (Event::Job, Stage::Forget) | (Event::Room, Stage::Line | Stage::Pass) => {
                self.done(&parts, Err(errno_of(result)))
            }
            (event, stage) => {
                debug_assert!(false, "{event:?} for a task that waits for {stage:?}");
                self.done(&parts, Err(libc::EIO))
            }
        }
    }

    /// What was started of the lower storage, or of the log, has ended or goes on.
    fn storage_below_ended(&self, parts: &mut Parts<'_>, completion: Completion, io: &mut Io<'_>) -> Step {
        let token = completion.token;
        match parts.progress.stage {
            Stage::Lower => {
                let step = self.shared.lower.resume(&mut parts.progress.sub, completion, io);
                self.follow_lower(parts, step)
            }
            Stage::Part => {
                let step = self.shared.lower.resume(&mut parts.progress.sub, completion, io);
                self.follow_part(parts, step, token, io)
            }
            Stage::Log => {
                let Some(batch) = parts.progress.batch.as_mut() else {
                    debug_assert!(false, "a log write without its batch");
                    return self.finish(parts, Err(libc::EIO));
                };
                match self.shared.log.resume(&mut batch.task, completion, io) {
                    Step::Pending => Step::Pending,
                    Step::Done(written) => self.written(parts, written, token, io),
                }
            }
            stage => {
                debug_assert!(false, "{completion:?} for a task that waits for {stage:?}");
                self.done(parts, Err(libc::EIO))
            }
        }
    }

    /// The end of a task that owes nothing to anybody.
    pub(super) fn done(&self, parts: &Parts<'_>, outcome: Result<(), i32>) -> Step {
        let action = parts.operation.action();
        Step::Done(outcome.map_err(|errno| match self.shared.death() {
            Some(reason) => StorageError::Failed { action, reason: reason.to_owned() },
            None => StorageError::errno(action, errno),
        }))
    }

    /// The end of a task that took part in a commit, once all of its completions have come.
    pub(super) fn finish(&self, parts: &mut Parts<'_>, outcome: Result<(), i32>) -> Step {
        let progress = &mut *parts.progress;
        progress.member = None;
        progress.outcome = Some(outcome);
        progress.stage = Stage::Owed;
        self.end(parts)
    }

    fn end(&self, parts: &mut Parts<'_>) -> Step {
        let progress = &mut *parts.progress;
        if progress.timer_owed || progress.echo_owed {
            return Step::Pending;
        }
        match progress.outcome.take() {
            None => Step::Pending,
            Some(outcome) => {
                progress.stage = Stage::Idle;
                self.done(parts, outcome)
            }
        }
    }
}

/// The error that a reply carries.
pub(super) fn errno_of(result: i32) -> i32 {
    if (-4095..0).contains(&result) { -result } else { libc::EIO }
}
