//! The worker loop: one thread, one io_uring, one mailbox, and the rings attached to it.
//!
//! A turn: take mail; take completions and deadlines; serve every ring that has requests; publish once a ring; then one
//! system call that submits everything and, when there is nothing left to do, sleeps.

use crate::directory::Directory;
use crate::figures::RingStay;
use crate::lane::{Completion, Lane, Tag};
use crate::mailbox::{Mail, Mailbox, Post, RingMail};
use crate::panic::catch;
use crate::poll::PollWindow;
use crate::slots::{Here, Slot, ring_of, ring_of_mut};
use crate::{Io, Panic, PollMode, Ring, RingId, Token};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Sender, channel};

/// Looking instead of sleeping shortens the wait of a guest that waits for one answer. With more work than this under way
/// the guest has enough to do, and a sleep lets completions gather.
const POLL_OUTSTANDING_MAX: u32 = 2;
/// How long a ring without requests stays unarmed on a worker that is kept busy by others, in nanoseconds.
const LINGER_NS: u64 = 50_000;
/// With many requests under way, this share of them is worth waiting for in one sleep...
const GATHER_SHARE: u32 = 8;
/// ...but never more than this many...
const GATHER_MAX: u32 = 16;
/// ...nor longer than this, in microseconds.
const GATHER_US: u32 = 30;

pub(crate) struct Worker<R: Ring> {
    number: u32,
    lane: Lane,
    mailbox: Arc<Mailbox<R>>,
    post: Arc<dyn Post>,
    directory: Arc<Directory<R>>,
    slots: Vec<Option<Slot<R>>>,
    by_id: HashMap<RingId, u32>,
    active: Vec<u32>,
    dirty: Vec<u32>,
    detaching: Vec<u32>,
    mail: VecDeque<Mail<R>>,
    poll: PollWindow,
    /// When the worker ran out of work.
    idle_since_ns: Option<u64>,
    outstanding: u32,
    /// The turn that begins follows a sleep.
    slept: bool,
    stopping: bool,
}

impl<R: Ring> Worker<R> {
    pub(crate) fn new(
        number: u32,
        mailbox: Arc<Mailbox<R>>,
        directory: Arc<Directory<R>>,
        poll: PollMode,
    ) -> std::io::Result<Self> {
        let mut lane = Lane::new()?;
        lane.watch(Tag::Mail, mailbox.wake_fd());
        Ok(Worker {
            number,
            lane,
            post: mailbox.clone(),
            mailbox,
            directory,
            slots: Vec::new(),
            by_id: HashMap::new(),
            active: Vec::new(),
            dirty: Vec::new(),
            detaching: Vec::new(),
            mail: VecDeque::new(),
            poll: PollWindow::new(poll),
            idle_since_ns: None,
            outstanding: 0,
            slept: false,
            stopping: false,
        })
    }

    /// Runs until told to stop and nothing is left to finish.
    pub(crate) fn run(&mut self) {
        loop {
            self.lane.figures.turns += 1;
            self.lane.tick();
            self.mailbox.turns(self.lane.now_ns);
            if std::mem::take(&mut self.slept) {
                // The pulse before the look at who watches; see `Directory::watch_for_work`.
                fence(Ordering::SeqCst);
                self.directory.stir();
            }
            let mut worked = self.take_mail();
            worked |= self.take_completions();
            worked |= self.serve();
            self.publish();
            self.finish_detaches();
            if self.stopping && self.by_id.is_empty() && self.slots.iter().all(Option::is_none) {
                self.lane.forget_files();
                return;
            }
            if worked {
                self.found_work();
                if self.anything_ready() {
                    self.flush();
                    continue;
                }
                self.idle_since_ns = Some(self.lane.now_ns);
            }
            if !self.look() {
                self.sleep();
            }
        }
    }

    /// After a panic of the worker itself: tells the rings that they are lost, those in `mail` too, lets those go who wait
    /// for one, and leaves everything else as it is. The kernel may still write to memory that the rings keep mapped, so that
    /// they must never be dropped.
    pub(crate) fn abandon(mut self, mail: VecDeque<Mail<R>>, why: &Panic) {
        for entry in self.slots.iter_mut().flatten() {
            let owed = entry.is_owed();
            match &mut entry.here {
                Some(here) => {
                    here.detach = None;
                    tell(&mut *here.ring, why);
                }
                // Its ring has moved on, and waits on another worker for what nobody will bring it.
                None if owed && entry.fallen.is_none() => {
                    self.directory.forward(entry.id, RingMail::Lose(why.clone()));
                }
                None => {}
            }
        }
        let unread = std::mem::take(&mut self.mail);
        for message in unread.into_iter().chain(mail) {
            if let Mail::Adopt { mut ring, .. } = message {
                tell(&mut *ring, why);
                // What it started elsewhere may still be under way.
                std::mem::forget(ring);
            }
        }
        std::mem::forget(self);
    }

