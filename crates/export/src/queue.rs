//! One virtqueue with its eventfds, whatever device is behind it: taking chains, giving them back, telling the driver.

use crate::label::Label;
use engine::{Bell, BellError, Counter, Io};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use vring::{Chain, Memory, Recovery, RingError, RingLog, RingPosition, SplitRing};

/// Why a ring takes no more requests until it is started again.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum Broken {
    /// {0}
    Ring(#[from] RingError),
    /// descriptor {0} was made available while its request was in flight
    HeadInFlight(u16),
    /// what it serves may be another process's: nothing took it for this one
    NotHeld,
    /// the new memory table does not hold the ring: {0}
    Memory(RingError),
    /// the frontend's call descriptor is {0}
    Call(BellError),
}

/// A memory table and the requests in flight whose buffers are in it. An old table stays mapped until they have ended.
struct Epoch {
    memory: Arc<Memory>,
    in_flight: usize,
}

/// A virtqueue's page: only the ring's owner writes it, any thread reads it.
#[derive(Debug, Default)]
pub(crate) struct QueuePage {
    /// Notifications sent to the driver.
    pub(crate) sent: Counter,
    /// Publications that needed no notification.
    pub(crate) suppressed: Counter,
    /// Requests taken and not yet answered.
    pub(crate) in_flight: Counter,
    /// Why it takes no more.
    pub(crate) broken: OnceLock<Broken>,
    disabled: AtomicBool,
}

impl QueuePage {
    /// Whether the driver lets it take requests.
    #[inline]
    pub(crate) fn enabled(&self) -> bool {
        !self.disabled.load(Ordering::Relaxed)
    }

    fn set_enabled(&self, enabled: bool) {
        self.disabled.store(!enabled, Ordering::Relaxed);
    }
}

pub(crate) struct Queue {
    label: Label,
    ring: SplitRing,
    /// The chain that was taken last.
    pub(crate) chain: Chain,
    kick: Option<OwnedFd>,
    call: Option<Bell>,
    err: Option<OwnedFd>,
    page: Arc<QueuePage>,
    epochs: VecDeque<Epoch>,
    /// Epochs that have ended; the number of the first one in the list.
    epochs_gone: u64,
    unpublished: bool,
    notify: bool,
}

impl Queue {
    /// # Errors
    /// The ring does not lie in memory, its inflight region is not its own, or nobody could be notified.
    pub(crate) fn new(start: vhost_user::RingStart, label: Label) -> Result<Self, Broken> {
        // Refused here: a ring that broke before a worker had it would be broken without a word.
        let call = start.call.map(Bell::new).transpose().map_err(Broken::Call)?;
        let mut ring = SplitRing::new(start.memory.clone(), start.layout, start.position)?;
        ring.owe(&start.owed)?;
        let recovery = start.inflight.map(|inflight| ring.track(inflight)).transpose()?;
        // Nothing is in flight, and what is owed is popped again.
        ring.set_log(start.log);
        let lived = matches!(recovery, Some(Recovery::Continued { .. })) || ring.next_used() != 0;
        // A ring that has lived before may have died between showing a request and telling the driver.
        if lived && let Some(call) = &call {
            call.ring();
        }
        let page = Arc::<QueuePage>::default();
        page.set_enabled(start.enabled);
        Ok(Queue {
            label,
            ring,
            chain: Chain::default(),
            kick: start.kick,
            call,
            err: start.err,
            page,
            epochs: VecDeque::from([Epoch { memory: start.memory, in_flight: 0 }]),
            epochs_gone: 0,
            unpublished: false,
            notify: false,
        })
    }

    pub(crate) fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn size(&self) -> u16 {
        self.ring.size()
    }

    pub(crate) fn position(&self) -> RingPosition {
        self.ring.position()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.page.in_flight.get() as usize
    }

    /// Requests that an earlier life of the ring took and never answered, and that have not been taken again yet.
    pub(crate) fn owed(&self) -> usize {
        self.ring.owed()
    }

    /// Gives those up, the oldest first: they are for the next life of the ring.
    pub(crate) fn take_owed(&mut self) -> Vec<u16> {
        self.ring.take_owed()
    }

    pub(crate) fn page(&self) -> &Arc<QueuePage> {
        &self.page
    }

    /// Whether it takes requests.
    #[inline]
    pub(crate) fn is_serving(&self) -> bool {
        self.page.enabled() && !self.is_broken()
    }

