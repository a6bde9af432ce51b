//! How driver and device tell each other: an eventfd each way.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// The eventfds of one queue.
#[derive(Debug)]
pub struct Eventfds {
    /// Tells the device of requests.
    pub kick: EventFd,
    /// Tells the driver of those that were used.
    pub call: EventFd,
}

impl Eventfds {
    /// Fresh ones.
    pub fn new() -> Result<Self> {
        let eventfd = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).context("cannot make an eventfd");
        Ok(Self { kick: eventfd()?, call: eventfd()? })
    }

    /// Kicks, wanted or not.
    #[inline]
    pub fn kick(&self) -> io::Result<()> {
        self.kick.write(1)
    }

    /// Whether the device has called since this was asked last.
    pub fn take_call(&self) -> bool {
        self.call.read().is_ok()
    }

    /// Waits at most `limit` for a call and takes it. Whether there was one.
    pub fn wait_call(&self, limit: Duration) -> Result<bool> {
        wait(&mut [self.poll_call()], limit)?;
        Ok(self.take_call())
    }

    fn poll_call(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(borrow(&self.call), PollFlags::IN)
    }
}

/// Waits at most `limit` until one of `queues` is called; takes nothing.
pub fn wait_for_any<'a>(queues: impl Iterator<Item = &'a Eventfds>, limit: Duration) -> Result<()> {
    wait(&mut queues.map(Eventfds::poll_call).collect::<Vec<_>>(), limit)
}

fn wait(calls: &mut [PollFd<'_>], limit: Duration) -> Result<()> {
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(calls, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for the server's calls"),
    }
}

mod owner {
    /// What owns the descriptor that it names, and does not lend it.
    pub trait Owner: std::os::fd::AsRawFd {}

    impl Owner for super::EventFd {}
    impl Owner for vhost::vhost_user::Frontend {}
}

/// A descriptor of a type that does not lend it.
pub fn borrow(owner: &impl owner::Owner) -> BorrowedFd<'_> {
    // SAFETY: an `Owner` keeps it open, and is borrowed as long.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}
