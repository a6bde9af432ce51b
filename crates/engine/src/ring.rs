//! What a worker drives: one ring, as a value.

use crate::{Completion, Io, Panic};
use std::os::fd::BorrowedFd;

/// One virtqueue with everything its owner needs to serve it.
///
/// A ring is owned by one worker at a time, and only that worker's thread calls these methods, so none of them needs a
/// lock. Moving a ring to another worker moves the value. No method may block.
pub trait Ring: Send + 'static {
    /// The eventfd by which the frontend says that it made requests available; `None` where it never kicks and must be
    /// polled. The answer and the descriptor stay the same while the ring is attached: the worker asks once and watches.
    fn kick(&self) -> Option<BorrowedFd<'_>>;

    /// Whether nothing wakes the worker when requests come, so that it must not sleep while it owns the ring. A ring that never
    /// kicks but is told of its client by [`Io::receive`] says no.
    fn must_poll(&self) -> bool {
        self.kick().is_none()
    }

    /// Whether requests wait that [`serve`](Self::serve) would take now: a ring that is broken, disabled or out of room says
    /// no, since a worker never sleeps while one says yes. Called in every round of a poll window: one load, no side effect.
    fn ready(&self) -> bool;

    /// Takes waiting requests (a bounded batch) and starts them. Returns how many were taken.
    fn serve(&mut self, io: &mut Io<'_>) -> usize;

    /// One piece of work that was started through [`Io`] has ended, here or on the worker that owned the ring before.
    fn complete(&mut self, completion: Completion, io: &mut Io<'_>);

    /// Shows finished requests to the driver and notifies it where it asked for that. Called once a turn in which
    /// [`serve`](Self::serve) or [`complete`](Self::complete) ran.
    fn publish(&mut self, io: &mut Io<'_>);

    /// Asks the driver to kick from now on. True when requests arrived before it could know: the ring must be served
    /// again first.
    fn arm(&mut self) -> bool;

    /// Tells the driver that kicks are not needed, because the worker is looking.
    fn disarm(&mut self);

    /// The ring is to stop: no more requests will be taken, and it is handed back once those in flight have ended. What
    /// could wait for ever (a lock that somebody else holds) has to be given up now.
    fn drain(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// A call into this ring panicked, or the worker under it did. No other method is called any more, what is in flight is
    /// never answered. The value is dropped when all that it has begun has ended, on a thread of its own, if `is_dropped`; or else
    /// nobody can say when that is, and it never is. Called on a worker's thread, between two of its turns or at its end, and again if
    /// the worker dies before the value is dropped; it must not block.
    fn lost(&mut self, why: &Panic, is_dropped: bool) {
        let _ = (why, is_dropped);
    }

    /// Requests taken and not yet shown as used. A ring is drained when this is 0.
    fn in_flight(&self) -> usize;
}
