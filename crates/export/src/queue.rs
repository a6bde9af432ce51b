//! One virtqueue with its eventfds, whatever device is behind it: taking chains, giving them back, telling the driver.

use engine::Io;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vring::{Chain, Memory, Recovery, RingError, SplitRing};

/// Why a ring takes no more requests until it is started again.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum Broken {
    /// {0}
    Ring(#[from] RingError),
    /// descriptor {0} was made available while its request was in flight
    HeadInFlight(u16),
    /// the new memory table does not hold the ring: {0}
    Memory(RingError),
}

/// A memory table and the requests in flight whose buffers are in it. An old table stays mapped until they have ended.
struct Epoch {
    memory: Arc<Memory>,
    in_flight: usize,
}

/// What happened with notifications.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notified {
    pub(crate) sent: u64,
    pub(crate) suppressed: u64,
}

pub(crate) struct Queue {
    ring: SplitRing,
    kick: Option<OwnedFd>,
    call: Option<Call>,
    err: Option<OwnedFd>,
    enabled: bool,
    broken: Option<Broken>,
    in_flight: usize,
    epochs: VecDeque<Epoch>,
    /// Epochs that have ended; the number of the first one in the list.
    epochs_gone: u64,
    unpublished: bool,
    notify: bool,
    notified: Notified,
}

/// The frontend's notification descriptor.
struct Call {
    fd: OwnedFd,
    /// Non-blocking: a signal can be queued with other work. io_uring gives writes to a blocking eventfd to its threads.
    rides: bool,
}

impl Call {
    fn new(fd: OwnedFd) -> Self {
        let mut rides = rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
        // UML hands a socket or a pipe over. A full one must not block a worker; our end is ours alone to set.
        let stream = rustix::fs::fstat(&fd).is_ok_and(|stat| {
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            matches!(kind, rustix::fs::FileType::Fifo | rustix::fs::FileType::Socket)
        });
        if stream && !rides {
            rides = rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).is_ok();
        }
        Call { fd, rides }
    }

    /// Signals now, outside of a turn. Never blocks: a full counter or buffer is a notification that waits already.
    fn signal(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let writable = || poll(&mut [PollFd::new(&self.fd, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0);
        if self.rides || writable() {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Queue {
    pub(crate) fn new(start: link::RingStart) -> Result<Self, RingError> {
        let mut ring = SplitRing::new(start.memory.clone(), start.layout, start.next_avail)?;
        let recovery = start.inflight.map(|inflight| ring.track(inflight)).transpose()?;
        let call = start.call.map(Call::new);
        // A ring that has lived before may have died between showing a request and telling the driver.
        if (matches!(recovery, Some(Recovery::Continued { .. })) || ring.next_used() != 0)
            && let Some(call) = &call
        {
            call.signal();
        }
        Ok(Queue {
            ring,
            kick: start.kick,
            call,
            err: start.err,
            enabled: start.enabled,
            broken: None,
            in_flight: 0,
            epochs: VecDeque::from([Epoch { memory: start.memory, in_flight: 0 }]),
            epochs_gone: 0,
            unpublished: false,
            notify: false,
            notified: Notified::default(),
        })
    }

    pub(crate) fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn size(&self) -> u16 {
        self.ring.size()
    }

    pub(crate) fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Requests that an earlier life of the ring took and never answered, and that have not been taken again yet.
    pub(crate) fn owed(&self) -> usize {
        self.ring.owed()
    }

    pub(crate) fn notified(&self) -> Notified {
        self.notified
    }

    #[inline]
    fn serving(&self) -> bool {
        self.enabled && self.broken.is_none()
    }

    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.serving() && self.ring.has_pending()
    }

    /// The next chain, its head, and the epoch to give back with [`push`](Self::push). A ring that lies breaks.
    #[inline]
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Option<(u16, u64)> {
        if !self.serving() {
            return None;
        }
        let popped = self.ring.pop(chain);
        self.popped(popped)
    }

    /// As [`pop`](Self::pop), but only what an earlier life owes, and of a disabled ring as well: it was taken while the ring
    /// was enabled, and must be answered before the ring can stop.
    pub(crate) fn pop_owed(&mut self, chain: &mut Chain) -> Option<(u16, u64)> {
        if self.broken.is_some() {
            return None;
        }
        let popped = self.ring.pop_owed(chain);
        self.popped(popped)
    }

    #[inline]
    fn popped(&mut self, popped: Result<Option<u16>, RingError>) -> Option<(u16, u64)> {
        match popped {
            Ok(head) => {
                let head = head?;
                self.in_flight += 1;
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

    /// Ends a request without an answer: its ring is broken. In the inflight region it stays what it is, unanswered.
    pub(crate) fn forget(&mut self, epoch: u64) {
        self.in_flight -= 1;
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
                self.notified.suppressed += 1;
            }
        }
    }

    /// Sends the notification that publications asked for.
    #[inline]
    pub(crate) fn notify(&mut self, io: &mut Io<'_>) {
        if std::mem::take(&mut self.notify) {
            self.notified.sent += 1;
            if let Some(call) = &self.call {
                io.signal(call.fd.as_fd(), call.rides);
            }
        }
    }

    pub(crate) fn arm(&mut self) -> bool {
        self.ring.enable_kicks() && self.serving()
    }

    pub(crate) fn disarm(&mut self) {
        self.ring.disable_kicks();
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(Call::new);
        // The driver may have been told to wait for a notification that went to the old descriptor, or that nobody sent:
        // QEMU gives a ring its descriptor only after it has started.
        if let Some(call) = &self.call {
            call.signal();
            self.notified.sent += 1;
        }
    }

    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
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

    /// Stops taking requests; those in flight still end. The frontend learns of it where it gave a descriptor for that.
    pub(crate) fn break_down(&mut self, why: Broken) {
        if self.broken.is_none() {
            if let Some(err) = &self.err
                && is_writable(err)
            {
                let _ = rustix::io::write(err, &1u64.to_ne_bytes());
            }
            self.broken = Some(why);
        }
    }
}

/// Whether a write would return: a frontend that filled the counter of its own descriptor must not stop a worker that
/// serves others too.
fn is_writable(fd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}
