//! The worker loop: one thread, one io_uring, one mailbox, and the rings attached to it.
//!
//! A turn: take mail; take completions and deadlines; serve every ring that has requests; publish once a ring; then one
//! system call that submits everything and, when there is nothing left to do, sleeps.

mod completions;
#[cfg(test)]
mod models;
mod rings;

use crate::clock::{monotonic_ns, thread_cpu_now_ns};
use crate::directory::Directory;
use crate::favoured::Favoured;
use crate::lane::{Lane, Tag};
use crate::mailbox::{Mail, Mailbox, RingMail};
use crate::panic::catch;
use crate::price::sleep_price;
use crate::reply::Post;
use crate::slots::{Here, Slot, ring_of, ring_of_mut};
use crate::{Io, Ring, RingId};
use policy::{PollWindow, Sample, Wait};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::channel;
use std::sync::{Arc, TryLockError};
use values::PolicyMode;

/// Looking instead of sleeping shortens the wait of a guest that waits for one answer. With more work than this under way
/// the guest has enough to do, and a sleep lets completions gather.
const POLL_OUTSTANDING_MAX: u32 = 2;
/// How often a worker that polls shows that it goes on.
const SHOW_PULSE_NS: u64 = 5_000_000;
/// How long a ring without requests stays unarmed on a worker that is kept busy by others, in nanoseconds.
const LINGER_NS: u64 = 50_000;
/// How long a turn goes on with what has ended before the rings with new requests have theirs, in nanoseconds: an end may be a copy.
const ENDS_NS: u64 = 1_000_000;
/// The clock is read behind so many of them.
const ENDS_PER_LOOK: usize = 4;
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
    favour: Arc<Favoured>,
    /// When the worker ran out of work, and what it waits for since.
    idle: Option<Idle>,
    /// What it has been busy with since then is not counted yet.
    busy_since_ns: u64,
    outstanding: u32,
    /// Requests taken, and waits that a poll window could have covered: what the policy compares tactics by.
    requests: u64,
    waits: u64,
    /// The policy was changed from outside: its journal begins anew.
    is_cut: bool,
    /// The turn that begins follows a sleep.
    slept: bool,
    stopping: bool,
}

/// A worker without work.
#[derive(Clone, Copy, Debug)]
struct Idle {
    since_ns: u64,
    wait: Wait,
    /// It looks before it sleeps.
    looked: bool,
    /// It has been asleep since.
    slept: bool,
}

