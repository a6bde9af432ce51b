//! What has ended or has come: completions, kicks, deadlines.

use super::Worker;
use crate::lane::{Reaped, Tag};
use crate::mailbox::RingMail;
use crate::slots::ring_of;
use crate::{Completion, Ring};

impl<R: Ring> Worker<R> {
    pub(super) fn take_completions(&mut self) -> bool {
        self.lane.reap();
        let mut any = !self.lane.completions.is_empty();
        let mut completions = std::mem::take(&mut self.lane.completions);
        let (mut handled, began_ns) = (0, self.lane.now_ns);
        for completion in &completions {
            if self.had_enough(handled, began_ns) {
                break;
            }
            handled += 1;
            match completion.tag {
                Tag::Request { slot, token } => self.complete(slot, Completion::new(token, completion.result)),
                Tag::Receive { slot, token } => self.received(slot, Completion::new(token, completion.result)),
                Tag::Kick { slot } => self.kicked(slot, completion),
                Tag::Mail if !completion.more => self.lane.watch(Tag::Mail, self.mailbox.wake_fd()),
                Tag::Mail | Tag::Silent => {}
            }
        }
        self.lane.figures.cqes.add(handled as u64);
        // Handing the buffer back keeps its capacity; completions that a full queue forced out meanwhile come behind what is left.
        completions.drain(..handled);
        completions.append(&mut self.lane.completions);
        self.lane.completions = completions;
        while let Some(due) = self.lane.timers.pop_due(self.lane.now_ns) {
            any = true;
            self.complete(due.slot, Completion::new(due.token, 0));
        }
        any
    }

    fn kicked(&mut self, slot: u32, completion: &Reaped) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let renew = entry.renew_watch(completion.more, completion.result);
        let Some(here) = &mut entry.here else {
            self.retire(slot);
            return;
        };
        here.stay.kicks.add(1);
        here.kicked = true;
        if renew {
            self.watch_kick(slot);
        } else if !completion.more {
            let (ring, result) = (entry.id.0, completion.result);
            tracing::warn!(ring, result, "the kick descriptor cannot be watched; the ring gets no kicks any more");
        }
        self.touch(slot);
    }

    /// Work that was started from `slot` on this worker has ended.
    pub(super) fn complete(&mut self, slot: u32, completion: Completion) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            debug_assert!(false, "completion for slot {slot}, which nobody holds");
            return;
        };
        entry.outstanding -= 1;
        self.outstanding -= 1;
        self.deliver(slot, completion);
    }

    /// A ring's client has said something, or will not do so here.
    fn received(&mut self, slot: u32, completion: Completion) {
        if let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            entry.awaited = None;
            self.deliver(slot, completion);
        }
    }

    /// To the ring in this slot, or after the one that was there.
    fn deliver(&mut self, slot: u32, completion: Completion) {
        if ring_of(&self.slots, slot).is_some() {
            self.complete_here(slot, completion);
        } else if let Some(entry) = &self.slots[slot as usize] {
            let id = entry.id;
            self.retire(slot);
            self.directory.forward(id, RingMail::Completion(completion));
        }
    }

    pub(super) fn complete_here(&mut self, slot: u32, completion: Completion) {
        self.drive(slot, |here, io| here.ring.complete(completion, io));
        self.mark_dirty(slot);
        // The driver will soon fill the place that this completion freed.
        self.touch(slot);
    }
}