    /// A call into the ring panicked, or it waits for what will never come: it is out, and the worker goes on with the others.
    fn fall(&mut self, slot: u32, why: &Panic) {
        // Queued entries name the ring's descriptors by number: the kernel must have them first.
        self.submit_queued();
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let Some(Here { mut ring, stay, .. }) = entry.here.take() else {
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
        tell(&mut *ring, why);
        if stay.moves == 0 {
            entry.fallen = Some(ring);
        } else {
            // A worker that it was on before may still do work for it, whose end will find nobody.
            std::mem::forget(ring);
        }
        if watched {
            self.lane.unwatch(Tag::Kick { slot });
        }
        self.retire(slot);
    }

    /// Tells the poll window how long the worker had waited.
    fn found_work(&mut self) {
        if let Some(since) = self.idle_since_ns.take() {
            self.poll.observe(self.lane.now_ns.saturating_sub(since));
        }
    }

    fn flush(&mut self) {
        if self.lane.queued() > 0 || self.lane.has_completions() {
            self.lane.submit();
        }
    }

    fn submit_queued(&mut self) {
        if self.lane.queued() > 0 {
            self.lane.submit();
        }
    }

    fn anything_ready(&mut self) -> bool {
        self.mailbox.pending()
            || !self.lane.completions.is_empty()
            || self.lane.has_completions()
            || self.active.iter().any(|&slot| ring_of(&self.slots, slot).is_some_and(|here| here.ring.ready()))
    }

    /// Spends the poll window looking for work. True when there is some.
    fn look(&mut self) -> bool {
        let window_ns = self.poll.window_ns();
        let Some(since_ns) = self.idle_since_ns.filter(|_| window_ns > 0 && self.outstanding <= POLL_OUTSTANDING_MAX)
        else {
            return false;
        };
        let end_ns = since_ns.saturating_add(window_ns);
        if self.lane.now_ns >= end_ns {
            return false;
        }
        self.flush();
        loop {
            if self.anything_ready() {
                if self.lane.has_completions() {
                    self.lane.submit();
                }
                self.lane.figures.polls_hit += 1;
                return true;
            }
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            self.lane.tick();
            if self.lane.timers.next_ns().is_some_and(|at| at <= self.lane.now_ns) {
                return true;
            }
            if self.lane.now_ns >= end_ns {
                self.lane.figures.polls_missed += 1;
                return false;
            }
        }
    }

    /// Arms every kick and waits in the kernel.
    fn sleep(&mut self) {
        if !self.arm_all() {
            // Rings that never kick keep the worker from sleeping, not its work from the kernel.
            self.flush();
            return;
        }
        let owed = self.outstanding > 0;
        self.mailbox.rests(owed);
        if self.mailbox.may_sleep() {
            if owed {
                self.directory.stir();
            }
            self.slept = true;
            self.lane.figures.sleeps += 1;
            let want = (self.lane.in_kernel / GATHER_SHARE).clamp(1, GATHER_MAX);
            self.lane.submit_and_wait(want as usize, GATHER_US);
            self.mailbox.awake();
        }
    }

    /// False when a ring has requests after all.
    fn arm_all(&mut self) -> bool {
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&slot| {
            let Some(here) = ring_of_mut(&mut self.slots, slot) else {
                return false;
            };
            if !here.ring.must_poll() {
                here.arm();
            }
            here.active
        });
        let all_armed = active.is_empty();
        self.active = active;
        all_armed
    }

    fn take_mail(&mut self) -> bool {
        if !self.mailbox.pending() {
            return false;
        }
        self.mailbox.take(&mut self.mail);
        let any = !self.mail.is_empty();
        // A message may close descriptors that queued entries name by number.
        self.submit_queued();
        // One by one, so that a panic leaves the others where they are found.
        while let Some(message) = self.mail.pop_front() {
            self.lane.figures.messages += 1;
            self.handle(message);
        }
        any
    }

