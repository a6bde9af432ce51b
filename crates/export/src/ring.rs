//! What workers drive: a ring of any device.

use crate::attachment::{self, Attachment};
use crate::page::RingPage;
use crate::queue::Queue;
use engine::{Completion, Io, Panic};
use std::any::Any;
use std::os::fd::BorrowedFd;
use vring::RingPosition;

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

    /// Requests taken and not yet answered.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.0.requests_in_flight()
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
        attachment::publish(&mut *self.0, io);
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

    fn lost(&mut self, why: &Panic, is_dropped: bool) {
        self.0.lost(is_dropped);
        self.0.turns().label.lost(why);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
}
