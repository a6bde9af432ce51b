//! Tasks that commit: flushes and durable writes, as leaders or behind one.

use super::LoggedStorage;
use super::commit::{Answer, Joined, Landed, Taken, Waiter};
use super::figures::add;
use super::machine::{Parts, errno_of};
use super::poke::Wish;
use super::progress::Stage;
use super::reply::Event;
use engine::{Io, Reply, Token};
use storage::ways::{COMMIT_JOINED, COMMIT_LED, LINE};
use storage::{Step, StorageError};
use values::SyncMode;

/// A shorter wait for company is spent in turns of the worker, one after the other: a deadline would be met later than that. In
/// nanoseconds.
const TURNS_MAX_NS: u64 = 100_000;

impl LoggedStorage {
    pub(super) fn flush(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        if self.shared.sync_mode() == SyncMode::Disabled {
            return self.done(parts, Ok(()));
        }
        self.commit(parts, token, io)
    }

    /// Completes the task once everything written before is stable.
    pub(super) fn commit(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let shared = &self.shared;
        if shared.committer.is_clean(&shared.cache) {
            add(&shared.figures.flushes_for_nothing, 1);
            return self.done(parts, Ok(()));
        }
        let now_ns = io.clock_ns();
        parts.progress.since_ns = now_ns;
        parts.progress.member = Some(shared.clone());
        let joined = shared.committer.join(&shared.figures, now_ns, now_ns, || waiting(io, token));
        self.joined(parts, joined, token, io)
    }

    fn joined(&self, parts: &mut Parts<'_>, joined: Joined, token: Token, io: &mut Io<'_>) -> Step {
        match joined {
            Joined::Dead => self.finish(parts, Err(libc::EIO)),
            Joined::Waits => {
                parts.progress.stage = Stage::Gather;
                Step::Pending
            }
            Joined::Company { at_ns, ticket } => {
                parts.progress.stage = Stage::Company(ticket);
                if at_ns.saturating_sub(io.clock_ns()) < TURNS_MAX_NS {
                    return self.turn(parts, token, io);
                }
                parts.progress.timer_owed = true;
                io.timer(token.part(Event::Late.part()), at_ns);
                Step::Pending
            }
            Joined::Leads => self.lead(parts, token, io),
        }
    }

    /// Lets the worker take what its rings have, and comes back behind that.
    fn turn(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        parts.progress.timer_owed = true;
        io.reply_by(LINE, token.part(Event::Late.part())).complete(0);
        Step::Pending
    }

    /// The deadline of our wait for company, or a turn of it.
    pub(super) fn company_is_late(&self, parts: &mut Parts<'_>, ticket: u64, token: Token, io: &mut Io<'_>) -> Step {
        let shared = &self.shared;
        let now_ns = io.clock_ns();
        if shared.committer.still_waits(now_ns, ticket) {
            return self.turn(parts, token, io);
        }
        match shared.committer.deadline(&shared.figures, now_ns, ticket) {
            Some(own) => {
                // Our reply is not needed: we lead. It comes all the same, because every reply does.
                parts.progress.echo_owed = true;
                own.reply.complete_part(Event::Echo.part(), 0);
                self.lead(parts, token, io)
            }
            None => {
                // Somebody else leads, and our reply is with them.
                parts.progress.stage = Stage::Gather;
                Step::Pending
            }
        }
    }

    /// Our reply was completed: the lead is ours.
    pub(super) fn called(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let restart = std::mem::take(&mut parts.progress.parked);
        let since_ns = parts.progress.since_ns;
        let joined = self.shared.committer.called(io.clock_ns(), since_ns, restart, || waiting(io, token));
        self.joined(parts, joined, token, io)
    }

    /// Our reply was completed: a commit has ended that we waited for.
    pub(super) fn told(&self, parts: &mut Parts<'_>, result: i32, token: Token, io: &mut Io<'_>) -> Step {
        let passing = std::mem::take(&mut parts.progress.passing);
        match (result, passing) {
            (0, true) => self.lead(parts, token, io),
            (0, false) => self.finish(parts, Ok(())),
            (error, true) => self.give_up(parts, errno_of(error), io),
            (error, false) => {
                let errno = errno_of(error);
                self.tell_own(parts, Err(errno), io);
                self.finish(parts, Err(errno))
            }
        }
    }

    /// With the lead in hand: takes what is unlogged, and writes it. A pass begins, or goes on.
    fn lead(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        io.note(COMMIT_LED);
        let shared = &self.shared;
        let progress = &mut *parts.progress;
        let since_ns = progress.since_ns;
        let mut batch = shared.batch();
        let now_ns = io.clock_ns();
        let waiter = || Waiter { reply: waiting(io, token), since_ns };
        let waiters = &mut progress.waiters;
        match shared.committer.take(&shared.cache, &shared.poke, now_ns, &mut batch, waiters, waiter) {
            Taken::Done => {}
            other => {
                shared.committer.keep(batch);
                return self.stopped(parts, other, io);
            }
        }
        if batch.build().is_err() {
            debug_assert!(false, "a record has no room for what was taken");
            shared.committer.give_back(&shared.cache, &mut batch);
            shared.committer.keep(batch);
            return self.give_up(parts, libc::EIO, io);
        }
        let (sealed, offset, next) = shared.committer.seal(
            &shared.cache,
            &shared.poke,
            &shared.figures,
            io.clock_ns(),
            &mut batch,
            &mut progress.waiters,
            || Waiter { reply: waiting(io, token), since_ns },
        );
        call(next);
        match sealed {
            Taken::Done => {}
            other => {
                shared.committer.keep(batch);
                shared.slots_freed();
                return self.stopped(parts, other, io);
            }
        }
        batch.write_at(shared.layout.log_offset + offset, shared.barriers.commit);
        progress.stage = Stage::Log;
        let batch = progress.batch.insert(batch);
        match shared.log.start(&mut batch.task, token, io) {
            Step::Pending => Step::Pending,
            Step::Done(written) => self.written(parts, written, token, io),
        }
    }