    fn handle(&mut self, message: Mail<R>) {
        match message {
            Mail::Adopt { id, ring, stay, done } => {
                self.adopt(id, ring, stay);
                let _ = done.send(true);
            }
            Mail::Ring(id, mail) => match self.by_id.get(&id) {
                Some(&slot) => self.handle_ring(slot, mail),
                None => self.directory.forward(id, mail),
            },
            Mail::Done { slot, token, result } => self.complete(slot, token, result),
            Mail::Figures(reply) => {
                let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let mut figures = self.lane.figures;
                figures.poll_window_ns = self.poll.window_ns();
                figures.cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
                let _ = reply.send(figures);
            }
            Mail::Poll(mode) if mode != self.poll.mode() => self.poll = PollWindow::new(mode),
            Mail::Poll(_) => {}
            Mail::SweepFiles(done) => {
                self.lane.sweep_files();
                let _ = done.send(());
            }
            Mail::Stop => {
                self.stopping = true;
                let left: Vec<u32> = self.by_id.values().copied().collect();
                for slot in left {
                    self.detach(slot, channel().0);
                }
            }
        }
    }

    /// Takes no more requests from the ring; it is handed back once those in flight have ended.
    fn detach(&mut self, slot: u32, done: Sender<R>) {
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

    fn handle_ring(&mut self, slot: u32, mail: RingMail<R>) {
        match mail {
            RingMail::Release { to, done, claim } if claim.take() => self.release(slot, to, done),
            RingMail::Release { .. } => {}
            RingMail::Detach { done } => self.detach(slot, done),
            RingMail::With(run) => {
                self.drive(slot, |here, io| run(&mut here.ring, &here.stay, io));
                // It may have enabled the ring or changed its memory: look at it again.
                self.touch(slot);
            }
            RingMail::Completion { token, result } => self.complete_here(slot, token, result),
            RingMail::Lose(why) => self.fall(slot, &why),
        }
    }

    fn adopt(&mut self, id: RingId, ring: Box<R>, stay: RingStay) {
        let index = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let slot = index as u32;
        self.slots[index] = Some(Slot::new(id, ring, stay, self.lane.now_ns));
        self.watch_kick(slot);
        self.by_id.insert(id, slot);
        self.touch(slot);
    }

    fn watch_kick(&mut self, slot: u32) {
        if let Some(Slot { here: Some(here), watched, .. }) = self.slots[slot as usize].as_mut()
            && let Some(kick) = here.ring.kick()
        {
            self.lane.watch(Tag::Kick { slot }, kick);
            *watched = true;
        }
    }

    /// Hands the ring to another worker. What was started here ends here and is forwarded.
    fn release(&mut self, slot: u32, to: u32, done: Sender<bool>) {
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
        let stay = RingStay { moves: here.stay.moves + 1, ..here.stay };
        let adopt = Mail::Adopt { id, ring: here.ring, stay, done };
        // The target may have died between the engine's check and now: then the ring stays.
        if let Err(Mail::Adopt { id, ring, done, .. }) = self.directory.hand_over(id, to, adopt) {
            self.adopt(id, ring, here.stay);
            let _ = done.send(false);
        }
    }

    /// Takes a ring out of its slot and stops watching its kick.
    fn take_out(&mut self, slot: u32) -> Option<(RingId, Here<R>)> {
        self.drive(slot, |here, io| here.ring.publish(io))?;
        let entry = self.slots[slot as usize].as_mut()?;
        let here = entry.here.take()?;
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

    /// Runs something of a ring, and counts what it started. A panic costs the ring its place, and nobody else anything.
    fn drive<T>(&mut self, slot: u32, run: impl FnOnce(&mut Here<R>, &mut Io<'_>) -> T) -> Option<T> {
        let Slot { here, outstanding, awaited, .. } = self.slots.get_mut(slot as usize)?.as_mut()?;
        let here = here.as_mut()?;
        let before = *outstanding;
        let mut io = Io { lane: &mut self.lane, post: &self.post, slot, outstanding, awaited };
        let result = catch(|| run(here, &mut io));
        self.outstanding += *outstanding - before;
        result.map_err(|why| self.fall(slot, &why)).ok()
    }

    fn mark_dirty(&mut self, slot: u32) {
        if let Some(here) = ring_of_mut(&mut self.slots, slot)
            && !std::mem::replace(&mut here.dirty, true)
        {
            self.dirty.push(slot);
        }
    }

    /// Frees a slot that no ring and no completion needs any more.
    fn retire(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if entry.as_ref().is_some_and(|entry| entry.here.is_none() && !entry.is_owed() && !entry.watched) {
            let fallen = entry.take().and_then(|entry| entry.fallen);
            // It has panicked before.
            let _ = catch(|| drop(fallen));
        }
    }

    /// Puts a ring on the list of those that are looked at every turn.
    fn touch(&mut self, slot: u32) {
        if let Some(here) = ring_of_mut(&mut self.slots, slot)
            && !here.active
            && here.detach.is_none()
        {
            here.active = true;
            here.idle_since_ns = self.lane.now_ns;
            self.active.push(slot);
        }
    }

    fn take_completions(&mut self) -> bool {
        self.lane.reap();
        let mut any = !self.lane.completions.is_empty();
        let completions = std::mem::take(&mut self.lane.completions);
        self.lane.figures.cqes += completions.len() as u64;
        for completion in &completions {
            match completion.tag {
                Tag::Request { slot, token } => self.complete(slot, token, completion.result),
                Tag::Receive { slot, token } => self.received(slot, token, completion.result),
                Tag::Kick { slot } => self.kicked(slot, completion),
                Tag::Mail if !completion.more => self.lane.watch(Tag::Mail, self.mailbox.wake_fd()),
                Tag::Mail | Tag::Silent => {}
            }
        }
        // Handing the emptied buffer back keeps its capacity; completions that a full queue forced out meanwhile stay first.
        let mut emptied = completions;
        emptied.clear();
        emptied.append(&mut self.lane.completions);
        self.lane.completions = emptied;
        while let Some(due) = self.lane.timers.pop_due(self.lane.now_ns) {
            any = true;
            self.complete(due.slot, due.token, 0);
        }
        any
    }

    fn kicked(&mut self, slot: u32, completion: &Completion) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return;
        };
        let renew = entry.renew_watch(completion.more, completion.result);
        let Some(here) = &mut entry.here else {
            self.retire(slot);
            return;
        };
        here.stay.kicks += 1;
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
    fn complete(&mut self, slot: u32, token: Token, result: i32) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            debug_assert!(false, "completion for slot {slot}, which nobody holds");
            return;
        };
        entry.outstanding -= 1;
        self.outstanding -= 1;
        self.deliver(slot, token, result);
    }

