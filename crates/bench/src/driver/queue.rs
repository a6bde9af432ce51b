//! A queue under load: the driver's half of it, and how its device is told of requests and waited for.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use frontkit::{Buffer, Eventfds, Used};
use rustix::event::{PollFd, PollFlags};

/// How a device is told that there are requests, and how it tells that it has used some.
pub(crate) enum Bell {
    /// vhost-user's way.
    Eventfds(Eventfds),
    /// What writes to a register of a device of QEMU's. Its interrupts go nowhere, so that what it has used is looked for.
    Register(Box<dyn FnMut() -> Result<()> + Send>),
}

/// One queue. A chain takes descriptors that follow each other.
pub(crate) struct Queue {
    ring: frontkit::Queue,
    bell: Bell,
}

impl Queue {
    /// With nothing in flight.
    pub(crate) fn new(ring: frontkit::Queue, bell: Bell) -> Self {
        ring.disarm();
        Self { ring, bell }
    }

    /// Writes a chain into the descriptors from `head` on, which are free, and enters it. Shows the device nothing yet.
    pub(crate) fn add(&mut self, head: u16, buffers: &[Buffer]) {
        self.ring.add(buffers, |position| head + position as u16);
    }

    /// Enters a chain again that the device has used.
    pub(crate) fn enter(&mut self, head: u16) {
        self.ring.enter(head);
    }

    /// Shows the device what was added, and kicks it if it wants to be.
    pub(crate) fn publish(&mut self) -> Result<()> {
        match (self.ring.publish(), &mut self.bell) {
            (false, _) => Ok(()),
            (true, Bell::Eventfds(eventfds)) => eventfds.kick().context("cannot kick"),
            (true, Bell::Register(ring)) => ring(),
        }
    }

    /// Whether the device has used a chain that was not taken yet.
    pub(crate) fn has_used(&self) -> bool {
        self.ring.unseen() != 0
    }

    /// Takes the next used chain.
    pub(crate) fn take_used(&mut self) -> Option<Used> {
        self.ring.take_used()
    }

    /// Waits until the device has used a chain, at most `limit`; whether it has. Where the device cannot say so, it is
    /// looked for.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<bool> {
        let Bell::Eventfds(eventfds) = &self.bell else { return Ok(self.look(limit)) };
        if self.ring.arm() {
            eventfds.wait_call(limit)?;
        }
        self.ring.disarm();
        Ok(self.has_used())
    }

    /// What to poll for until the device has used a chain; `None` where it cannot say so. Behind the poll,
    /// [`Queue::clear_announcement`].
    pub(crate) fn announcement(&self) -> Option<PollFd<'_>> {
        let Bell::Eventfds(eventfds) = &self.bell else { return None };
        if !self.ring.arm() {
            // It has by now, and may not say so any more. It can be told twice.
            let _told = eventfds.call.write(1);
        }
        Some(PollFd::from_borrowed_fd(frontkit::borrow(&eventfds.call), PollFlags::IN))
    }

    /// As if nothing had been announced.
    pub(crate) fn clear_announcement(&self) {
        if let Bell::Eventfds(eventfds) = &self.bell {
            eventfds.take_call();
        }
        self.ring.disarm();
    }

    fn look(&self, limit: Duration) -> bool {
        let started = Instant::now();
        while !self.has_used() {
            if started.elapsed() > limit {
                return false;
            }
            // Whoever is to use it may need this processor.
            thread::yield_now();
        }
        true
    }
}
