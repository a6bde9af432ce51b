//! Large reads, part by part: another thread copies, and the lower storage reads what the cache has not.

use super::LoggedStorage;
use super::large::{LargeRead, Next};
use super::machine::{Parts, errno_of};
use super::progress::Stage;
use super::reply::Event;
use engine::{Io, Token};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::kit::{Lent, range};
use storage::{Operation, Step};

fn locked(read: &Mutex<LargeRead>) -> MutexGuard<'_, LargeRead> {
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoggedStorage {
    pub(super) fn read_in_parts(
        &self,
        parts: &mut Parts<'_>,
        offset: u64,
        len: u64,
        token: Token,
        io: &mut Io<'_>,
    ) -> Step {
        let read = LargeRead::new(&self.shared.cache, offset, offset + len);
        parts.progress.large = Some(Arc::new(Mutex::new(read)));
        self.cover(parts, token, io)
    }

    /// Has another thread go on.
    fn cover(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let Some(read) = parts.progress.large.clone() else { return self.done(parts, Err(libc::EIO)) };
        let (shared, buffers) = (self.shared.clone(), Lent::new(parts.buffers));
        parts.progress.stage = Stage::Cover;
        self.shared.jobs.run(io, token.part(Event::Job.part()), move || {
            // SAFETY: the task waits for us, with its buffers mapped and writable.
            let next = unsafe { locked(&read).proceed(&shared.cache, buffers.list()) };
            shared.slots_freed();
            next as i32
        });
        Step::Pending
    }

    /// Another thread has gone as far as it could, or has failed.
    pub(super) fn covered(&self, parts: &mut Parts<'_>, result: i32, token: Token, io: &mut Io<'_>) -> Step {
        if result == Next::Job as i32 {
            return self.cover(parts, token, io);
        }
        if result != Next::Below as i32 {
            self.let_go(parts);
            return self.done(parts, if result == Next::End as i32 { Ok(()) } else { Err(errno_of(result)) });
        }
        let (Some(read), Operation::Read { offset }) = (&parts.progress.large, parts.operation) else {
            return self.done(parts, Err(libc::EIO));
        };
        let (from, to) = {
            let read = locked(read);
            (read.from, read.to)
        };
        let sub = &mut parts.progress.sub;
        range(parts.buffers, from - offset, to - from, &mut sub.buffers);
        sub.begin(Operation::Read { offset: self.shared.layout.data_offset + from });
        parts.progress.stage = Stage::Part;
        let step = self.shared.lower.start(&mut parts.progress.sub, token, io);
        self.follow_part(parts, step, token, io)
    }

    pub(super) fn follow_part(&self, parts: &mut Parts<'_>, step: Step, token: Token, io: &mut Io<'_>) -> Step {
        match step {
            Step::Pending => Step::Pending,
            Step::Done(Ok(())) => self.cover(parts, token, io),
            failed @ Step::Done(Err(_)) => {
                self.let_go(parts);
                failed
            }
        }
    }

    fn let_go(&self, parts: &mut Parts<'_>) {
        parts.progress.stage = Stage::Idle;
        parts.progress.large = None;
        self.shared.slots_freed();
    }
}
