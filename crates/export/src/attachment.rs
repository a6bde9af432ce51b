//! A ring, a device and what stands behind it, joined: what differs from one device to another, and the turns that do not.

use crate::calls::Executor;
use crate::limit::{TURN_BYTES_MAX, is_deadline};
use crate::queue::{Queue, QueuePage};
use crate::turns::{BATCH_MAX, Turns};
use engine::{Completion, Io};
use std::any::Any;
use std::sync::Arc;

/// What a device's ring has to say for itself. What it need not is the same for all: a virtqueue that is served in batches.
///
/// As for an [`engine::Ring`], one thread calls at a time, and nothing may block.
pub(crate) trait Attachment: Any + Send {
    fn turns(&self) -> &Turns;

    fn turns_mut(&mut self) -> &mut Turns;

    /// Its virtqueue, if it has one.
    fn queue(&self) -> Option<&Queue> {
        None
    }

    /// As [`queue`](Self::queue).
    fn queue_mut(&mut self) -> Option<&mut Queue> {
        None
    }

    /// Notes for a dirty log what some of its requests in flight write, from head `from` on. Where to go on, if there are more.
    fn note_in_flight(&mut self, _from: u16) -> Option<u16> {
        None
    }

    /// Where its calls run from now on. What stands behind a disk has its own.
    fn set_executor(&mut self, _executor: Executor) {}

    /// What anybody can read of its virtqueue.
    fn page(&self) -> Arc<QueuePage> {
        self.queue().map(Queue::page).cloned().unwrap_or_default()
    }

    /// Starts the next request. False when there is none that can be started.
    fn next(&mut self, io: &mut Io<'_>) -> bool;

    /// Whether requests wait that could be started now but for a limit.
    fn is_waiting(&self) -> bool {
        self.queue().is_some_and(Queue::ready)
    }

    /// A limit holds requests up: starts those that it does not hold for, and returns how many were taken.
    fn held_up(&mut self, _io: &mut Io<'_>) -> usize {
        0
    }

    /// Whether a turn that has `taken` requests has lasted long enough.
    #[inline]
    fn is_late(&mut self, taken: usize, io: &Io<'_>) -> bool {
        self.turns_mut().is_late(taken, io)
    }

    /// Work has ended that was started for a request, or for something else that is the device's own.
    fn ended(&mut self, completion: Completion, io: &mut Io<'_>);

    /// Shows the client what is answered while the turn goes on, if that is enough to be worth it.
    fn show_some(&mut self, io: &mut Io<'_>);

    /// Shows the client what is answered, and tells it if it wants that.
    fn show(&mut self, io: &mut Io<'_>);

    /// Whether a turn would find something to do.
    fn is_ready(&self) -> bool {
        !self.turns().gate.closed() && self.is_waiting()
    }

    /// The worker is going to sleep: the client is asked to wake it. True when there is something to do after all.
    fn arm(&mut self) -> bool {
        // While the gate is closed a kick would wake the worker for nothing: the gate's deadline wakes it.
        !self.turns().gate.closed() && self.queue_mut().is_some_and(Queue::arm)
    }

    /// As [`engine::Ring::serve`].
    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        serve(self, io)
    }

    /// As [`engine::Ring::complete`].
    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        complete(self, completion, io);
    }

    /// Begins some of what an earlier life of the ring owes: whether there is more. A ring that is not enabled would begin all of it
    /// when it stops, while the worker's other rings wait.
    fn begin_owed(&mut self, _io: &mut Io<'_>) -> bool {
        false
    }

    /// As [`engine::Ring::drain`].
    fn drain(&mut self, io: &mut Io<'_>);

    /// It serves nothing any more: nobody must wait for its answers. `is_dropped` as of [`engine::Ring::lost`].
    fn lost(&mut self, _is_dropped: bool) {}

    /// Requests taken and not yet answered.
    fn requests_in_flight(&self) -> usize {
        self.queue().map_or(0, Queue::in_flight)
    }

    /// Those of them that wait for another client, and can be left to the ring's next life.
    fn requests_to_leave(&self) -> usize {
        0
    }

    /// What the kernel and others do for it.
    fn in_flight(&self) -> usize {
        self.requests_in_flight()
    }

    /// What cannot be waited for is left to the ring's next life from now on. The ring is detached next.
    fn suspend(&mut self) {}

    /// What is left to its next life, once it has been suspended and detached: heads, the oldest first.
    fn take_owed(&mut self) -> Vec<u16> {
        Vec::new()
    }
}

/// A batch of requests.
pub(crate) fn serve<A: Attachment + ?Sized>(ring: &mut A, io: &mut Io<'_>) -> usize {
    let Some(grant) = ring.turns_mut().begin(io) else {
        return ring.held_up(io);
    };
    let begun_bytes = ring.turns().begun_bytes;
    let (mut taken, mut late) = (0, false);
    // Marks are for all that a request could have written, and take their time where it moves nothing. No limit counts them.
    let mut marked_bytes = 0;
    while !late
        && taken < grant.requests as usize
        && marked_bytes < TURN_BYTES_MAX
        && !grant.is_spent(ring.turns().begun_bytes - begun_bytes)
    {
        if !ring.next(io) {
            break;
        }
        taken += 1;
        if let Some(queue) = ring.queue().filter(|queue| queue.is_logging()) {
            marked_bytes += queue.chain.writable_bytes();
        }
        late = ring.is_late(taken, io);
        ring.show_some(io);
    }
    let in_flight = ring.requests_in_flight();
    let spent = ring.turns_mut().settle(grant, taken, begun_bytes, in_flight, io);
    let more = taken == BATCH_MAX || (late || spent || marked_bytes >= TURN_BYTES_MAX) && ring.is_waiting();
    ring.turns_mut().leave(more, io);
    taken
}

/// Something has ended that was started for the ring: a gate's wait, or work of a request's.
pub(crate) fn complete<A: Attachment + ?Sized>(ring: &mut A, completion: Completion, io: &mut Io<'_>) {
    let token = completion.token;
    ring.turns_mut().trace.look(io);
    if !is_deadline(token) {
        return ring.ended(completion, io);
    }
    let waiting = ring.is_waiting();
    if let Some(deadline) = ring.turns_mut().gate.reached(token, waiting, io.now_ns()) {
        io.timer(deadline.token, deadline.at_ns);
    }
}

/// The turn is over: shows what was answered, and tells the client if it wants that.
pub(crate) fn publish<A: Attachment + ?Sized>(ring: &mut A, io: &mut Io<'_>) {
    ring.show(io);
    ring.turns_mut().shown(io);
}
