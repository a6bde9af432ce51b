//! The event queue: buffers of the driver's wait there until there is something to tell (virtio 1.3, 5.6.6.3).
//!
//! What is to be told is the device's: the queue may not run yet, or be stopped for a while.

use super::kind::Kind;
use crate::attachment::Attachment;
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::turns::Turns;
use crate::virtqueue::Virtqueue;
use device::scsi::Event;
use device::scsi::spec::EVENT_BYTES;
use engine::{Completion, Io};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost_user::RingStart;

/// Events that wait for a buffer at most. Of more, the driver is told that it has missed some, and looks at everything.
const WAITING_MAX: usize = 64;

/// What a driver is to be told.
#[derive(Default)]
pub(crate) struct News(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    missed: bool,
}

impl News {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is told of this, with its next buffer.
    pub(crate) fn add(&self, event: Event) {
        let mut waiting = self.lock();
        if waiting.events.len() < WAITING_MAX {
            waiting.events.push_back(event);
        } else {
            waiting.missed = true;
        }
    }

    /// Something may have happened that nobody has told it of.
    pub(crate) fn missed(&self) {
        self.lock().missed = true;
    }

    /// Whoever hears it next may be another driver: it looks at everything.
    pub(crate) fn forget(&self) {
        let mut waiting = self.lock();
        waiting.missed |= !waiting.events.is_empty();
        waiting.events.clear();
    }

    /// The driver wants to hear of nothing, or looks at everything as it begins.
    pub(crate) fn clear(&self) {
        *self.lock() = Waiting::default();
    }

    /// Whether there is something to tell.
    pub(crate) fn is_any(&self) -> bool {
        let waiting = self.lock();
        waiting.missed || !waiting.events.is_empty()
    }

    /// The next event, as the driver reads it.
    fn take(&self) -> [u8; EVENT_BYTES] {
        let mut waiting = self.lock();
        let event = waiting.events.pop_front().unwrap_or(Event::None);
        event.encode(std::mem::take(&mut waiting.missed))
    }
}

/// The event queue of a device.
pub(crate) struct EventRing {
    turns: Turns,
    ring: Virtqueue<()>,
    news: Arc<News>,
}

impl EventRing {
    pub(crate) fn new(start: RingStart, news: Arc<News>, label: Label) -> Result<EventRing, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(&Kind::NAMES, queue.size().into(), label);
        let ring = Virtqueue::new(queue, &turns.figures, || ());
        Ok(EventRing { turns, ring, news })
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
        if !self.news.is_any() {
            return false;
        }
        let Some(head) = self.ring.pop(io.now_ns()) else { return false };
        let event = self.news.take();
        let written = vring::copy::write_at(self.ring.queue.chain.writable_segments(), 0, &event);
        let slot = self.ring.slot(head);
        slot.kind = Kind::Event as usize;
        self.turns.answered(slot, false, io);
        // It was cut to what there was room for: an event is 16 bytes long.
        self.ring.finish(head, written as u32);
        true
    }

    fn is_waiting(&self) -> bool {
        self.news.is_any() && self.ring.queue.ready()
    }

    /// What the driver offers is looked at only while there is something to tell.
    fn arm(&mut self) -> bool {
        !self.turns.gate.closed() && self.news.is_any() && self.ring.queue.arm()
    }

    fn ended(&mut self, completion: Completion, _io: &mut Io<'_>) {
        debug_assert!(false, "nothing is started for an event, and {:?} completed", completion.token);
    }

    fn show_some(&mut self, _io: &mut Io<'_>) {}

    fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
    }

    fn lost(&mut self, _is_dropped: bool) {
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