    /// There is nothing to write, or not now, or never.
    fn stopped(&self, parts: &mut Parts<'_>, why: Taken, io: &mut Io<'_>) -> Step {
        let outcome = match why {
            Taken::Parked => {
                parts.progress.parked = true;
                parts.progress.stage = Stage::Gather;
                return Step::Pending;
            }
            Taken::Rides(next) => {
                call(next);
                parts.progress.stage = Stage::Gather;
                return Step::Pending;
            }
            Taken::Stable(next) => {
                call(next);
                Ok(())
            }
            Taken::Dead | Taken::Done => Err(libc::EIO),
        };
        self.tell_own(parts, outcome, io);
        self.finish(parts, outcome)
    }

    /// The write of our batch has ended.
    pub(super) fn written(
        &self,
        parts: &mut Parts<'_>,
        written: Result<(), StorageError>,
        token: Token,
        io: &mut Io<'_>,
    ) -> Step {
        let shared = &self.shared;
        let progress = &mut *parts.progress;
        let Some(batch) = progress.batch.take() else { return self.finish(parts, Err(libc::EIO)) };
        let (last, since_ns) = (batch.last, progress.since_ns);
        let result = written.map_err(|error| {
            tracing::warn!(%error, "a write to the intent log failed");
            shared.log_write_failed();
            match error {
                StorageError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
                _ => libc::EIO,
            }
        });
        let now_ns = io.clock_ns();
        let mut told = std::mem::take(&mut progress.told);
        let landed = shared.committer.landed(
            &shared.cache,
            &shared.figures,
            shared.barriers.order,
            now_ns,
            batch,
            result,
            || Waiter { reply: waiting(io, token), since_ns },
            &mut told,
        );
        for answer in told.drain(..) {
            self.tell(answer, now_ns);
        }
        progress.told = told;
        match landed {
            Landed::Dead => {
                self.tell_own(parts, Err(libc::EIO), io);
                self.finish(parts, Err(libc::EIO))
            }
            Landed::With(Ok(())) if last => {
                shared.figures.flush_latency.record(now_ns.saturating_sub(since_ns));
                self.finish(parts, Ok(()))
            }
            Landed::With(Err(errno)) if last => self.finish(parts, Err(errno)),
            // There is more to write, and we hold the lead until it is written. Others of the worker have their turn first;
            // and a storage that writes at once would have us go deeper with each record.
            Landed::With(Ok(())) => {
                parts.progress.passing = true;
                parts.progress.stage = Stage::Gather;
                waiting(io, token).complete(0);
                Step::Pending
            }
            Landed::With(Err(errno)) => self.give_up(parts, errno, io),
            Landed::Later => {
                // Also in the middle of a pass: no more flights than the format knows.
                parts.progress.passing = !last;
                parts.progress.stage = Stage::Gather;
                Step::Pending
            }
        }
    }

    /// We lead no longer, and those that relied on us get an error.
    fn give_up(&self, parts: &mut Parts<'_>, errno: i32, io: &mut Io<'_>) -> Step {
        call(self.shared.committer.resign(io.clock_ns()));
        self.tell_own(parts, Err(errno), io);
        self.finish(parts, Err(errno))
    }

    /// Tells those that came along with our pass.
    fn tell_own(&self, parts: &mut Parts<'_>, result: Result<(), i32>, io: &mut Io<'_>) {
        let now_ns = io.clock_ns();
        for waiter in parts.progress.waiters.drain(..) {
            self.tell_one(waiter, result, now_ns);
        }
    }

    fn tell(&self, answer: Answer, now_ns: u64) {
        let shared = &self.shared;
        // First whom it takes longest to begin.
        call(answer.next);
        for waiter in answer.waiters {
            self.tell_one(waiter, answer.result, now_ns);
        }
        if answer.result.is_err() {
            shared.poke.ask(Wish::Mend);
        }
        if let Some(batch) = answer.batch {
            shared.committer.keep(batch);
            shared.slots_freed();
        }
    }

    fn tell_one(&self, waiter: Waiter, result: Result<(), i32>, now_ns: u64) {
        self.shared.figures.flush_latency.record(now_ns.saturating_sub(waiter.since_ns));
        waiter.reply.complete(result.map_or_else(|errno| -errno, |()| 0));
    }
}

/// By which a task that waits for a commit is told of its end, or called to lead.
fn waiting(io: &mut Io<'_>, token: Token) -> Reply {
    io.reply_by(COMMIT_JOINED, token.part(Event::Commit.part()))
}

fn call(next: Option<Waiter>) {
    if let Some(next) = next {
        next.reply.complete_part(Event::Lead.part(), 0);
    }
}
