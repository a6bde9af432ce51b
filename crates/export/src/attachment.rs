//! A ring, a device and what stands behind it, joined: what differs from one device to another, and the ring that workers drive.

use crate::calls::Executor;
use crate::page::RingPage;
use crate::queue::{Queue, QueuePage};
use crate::turns::{self, Turns};
use engine::{Completion, Io, Panic};
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vring::RingPosition;

/// What a device's ring has to say for itself. What it need not is the same for all: a virtqueue that is served in batches.
///
/// As for an [`engine::Ring`], one thread calls at a time, and nothing may block.
pub(crate) trait Attachment: Any + Send {
    fn turns(&self) -> &Turns;

    fn turns_mut(&mut self) -> &mut Turns;

    /// Its virtqueue, if it has one.
    fn queue(&self) -> Option<&Queue>;

    /// As [`queue`](Self::queue).
    fn queue_mut(&mut self) -> Option<&mut Queue>;

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
        turns::serve(self, io)
    }

    /// As [`engine::Ring::complete`].
    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        turns::complete(self, completion, io);
    }

    /// As [`engine::Ring::drain`].
    fn drain(&mut self, io: &mut Io<'_>);

    /// It serves nothing any more: nobody must wait for its answers.
    fn lost(&mut self) {}

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

/// A ring of any device, so that one worker serves disks and directories.
pub struct Ring(Box<dyn Attachment>);

impl Ring {
    pub(crate) fn new(attachment: impl Attachment) -> Ring {
        Ring(Box::new(attachment))
    }

    /// The device's own, for what only such a device is told.
    pub(crate) fn of<A: Attachment>(&mut self) -> Option<&mut A> {
        (&mut *self.0 as &mut dyn Any).downcast_mut()
    }

    pub(crate) fn attachment_mut(&mut self) -> &mut dyn Attachment {
        &mut *self.0
    }

    /// The place from which its next life takes requests.
    pub(crate) fn position(&self) -> RingPosition {
        self.0.queue().map(Queue::position).unwrap_or_default()
    }

    /// Requests taken and not yet answered, without those that can be left to the ring's next life.
    pub(crate) fn requests_to_drain(&self) -> usize {
        self.0.requests_in_flight() - self.0.requests_to_leave()
    }

    /// What can be known of it without asking its worker, for as long as somebody wants to.
    pub(crate) fn page(&self) -> RingPage {
        let turns = self.0.turns();
        RingPage { counters: turns.figures.clone(), held: turns.gate.held().clone(), queue: self.0.page() }
    }
}

impl engine::Ring for Ring {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.0.queue()?.kick()
    }

    /// A connection is told of its client by what it receives.
    fn must_poll(&self) -> bool {
        self.0.queue().is_some_and(|queue| queue.kick().is_none())
    }

    fn ready(&self) -> bool {
        self.0.is_ready()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        self.0.serve(io)
    }

    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        self.0.complete(completion, io);
    }

    fn publish(&mut self, io: &mut Io<'_>) {
        turns::publish(&mut *self.0, io);
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn disarm(&mut self) {
        if let Some(queue) = self.0.queue_mut() {
            queue.disarm();
        }
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        self.0.drain(io);
    }

    fn lost(&mut self, why: &Panic) {
        self.0.lost();
        self.0.turns().label.lost(why);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}
