//! Asking workers and telling rings, without waiting for a worker that hangs.

use super::{Engine, EngineError};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::mailbox::{Mail, Mailbox, Pulse, RingMail};
use crate::{Io, Ring, RingId, WorkerFigures};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a worker may take to answer a question that its rings do not depend on.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Messages that may wait for a worker before it is asked no more questions: those who ask must not fill the memory of a
/// daemon whose worker hangs.
const QUESTIONS_MAX: usize = 1024;

/// What a ring was told by [`Engine::tell_ring`], and may not have heard yet.
#[must_use = "the ring may not have heard of it yet"]
#[derive(Debug)]
pub struct Told(Receiver<()>);

impl Told {
    /// When those who told rings something at `start` have waited long enough.
    pub fn deadline(start: Instant) -> Instant {
        start + ANSWER_TIMEOUT
    }

    /// Waits until the ring has heard it, but no longer than this. False when it has not: it will when its worker goes on.
    /// True as well when the ring is gone.
    pub fn heard_by(self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
    }
}

impl<R: Ring> Engine<R> {
    /// What a worker has done so far. Reads its page: works for a hung worker too, and wakes none.
    ///
    /// # Errors
    /// No such worker, or a dead one.
    pub fn worker_figures(&self, number: u32) -> Result<WorkerFigures, EngineError> {
        let mailbox = self.mailbox(number)?;
        let tid = self.shared.directory.lock().workers.get(&number).map_or(0, |worker| worker.tid);
        // Zero while the thread has not started yet, and once it has ended.
        let cpu_ns = if tid == 0 { None } else { thread_cpu_ns(tid) };
        Ok(mailbox.figures.read(cpu_ns.unwrap_or_default()))
    }

    /// Pings a worker, to see that it takes its turns.
    ///
    /// # Errors
    /// No such worker, a dead one, or one that does not answer within a second.
    pub fn worker_answers(&self, number: u32) -> Result<(), EngineError> {
        let mailbox = self.mailbox(number)?;
        answered(number, &mailbox)?;
        let (sender, receiver) = channel();
        mailbox.send(Mail::Ping(sender)).map_err(|_| EngineError::WorkerDead(number))?;
        receiver.recv_timeout(ANSWER_TIMEOUT).map_err(|_| answered_late(number, &mailbox))
    }

    /// As [`with_ring`](Self::with_ring), for those who only want to know: they do not wait for a worker that hangs.
    ///
    /// # Errors
    /// No such ring, or its worker does not answer within a second; `f` may still run later.
    pub fn ask_ring<T: Send + 'static>(
        &self,
        id: RingId,
        f: impl FnOnce(&mut R, &mut Io<'_>) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (home, mailbox) = self.home(id)?;
        answered(home, &mailbox)?;
        let (done, answer): (Sender<T>, Receiver<T>) = channel();
        let run = Box::new(move |ring: &mut R, io: &mut Io<'_>| {
            let _ = done.send(f(ring, io));
        });
        self.ring_mail(id, RingMail::With(run))?;
        answer.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Disconnected => EngineError::NoSuchRing,
            RecvTimeoutError::Timeout => answered_late(home, &mailbox),
        })
    }

    /// As [`with_ring`](Self::with_ring), without waiting: `f` runs between two turns of the ring's worker. It runs behind all that
    /// the ring has heard by now; what it was told and has not heard, it may overtake where the ring moves meanwhile.
    ///
    /// # Errors
    /// No such ring, or too much waits for its worker already.
    pub fn tell_ring(
        &self,
        id: RingId,
        f: impl FnOnce(&mut R, &mut Io<'_>) + Send + 'static,
    ) -> Result<Told, EngineError> {
        let (home, mailbox) = self.home(id)?;
        if mailbox.waiting() >= QUESTIONS_MAX {
            return Err(answered_late(home, &mailbox));
        }
        self.order_ring(id, f)
    }

    /// As above, however much waits for its worker: for what must not be lost, and comes as seldom as a ring can be asked before it.
    ///
    /// # Errors
    /// No such ring.
    pub fn order_ring(
        &self,
        id: RingId,
        f: impl FnOnce(&mut R, &mut Io<'_>) + Send + 'static,
    ) -> Result<Told, EngineError> {
        let (done, heard) = channel();
        let run = Box::new(move |ring: &mut R, io: &mut Io<'_>| {
            f(ring, io);
            let _ = done.send(());
        });
        self.ring_mail(id, RingMail::With(run))?;
        Ok(Told(heard))
    }

    /// Whether the ring's worker takes its turns, as far as that can be seen without asking it.
    ///
    /// # Errors
    /// No such ring, or its worker has been busy with one thing for more than a second.
    pub fn takes_turns(&self, id: RingId) -> Result<(), EngineError> {
        let (home, mailbox) = self.home(id)?;
        answered(home, &mailbox)
    }
}

/// Refuses to ask a worker that has not answered for too long.
pub(super) fn answered<R>(number: u32, mailbox: &Mailbox<R>) -> Result<(), EngineError> {
    let stuck = matches!(mailbox.pulse(), Pulse::Busy { since_ns }
        if Duration::from_nanos(monotonic_ns().saturating_sub(since_ns)) > ANSWER_TIMEOUT);
    if stuck || mailbox.waiting() >= QUESTIONS_MAX { Err(answered_late(number, mailbox)) } else { Ok(()) }
}

/// What a question to this worker came to that was not answered in time.
pub(super) fn answered_late<R>(worker: u32, mailbox: &Mailbox<R>) -> EngineError {
    if mailbox.is_closed() {
        return EngineError::WorkerDead(worker);
    }
    let now_ns = monotonic_ns();
    let since_ns = match mailbox.pulse() {
        Pulse::Busy { since_ns } => since_ns,
        Pulse::Idle | Pulse::Waiting => now_ns,
    };
    EngineError::Unresponsive { worker, since_ns, busy_ms: now_ns.saturating_sub(since_ns) / 1_000_000 }
}
