//! Rings that come to a worker and leave it: moved, handed back, or lost.

use super::Worker;
use crate::lane::Tag;
use crate::mailbox::{Mail, RingMail};
use crate::panic::catch;
use crate::slots::{Arrival, Here, Slot, ring_of, ring_of_mut};
use crate::{Panic, Ring, RingId};
use std::collections::VecDeque;
use std::sync::mpsc::Sender;

impl<R: Ring> Worker<R> {
    pub(super) fn adopt(&mut self, id: RingId, arrival: Arrival<R>) {
        let index = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let slot = index as u32;
        self.slots[index] = Some(Slot::new(id, arrival, self.lane.now_ns));
        self.watch_kick(slot);
        self.by_id.insert(id, slot);
        self.touch(slot);
    }

    pub(super) fn watch_kick(&mut self, slot: u32) {
        if let Some(Slot { here: Some(here), watched, .. }) = self.slots[slot as usize].as_mut()
            && let Some(kick) = here.ring.kick()
        {
            self.lane.watch(Tag::Kick { slot }, kick);
            *watched = true;
        }
    }

    /// Hands the ring to another worker. What was started here ends here and is forwarded.
    pub(super) fn release(&mut self, slot: u32, to: u32, done: Sender<bool>) {
        if to == self.number {
            let _ = done.send(true);
            return;
        }
        if ring_of(&self.slots, slot).is_none_or(|here| here.detach.is_some()) {
            return;
        }
        let Some((id, here)) = self.take_out(slot) else {
            return;
        };
        // Counted before the hand-over: the new owner writes the page from then on.
        here.stay.moves.add(1);
        let stay = here.stay.clone();
        let arrival = Arrival { ring: here.ring, stay: here.stay, remains: here.remains };
        // The target may have died between the engine's check and now: then the ring stays.
        if let Err(Mail::Adopt { id, arrival, done }) =
            self.directory.hand_over(id, to, stay, Mail::Adopt { id, arrival, done })
        {
            self.adopt(id, arrival);
            let _ = done.send(false);
        }
    }

    /// Takes no more requests from the ring; it is handed back once those in flight have ended.
    pub(super) fn detach(&mut self, slot: u32, done: Sender<R>) {
        if let Some(here) = ring_of_mut(&mut self.slots, slot)
            && here.detach.is_none()
        {
            here.ring.disarm();
            here.active = false;
            here.detach = Some(done);
            self.active.retain(|&active| active != slot);
            self.detaching.push(slot);
            self.drive(slot, |here, io| here.ring.drain(io));
            self.mark_dirty(slot);
        }
    }

    /// Hands back the rings that were to be detached and have nothing in flight any more.
    pub(super) fn finish_detaches(&mut self) {
        loop {
            let drained = |&slot: &u32| ring_of(&self.slots, slot).is_none_or(|here| here.ring.in_flight() == 0);
            let Some(index) = self.detaching.iter().position(drained) else {
                return;
            };
            let slot = self.detaching.swap_remove(index);
            let Some((id, here)) = self.take_out(slot) else {
                continue;
            };
            self.directory.left(id);
            if let Some(done) = here.detach
                && let Err(unwanted) = done.send(*here.ring)
            {
                // Whoever wanted it has panicked meanwhile.
                self.directory.burials.bury(Box::new(unwanted.0));
            }
        }
    }

    /// Takes a ring out of its slot and stops watching its kick.
    fn take_out(&mut self, slot: u32) -> Option<(RingId, Here<R>)> {
        self.drive(slot, |here, io| here.ring.publish(io))?;
        let entry = self.slots[slot as usize].as_mut()?;
        let here = entry.here.take()?;
        entry.left = entry.is_owed().then(|| here.remains.clone());
        let id = entry.id;
        if entry.watched {
            self.lane.unwatch(Tag::Kick { slot });
        }
        if let Some(token) = entry.awaited {
            // A client may wait for ever before it says something, and this worker is not to wait with it.
            self.lane.unwatch(Tag::Receive { slot, token });
        }
        // Queued entries name descriptors by number, which the ring's next owner may close: the kernel must have them first.
        self.submit_queued();
        self.by_id.remove(&id);
        self.active.retain(|&active| active != slot);
        self.dirty.retain(|&dirty| dirty != slot);
        self.retire(slot);
        Some((id, here))
    }

    /// Frees a slot that no ring and no completion needs any more.
    pub(super) fn retire(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if entry.as_ref().is_some_and(|entry| entry.here.is_none() && !entry.is_owed() && !entry.watched)
            && let Some(left) = entry.take().and_then(|entry| entry.left)
            && let Some(fallen) = left.let_go()
        {
            self.directory.burials.bury(fallen);
        }
    }

    /// A call into the ring panicked, or it waits for what will never come: it is out, and the worker goes on with the others.
    pub(super) fn fall(&mut self, slot: u32, why: &Panic) {
        // Queued entries name the ring's descriptors by number: the kernel must have them first.
        self.submit_queued();
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some(Here { ring, remains, .. }) = entry.here.take() else {
            return;
        };
        let id = entry.id;
        let watched = entry.watched;
        self.by_id.remove(&id);
        self.active.retain(|&active| active != slot);
        self.dirty.retain(|&dirty| dirty != slot);
        self.detaching.retain(|&detaching| detaching != slot);
        // Nobody finds it any more when those hear of it who may ask for it.
        self.directory.left(id);
        remains.keep(ring, |ring, is_dropped| tell(ring, why, is_dropped));
        entry.left = Some(remains);
        if watched {
            self.lane.unwatch(Tag::Kick { slot });
        }
        self.retire(slot);
    }

    /// After a panic of the worker itself: tells the rings that they are lost, those in `mail` too, lets those go who wait
    /// for one, and leaves everything else as it is. The kernel may still write to memory that the rings keep mapped, so that
    /// they must never be dropped.
    pub(crate) fn abandon(mut self, mail: VecDeque<Mail<R>>, why: &Panic) {
        for entry in self.slots.iter_mut().flatten() {
            if let Some(left) = &entry.left {
                left.stay(|ring, is_dropped| tell(ring, why, is_dropped));
            }
            let is_owed = entry.is_owed();
            match &mut entry.here {
                Some(here) => {
                    here.detach = None;
                    tell(&mut *here.ring, why, false);
                }
                // Its ring has moved on, and waits on another worker for what nobody will bring it; or it has fallen, and has gone.
                None if is_owed => self.directory.forward(entry.id, RingMail::Lose(why.clone())),
                None => {}
            }
        }
        let unread = std::mem::take(&mut self.mail);
        for message in unread.into_iter().chain(mail) {
            match message {
                Mail::Adopt { mut arrival, .. } => {
                    tell(&mut *arrival.ring, why, false);
                    // What it started elsewhere may still be under way.
                    std::mem::forget(arrival);
                }
                // Of a ring that has moved on meanwhile, and may wait for just this; it goes nowhere if the ring is lost.
                Mail::Ring(id, mail) => self.directory.forward(id, mail),
                _ => {}
            }
        }
        std::mem::forget(self);
    }
}

/// Tells a ring that it is lost. What it does about that must not harm the worker.
fn tell<R: Ring>(ring: &mut R, why: &Panic, is_dropped: bool) {
    if let Err(again) = catch(|| ring.lost(why, is_dropped)) {
        tracing::error!(reason = %again, "a ring that was lost could not say so");
    }
}