    /// A ring's client has said something, or will not do so here.
    fn received(&mut self, slot: u32, token: Token, result: i32) {
        if let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            entry.awaited = None;
            self.deliver(slot, token, result);
        }
    }

    /// To the ring in this slot, or after the one that was there.
    fn deliver(&mut self, slot: u32, token: Token, result: i32) {
        if ring_of(&self.slots, slot).is_some() {
            self.complete_here(slot, token, result);
        } else if let Some(entry) = &self.slots[slot as usize] {
            let id = entry.id;
            self.retire(slot);
            self.directory.forward(id, RingMail::Completion { token, result });
        }
    }

    fn complete_here(&mut self, slot: u32, token: Token, result: i32) {
        self.drive(slot, |here, io| here.ring.complete(token, result, io));
        self.mark_dirty(slot);
        // The driver will soon fill the place that this completion freed.
        self.touch(slot);
    }

    /// Serves every ring that has requests; arms those that had none for a while.
    fn serve(&mut self) -> bool {
        let mut any = false;
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&slot| {
            let Some(here) = ring_of_mut(&mut self.slots, slot) else {
                return false;
            };
            if here.ring.ready() {
                any |= self.serve_ring(slot) > 0;
                // Unless it fell, and its place may be another's by the next turn.
                return ring_of(&self.slots, slot).is_some();
            }
            let lingered = self.lane.now_ns.saturating_sub(here.idle_since_ns) > LINGER_NS;
            if lingered && !here.ring.must_poll() && self.poll.window_ns() <= LINGER_NS {
                here.arm();
            }
            here.active
        });
        // Nothing above touches other rings, so that the list can only have been emptied, not extended.
        debug_assert!(self.active.is_empty());
        self.active = active;
        any
    }

    fn serve_ring(&mut self, slot: u32) -> usize {
        let now_ns = self.lane.now_ns;
        let taken = self.drive(slot, |here, io| {
            if std::mem::take(&mut here.armed) {
                here.ring.disarm();
            }
            here.stay.polls_hit += u64::from(!std::mem::take(&mut here.kicked));
            here.idle_since_ns = now_ns;
            here.ring.serve(io)
        });
        self.mark_dirty(slot);
        taken.unwrap_or(0)
    }

    fn publish(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            self.drive(slot, |here, io| {
                here.dirty = false;
                here.ring.publish(io);
            });
        }
        self.dirty = dirty;
    }

    /// Hands back the rings that were to be detached and have nothing in flight any more.
    fn finish_detaches(&mut self) {
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
            if let Some(done) = here.detach {
                let _ = done.send(*here.ring);
            }
        }
    }
}

/// Tells a ring that it is lost. What it does about that must not harm the worker.
fn tell<R: Ring>(ring: &mut R, why: &Panic) {
    if let Err(again) = catch(|| ring.lost(why)) {
        tracing::error!(reason = %again, "a ring that was lost could not say so");
    }
}