    /// Whether it takes no request any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.page.broken.get().is_some()
    }

    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.is_serving() && self.ring.has_pending()
    }

    /// Whether what is written is marked in a dirty log.
    #[inline]
    pub(crate) fn is_logging(&self) -> bool {
        self.ring.is_logging()
    }

    /// Takes the next chain: its head, and the epoch to give back with [`push`](Self::push). A ring that lies breaks.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u16, u64)> {
        if !self.is_serving() {
            return None;
        }
        let popped = self.ring.pop(&mut self.chain);
        self.popped(popped)
    }

    /// As [`pop`](Self::pop), but only what an earlier life owes, and of a disabled ring as well: it was taken while the ring
    /// was enabled, and must be answered before the ring can stop.
    pub(crate) fn pop_owed(&mut self) -> Option<(u16, u64)> {
        if self.is_broken() {
            return None;
        }
        let popped = self.ring.pop_owed(&mut self.chain);
        self.popped(popped)
    }

    #[inline]
    fn popped(&mut self, popped: Result<Option<u16>, RingError>) -> Option<(u16, u64)> {
        match popped {
            Ok(head) => {
                let head = head?;
                self.page.in_flight.add(1);
                let last = self.epochs.len() - 1;
                self.epochs[last].in_flight += 1;
                Some((head, self.epochs_gone + last as u64))
            }
            Err(error) => {
                self.break_down(error.into());
                None
            }
        }
    }

    /// Gives a chain back to the driver, with the next publication.
    #[inline]
    pub(crate) fn push(&mut self, head: u16, written: u32, epoch: u64) {
        self.ring.push(head, written);
        self.unpublished = true;
        self.forget(epoch);
    }

    /// Ends a request without an answer: its ring is broken, or the ring's next life answers it. In the inflight region it stays
    /// what it is, unanswered.
    pub(crate) fn forget(&mut self, epoch: u64) {
        self.page.in_flight.sub(1);
        let index = (epoch - self.epochs_gone) as usize;
        self.epochs[index].in_flight -= 1;
        while self.epochs.len() > 1 && self.epochs[0].in_flight == 0 {
            self.epochs.pop_front();
            self.epochs_gone += 1;
        }
    }

    /// Shows what was pushed. Several publications may share one notification.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if std::mem::take(&mut self.unpublished) {
            if self.ring.publish() {
                self.notify = true;
            } else {
                self.page.suppressed.add(1);
            }
        }
    }

    /// Sends the notification that publications asked for, by the end of the turn.
    #[inline]
    pub(crate) fn notify(&mut self, io: &mut Io<'_>) {
        if let Some(call) = self.owed_call() {
            io.signal(call);
        }
    }

    /// As [`notify`](Self::notify), while the turn goes on.
    #[inline]
    pub(crate) fn notify_now(&mut self, io: &mut Io<'_>) {
        if let Some(call) = self.owed_call() {
            io.signal_now(call);
        }
    }

    #[inline]
    fn owed_call(&mut self) -> Option<&mut Bell> {
        if !std::mem::take(&mut self.notify) {
            return None;
        }
        self.page.sent.add(1);
        self.call.as_mut()
    }

    pub(crate) fn arm(&mut self) -> bool {
        self.ring.enable_kicks() && self.is_serving()
    }

    /// How many requests the driver has made available that were not taken.
    pub(crate) fn pending(&self) -> usize {
        self.ring.pending()
    }

    pub(crate) fn disarm(&mut self) {
        self.ring.disable_kicks();
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.page.set_enabled(enabled);
    }

    /// Notifies by this descriptor from now on. By one that could make a worker wait, nobody is notified.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = None;
        match call.map(Bell::new).transpose() {
            Ok(call) => self.call = call,
            Err(error) => self.break_down(Broken::Call(error)),
        }
        // The driver may have been told to wait for a notification that went to the old descriptor, or that nobody sent:
        // QEMU gives a ring its descriptor only after it has started.
        if let Some(call) = &self.call {
            call.ring();
            self.page.sent.add(1);
        }
    }

    /// A new memory table. Nothing is in flight in the chain that is kept for the next request: it holds no table back, which would
    /// stay mapped until then, and be unmapped by the worker.
    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
        self.chain.clear();
        if let Err(error) = self.ring.set_memory(memory.clone()) {
            self.break_down(Broken::Memory(error));
            return;
        }
        self.epochs.push_back(Epoch { memory, in_flight: 0 });
        while self.epochs.len() > 1 && self.epochs[0].in_flight == 0 {
            self.epochs.pop_front();
            self.epochs_gone += 1;
        }
        debug_assert!(self.epochs.back().is_some_and(|epoch| Arc::ptr_eq(&epoch.memory, self.ring.memory())));
    }

    /// Marks what is written in this dirty log from now on, or in none. Whether it begins by that: see [`SplitRing::set_log`].
    pub(crate) fn set_log(&mut self, log: Option<RingLog>) -> bool {
        self.ring.set_log(log)
    }

    /// As [`SplitRing::note_in_flight`].
    pub(crate) fn note_in_flight(&mut self, head: u16) -> usize {
        self.ring.note_in_flight(head)
    }

    /// Stops taking requests; those in flight still end. The log says so once, and the frontend learns of it where it gave a
    /// descriptor for that.
    #[cold]
    pub(crate) fn break_down(&mut self, why: Broken) {
        if self.page.broken.get().is_none() {
            let Label { export, ring, .. } = &self.label;
            tracing::warn!(export = &**export, ring, reason = %why, "the ring is broken and stopped");
            let _ = self.page.broken.set(why);
            // One that could make us wait gets no signal.
            if let Some(Ok(bell)) = self.err.take().map(Bell::new) {
                bell.ring();
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, ftruncate, memfd_create};
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use vring::{Layout, Mapping, Region};

    fn queue(call: Option<OwnedFd>, err: Option<OwnedFd>) -> Queue {
        started(call, err).unwrap()
    }

    fn started(call: Option<OwnedFd>, err: Option<OwnedFd>) -> Result<Queue, Broken> {
        let layout = Layout { size: 16, desc: 0, avail: 0x200, used: 0x400, event_idx: false, indirect: false };
        let start = start(Arc::new(Mapping::anonymous(0x1000).unwrap()), layout);
        Queue::new(vhost_user::RingStart { call, err, ..start }, Label::of_nobody())
    }

    /// Memory, and the file by which a driver writes to it.
    pub(crate) fn shared(len: u64) -> (OwnedFd, Mapping) {
        let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        let mapping = Mapping::shared(&file, 0, len as usize).unwrap();
        (file, mapping)
    }

    /// Writes a descriptor (struct virtq_desc; virtio 1.3, 2.7.5) at this address.
    pub(crate) fn describe(file: &OwnedFd, at: u64, (addr, len): (u64, u32), flags: u16, next: u16) {
        let fields = [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        assert_eq!(rustix::io::pwrite(file, &fields.concat(), at).unwrap(), 16);
    }

    /// A fresh ring in this memory, which begins at the guest's address 0.
    pub(crate) fn start(mapping: Arc<Mapping>, layout: Layout) -> vhost_user::RingStart {
        let region = Region { guest_addr: 0, user_addr: 0, len: mapping.len() as u64, mapping, offset: 0 };
        let memory = Arc::new(Memory::new(vec![region]).unwrap());
        let (position, owed) = (RingPosition::default(), Vec::new());
        let (inflight, log, kick, call, err) = (None, None, None, None, None);
        vhost_user::RingStart { memory, layout, position, owed, inflight, log, enabled: true, kick, call, err }
    }

    fn notifier() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn file() -> OwnedFd {
        memfd_create("file", MemfdFlags::CLOEXEC).unwrap()
    }

    fn is_signalled(fd: &OwnedFd) -> bool {
        rustix::io::read(fd, &mut [0; 8]).is_ok()
    }

    #[test]
    fn a_ring_whose_driver_could_not_be_told_does_not_start_or_breaks() {
        let err = notifier();
        let refused = started(Some(file()), err.try_clone().ok());
        assert!(matches!(refused, Err(Broken::Call(BellError::Kind))), "it would be broken without a word");

        let mut changed = queue(Some(notifier()), err.try_clone().ok());
        assert!(changed.page().broken.get().is_none());
        changed.set_call(Some(file()));
        let why = changed.page().broken.get().map(Broken::to_string);
        let expected = "the frontend's call descriptor is neither an eventfd, nor a pipe, nor a Unix socket";
        assert_eq!(why.as_deref(), Some(expected));
        assert!(is_signalled(&err));
    }

    #[test]
    fn a_new_descriptor_is_signalled_at_once() {
        let (first, second) = (notifier(), notifier());
        let mut queue = queue(first.try_clone().ok(), None);
        assert!(!is_signalled(&first), "a fresh ring owes nobody anything");
        queue.set_call(second.try_clone().ok());
        assert_eq!((is_signalled(&first), is_signalled(&second)), (false, true));
        queue.set_call(None);
        queue.set_call(first.try_clone().ok());
        assert_eq!((is_signalled(&first), is_signalled(&second)), (true, false));
        assert_eq!(queue.page().sent.get(), 2);
    }

    #[test]
    fn an_error_descriptor_that_is_full_holds_nobody_up() {
        let err = notifier();
        // The largest value that it holds (eventfd(2)).
        rustix::io::write(&err, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&err, OFlags::empty()).unwrap();
        let mut queue = queue(None, err.try_clone().ok());
        let (done, broken) = channel();
        std::thread::spawn(move || {
            queue.break_down(Broken::HeadInFlight(0));
            done.send(())
        });
        broken.recv_timeout(Duration::from_secs(60)).expect("it waits for the frontend");
    }
}
