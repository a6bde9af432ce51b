//! The signal that ends [`serve`](crate::serve).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// An eventfd that says "stop". Once signalled it stays signalled, so every waiter sees it.
#[derive(Clone, Debug)]
pub struct StopFd(Arc<OwnedFd>);

impl StopFd {
    /// A signal that has not been given. Fails when the process is out of file descriptors.
    pub fn new() -> io::Result<StopFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(StopFd(Arc::new(eventfd(0, flags)?)))
    }

    /// Gives the signal. Signalling twice is the same as once.
    pub fn signal(&self) {
        // The write can only fail when the counter is at its maximum, and then the signal is given already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Whether it was given.
    pub fn is_signalled(&self) -> bool {
        let mut look = [PollFd::new(&*self.0, PollFlags::IN)];
        poll(&mut look, Some(&Timespec::default())).is_ok_and(|found| found > 0)
    }
}

impl AsFd for StopFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
