//! The stages of a task: what comes after which completion.
//!
//! A token of a task may be completed by its own log write, by a deadline, by a [`reply`] of other tasks, and more than one of
//! these can be under way: a deadline and a reply, while it waits for company, or a reply that says nothing, beside its log write.
//! Deadlines and storages answer with results that may be the same number, so that no task begins an operation of a storage
//! while a deadline of its own is under way.

use super::LoggedStorage;
use super::progress::{LoggedProgress, Stage};
use super::reply;
use crate::{Operation, Step, Storage, StorageError, Task};
use engine::{Io, Token};
use libc::iovec;

/// A task taken apart: what is asked, where its data is, and how far it is.
pub(super) struct Parts<'a> {
    pub(super) operation: Operation,
    pub(super) buffers: &'a mut Vec<iovec>,
    pub(super) progress: &'a mut LoggedProgress,
}

impl<'a> Parts<'a> {
    pub(super) fn of(task: &'a mut Task) -> Parts<'a> {
        let progress = task.progress.logged.get_or_insert_with(Box::default);
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

    pub(super) fn proceed(&self, task: &mut Task, result: i32, token: Token, io: &mut Io<'_>) -> Step {
        let mut parts = Parts::of(task);
        if result == reply::NOTHING {
            parts.progress.echo_owed = false;
            return self.end(&mut parts);
        }
        match parts.progress.stage {
            Stage::Lower => {
                let step = self.shared.lower.resume(&mut parts.progress.sub, result, token, io);
                self.follow_lower(&mut parts, step)
            }
            Stage::Store => self.stored(&mut parts, result, token, io),
            Stage::Cover => self.covered(&mut parts, result, token, io),
            Stage::Part => {
                let step = self.shared.lower.resume(&mut parts.progress.sub, result, token, io);
                self.follow_part(&mut parts, step, token, io)
            }
            Stage::Forget if result == 0 => self.forgotten(&mut parts, token, io),
            Stage::Pass if result == reply::ROOM => self.discard_below(&mut parts, token, io),
            Stage::Line if result == reply::ROOM => {
                parts.progress.called = true;
                self.write(&mut parts, token, io)
            }
            Stage::Line | Stage::Pass | Stage::Forget => self.done(&parts, Err(errno_of(result))),
            Stage::Company(ticket) if result == 0 || result == reply::TURN => {
                parts.progress.timer_owed = false;
                self.company_is_late(&mut parts, ticket, token, io)
            }
            Stage::Gather if (result == 0 || result == reply::TURN) && parts.progress.timer_owed => {
                parts.progress.timer_owed = false;
                Step::Pending
            }
            Stage::Company(_) | Stage::Gather => self.told(&mut parts, result, token, io),
            Stage::Log => {
                let Some(batch) = parts.progress.batch.as_mut() else {
                    debug_assert!(false, "a log write without its batch");
                    return self.finish(&mut parts, Err(libc::EIO));
                };
                match self.shared.log.resume(&mut batch.task, result, token, io) {
                    Step::Pending => Step::Pending,
                    Step::Done(written) => self.written(&mut parts, written, token, io),
                }
            }
            Stage::Owed => {
                parts.progress.timer_owed = false;
                self.end(&mut parts)
            }
            Stage::Idle => {
                debug_assert!(false, "a completion with result {result} for a task that waits for none");
                self.done(&parts, Err(libc::EIO))
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
