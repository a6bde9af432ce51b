//! Connections that are over, told to the thread that listens.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use vhost_user::SessionEnd;

/// Connections that are over, as their rings say.
#[derive(Debug)]
pub(crate) struct Ends {
    over: Mutex<Vec<(u16, SessionEnd)>>,
    wake: OwnedFd,
}

impl Ends {
    pub(super) fn new() -> io::Result<Ends> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Ends { over: Mutex::default(), wake })
    }

    /// Ring `index` serves nothing any more, and nothing of it is in flight. Called on a worker's thread; never waits.
    pub(crate) fn tell(&self, index: u16, why: SessionEnd) {
        self.over.lock().unwrap_or_else(PoisonError::into_inner).push((index, why));
        // It can only fail when the counter is at its maximum, and then the signal is given already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Those that have said so since it was asked last.
    pub(crate) fn take(&self) -> Vec<(u16, SessionEnd)> {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *over)
    }
}

/// Readable when there is one.
impl AsFd for Ends {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