impl<R: Ring> Worker<R> {
    pub(crate) fn new(
        number: u32,
        mailbox: Arc<Mailbox<R>>,
        directory: Arc<Directory<R>>,
        (poll, favour): (PollWindow, Arc<Favoured>),
    ) -> std::io::Result<Self> {
        let mut lane = Lane::new()?;
        lane.prepare_bells()?;
        lane.figures = mailbox.figures.clone();
        lane.worker = number;
        lane.watch(Tag::Mail, mailbox.wake_fd());
        lane.figures.poll_window_ns.set(poll.longest_ns());
        lane.figures.waits_by(poll.tactic());
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
            poll,
            favour,
            idle: Some(Idle { since_ns: monotonic_ns(), wait: Wait::Request, looked: false, slept: false }),
            busy_since_ns: 0,
            outstanding: 0,
            requests: 0,
            waits: 0,
            is_cut: false,
            // The mailbox says idle until the first turn.
            slept: true,
            stopping: false,
        })
    }

    /// Runs until told to stop and nothing is left to finish.
    pub(crate) fn run(&mut self) {
        let mut last_began_ns = 0;
        loop {
            self.lane.figures.turns.add(1);
            self.lane.tick();
            let began_ns = self.lane.now_ns;
            // With nothing to do it looks all the time, or is woken.
            self.lane.looked_before_ns = if self.idle.is_some() { began_ns } else { last_began_ns };
            last_began_ns = began_ns;
            self.mailbox.turns(began_ns);
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
            if self.stopping && self.mail.is_empty() && self.by_id.is_empty() && self.slots.iter().all(Option::is_none)
            {
                self.lane.forget_files();
                return;
            }
            if worked {
                self.found_work(began_ns);
                if self.anything_ready() {
                    self.flush();
                    continue;
                }
                let wait = if self.outstanding > 0 { Wait::Completion } else { Wait::Request };
                // The turn's own work is no wait.
                self.lane.tick();
                self.count_busy(self.lane.now_ns);
                let looked = self.outstanding <= POLL_OUTSTANDING_MAX;
                self.idle = Some(Idle { since_ns: self.lane.now_ns, wait, looked, slept: false });
            } else if self.idle.is_none() {
                // What looked like work could not be taken, as a limit holds it up.
                self.count_busy(began_ns);
                self.idle = Some(Idle { since_ns: began_ns, wait: Wait::Request, looked: false, slept: false });
            }
            if !self.look() {
                self.sleep();
            }
        }
    }

    /// Tells the poll window how long the worker had waited until this turn began.
    fn found_work(&mut self, began_ns: u64) {
        match self.idle.take() {
            Some(Idle { since_ns, wait, looked, slept }) => {
                self.busy_since_ns = began_ns;
                // What no window is used for teaches nothing about one.
                if looked {
                    self.waits += 1;
                    self.poll.set_price(sleep_price());
                    self.poll.observe(wait, began_ns.saturating_sub(since_ns), slept);
                    self.lane.figures.poll_window_ns.set(self.poll.longest_ns());
                }
            }
            // A worker that never runs out of work is busy all the same.
            None => self.count_busy(began_ns),
        }
        if self.poll.is_due(self.lane.now_ns) {
            self.look_back();
        }
    }

    #[inline]
    fn count_busy(&mut self, until_ns: u64) {
        self.lane.figures.busy_ns.add(until_ns.saturating_sub(self.busy_since_ns));
        self.busy_since_ns = until_ns;
    }

    /// Tells the policy what was done lately, which may have another tactic tried or chosen.
    #[cold]
    fn look_back(&mut self) {
        self.is_cut |= self.poll.set_favour(self.favour.get());
        self.is_cut |= self.poll.freeze(self.favour.mode() == PolicyMode::Fixed);
        if self.poll.is_frozen() {
            self.poll.trial().look_later(self.lane.now_ns);
            return self.show_policy();
        }
        let mut journal = match self.mailbox.journal.try_lock() {
            Ok(journal) => journal,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody reads the journal: this look comes a turn later.
            Err(TryLockError::WouldBlock) => return,
        };
        if std::mem::take(&mut self.is_cut) {
            journal.cut();
        }
        let (at_ns, requests, waits) = (self.lane.now_ns, self.requests, self.waits);
        let sample = Sample { at_ns, requests, waits, cpu_ns: thread_cpu_now_ns() };
        let looked = catch(|| journal.look(self.poll.trial(), sample));
        drop(journal);
        match looked {
            Ok(None) => {}
            Ok(Some(verdict)) => {
                self.lane.figures.trials.add(1);
                if verdict.before != verdict.after {
                    self.lane.figures.changes.add(1);
                    let (worker, before, after) = (self.number, verdict.before, verdict.after);
                    tracing::debug!(worker, %before, %after, why = verdict.why(), "the worker waits by another tactic");
                }
            }
            Err(why) => {
                let worker = self.number;
                tracing::error!(worker, reason = %why, "the policy failed: the worker polls as it has learned to by now");
                self.poll.pin();
            }
        }
        self.show_policy();
    }

    fn show_policy(&self) {
        self.lane.figures.poll_window_ns.set(self.poll.longest_ns());
        self.lane.figures.waits_by(self.poll.tactic());
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
            || !self.mail.is_empty()
            || !self.lane.completions.is_empty()
            || self.lane.has_completions()
            || self.active.iter().any(|&slot| ring_of(&self.slots, slot).is_some_and(|here| here.ring.ready()))
    }

    /// Spends the poll window looking for work. True when there is some.
    fn look(&mut self) -> bool {
        let Some(Idle { since_ns, wait, looked: true, .. }) = self.idle else {
            return false;
        };
        let window_ns = self.poll.window_ns(wait);
        if window_ns == 0 {
            return false;
        }
        let end_ns = since_ns.saturating_add(window_ns);
        if self.lane.now_ns >= end_ns {
            return false;
        }
        if self.lane.queued() > 0 || self.lane.has_completions() {
            self.lane.submit();
            self.lane.tick();
        }
        // From here on it answers at once: a long window is no long turn.
        let began_ns = self.lane.now_ns;
        let has_work = self.poll_until(end_ns);
        self.lane.figures.polled_ns.add(self.lane.now_ns.saturating_sub(began_ns));
        has_work
    }

    /// Looks for work until this time. True when there is some.
    fn poll_until(&mut self, end_ns: u64) -> bool {
        let mut shown_by_ns = 0;
        loop {
            if self.lane.now_ns >= shown_by_ns {
                self.mailbox.turns(self.lane.now_ns);
                shown_by_ns = self.lane.now_ns.saturating_add(SHOW_PULSE_NS);
            }
            if self.anything_ready() {
                if self.lane.has_completions() {
                    self.lane.submit();
                }
                self.lane.figures.polls_hit.add(1);
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
                self.lane.figures.polls_missed.add(1);
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
        // Whoever looked at the pulse now may have taken it for idle, whether it comes to a sleep or not.
        self.slept = true;
        if self.mailbox.may_sleep() {
            if owed {
                self.directory.stir();
            }
            if let Some(idle) = &mut self.idle {
                idle.slept = true;
            }
            self.lane.figures.sleeps.add(1);
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
        if self.mailbox.pending() {
            self.mailbox.take(&mut self.mail);
        }
        if self.mail.is_empty() {
            return false;
        }
        // A message may close descriptors that queued entries name by number.
        self.submit_queued();
        let (mut handled, began_ns) = (0, self.lane.now_ns);
        // One by one, so that a panic leaves the others where they are found.
        while !self.had_enough(handled, began_ns)
            && let Some(message) = self.mail.pop_front()
        {
            self.lane.figures.messages.add(1);
            self.handle(message);
            handled += 1;
        }
        true
    }

    /// Whether a turn that has been at it since `began_ns` leaves what else has ended to the next one.
    fn had_enough(&mut self, handled: usize, began_ns: u64) -> bool {
        if handled == 0 || !handled.is_multiple_of(ENDS_PER_LOOK) {
            return false;
        }
        self.lane.tick();
        self.lane.now_ns.saturating_sub(began_ns) > ENDS_NS
    }

    fn handle(&mut self, message: Mail<R>) {
        match message {
            Mail::Adopt { id, arrival, done } => {
                self.adopt(id, arrival);
                let _ = done.send(true);
            }
            Mail::Ring(id, mail) => match self.by_id.get(&id) {
                Some(&slot) => self.handle_ring(slot, mail),
                None => self.directory.forward(id, mail),
            },
            Mail::Done { slot, completion } => self.complete(slot, completion),
            Mail::Ping(answer) => {
                let _ = answer.send(());
            }
            Mail::Poll(mode) => {
                self.is_cut |= self.poll.set_mode(mode);
                self.show_policy();
            }
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

    fn handle_ring(&mut self, slot: u32, mail: RingMail<R>) {
        match mail {
            RingMail::Release { to, done, claim } if claim.take() => self.release(slot, to, done),
            RingMail::Release { .. } => {}
            RingMail::Detach { done } => self.detach(slot, done),
            RingMail::With(run) => {
                self.drive(slot, |here, io| run(&mut here.ring, io));
                // It may have enabled the ring or changed its memory: look at it again.
                self.touch(slot);
            }
            RingMail::Completion(completion) => self.complete_here(slot, completion),
            RingMail::Lose(why) => self.fall(slot, &why),
        }
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

    /// Serves every ring that has requests; arms those that had none for a while.
    fn serve(&mut self) -> bool {
        let mut any = false;
        let mut active = std::mem::take(&mut self.active);
        active.retain(|&slot| {
            let Some(here) = ring_of_mut(&mut self.slots, slot) else {
                return false;
            };
            if here.ring.ready() {
                if any {
                    // Each ring's turn begins when it does.
                    self.lane.tick();
                }
                any |= self.serve_ring(slot) > 0;
                // Unless it fell, and its place may be another's by the next turn.
                return ring_of(&self.slots, slot).is_some();
            }
            let idle_ns = self.lane.now_ns.saturating_sub(here.idle_since_ns);
            if idle_ns > LINGER_NS.max(self.poll.longest_ns()) && !here.ring.must_poll() {
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
            here.stay.polls_hit.add(u64::from(!std::mem::take(&mut here.kicked)));
            here.idle_since_ns = now_ns;
            here.ring.serve(io)
        });
        self.mark_dirty(slot);
        let taken = taken.unwrap_or(0);
        self.requests += taken as u64;
        taken
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
}
