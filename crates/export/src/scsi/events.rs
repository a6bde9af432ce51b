//! The event queue: buffers of the driver's wait there until there is something to tell (virtio 1.3, 5.6.6.3).

use super::kind::Kind;
use crate::attachment::Attachment;
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::turns::Turns;
use crate::virtqueue::Virtqueue;
use device::scsi::Event;
use engine::{Completion, Io};
use std::collections::VecDeque;
use vhost_user::RingStart;

/// Events that wait for a buffer at most. Of more, the driver is told that it has missed some, and looks at everything.
const WAITING_MAX: usize = 64;

/// The event queue of a device.
pub(crate) struct EventRing {
    turns: Turns,
    ring: Virtqueue<()>,
    waiting: VecDeque<Event>,
    missed: bool,
}

impl EventRing {
    pub(crate) fn new(start: RingStart, label: Label) -> Result<EventRing, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(&Kind::NAMES, queue.size().into(), label);
        let ring = Virtqueue::new(queue, &turns.figures, || ());
        Ok(EventRing { turns, ring, waiting: VecDeque::new(), missed: false })
    }

    /// Tells the driver, in the next turn or with its next buffer.
    pub(crate) fn tell(&mut self, event: Event) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(event);
        } else {
            self.missed = true;
        }
    }

    fn has_news(&self) -> bool {
        self.missed || !self.waiting.is_empty()
    }
}

impl Attachment for EventRing {
    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.ring.queue)
    }

    fn queue_mut(&mut self) -> Option<&mut Queue> {
        Some(&mut self.ring.queue)
    }

    fn note_in_flight(&mut self, from: u16) -> Option<u16> {
        self.ring.note_in_flight(from)
    }

    /// Buffers are no requests: nothing is taken until there is something to tell.
    fn next(&mut self, io: &mut Io<'_>) -> bool {
        if !self.has_news() {
            return false;
        }
        let Some(head) = self.ring.pop(io.now_ns()) else { return false };
        let event = self.waiting.pop_front().unwrap_or(Event::None).encode(std::mem::take(&mut self.missed));
        let written = vring::copy::write_at(self.ring.queue.chain.writable_segments(), 0, &event);
        let slot = self.ring.slot(head);
        slot.kind = Kind::Event as usize;
        self.turns.answered(slot, false, io.now_ns());
        // It was cut to what there was room for: an event is 16 bytes long.
        self.ring.finish(head, written as u32);
        true
    }

    fn is_waiting(&self) -> bool {
        self.has_news() && self.ring.queue.ready()
    }

    /// What the driver offers is looked at only while there is something to tell.
    fn arm(&mut self) -> bool {
        self.has_news() && self.ring.queue.arm()
    }

    fn ended(&mut self, completion: Completion, _io: &mut Io<'_>) {
        debug_assert!(false, "nothing is started for an event, and {:?} completed", completion.token);
    }

    fn show_some(&mut self, _io: &mut Io<'_>) {}

    fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
    }

    fn lost(&mut self) {
        self.ring.abandon();
    }

    /// A buffer that an earlier life has taken was for an event that it could not tell any more.
    fn drain(&mut self, io: &mut Io<'_>) {
        while let Some(head) = self.ring.pop_owed(io.now_ns()) {
            let event = Event::None.encode(true);
            let written = vring::copy::write_at(self.ring.queue.chain.writable_segments(), 0, &event);
            self.ring.finish(head, written as u32);
        }
    }
}
