//! What a lane drives: a queue of a device or a connection, alike in what can be asked of them.

use std::time::Duration;

use rustix::event::PollFd;

use super::buffers::Loan;
use super::{Error, nbd, vhost_user, virtio};

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    /// What the request was submitted with.
    pub(crate) slot: u16,
    /// Negative errno of one that failed.
    pub(crate) result: i32,
}

/// Where the requests of one lane go.
pub(crate) enum Queue {
    /// A virtqueue.
    VhostUser(Box<vhost_user::Queue>),
    /// A virtqueue that our own driver drives.
    Virtio(Box<virtio::Queue>),
    /// A connection to an NBD server.
    Nbd(Box<nbd::Connection>),
}

impl Queue {
    /// Submits a read, or has it ready for [`Queue::reap`] to submit, as the other requests.
    pub(crate) fn read(&mut self, offset: u64, data: Loan, slot: u16) {
        match self {
            Self::VhostUser(queue) => queue.read(offset, &data, slot),
            Self::Virtio(queue) => queue.read(offset, &data, slot),
            Self::Nbd(connection) => connection.read(offset, data, slot),
        }
    }

    /// Submits a write.
    pub(crate) fn write(&mut self, offset: u64, data: Loan, slot: u16) {
        match self {
            Self::VhostUser(queue) => queue.write(offset, &data, slot),
            Self::Virtio(queue) => queue.write(offset, &data, slot),
            Self::Nbd(connection) => connection.write(offset, data, slot),
        }
    }

    /// Submits a flush.
    pub(crate) fn flush(&mut self, slot: u16) {
        match self {
            Self::VhostUser(queue) => queue.flush(slot),
            Self::Virtio(queue) => queue.flush(slot),
            Self::Nbd(connection) => connection.flush(slot),
        }
    }

    /// Takes completions, waiting up to `wait` for `least` of them; how many there are, for [`Queue::completion`].
    pub(crate) fn reap(&mut self, least: usize, wait: Duration) -> Result<usize, Error> {
        match self {
            Self::VhostUser(queue) => queue.reap(least, wait),
            Self::Virtio(queue) => queue.reap(least, wait).map_err(|cause| Error::Ring { cause }),
            Self::Nbd(connection) => connection.reap(least, wait).map_err(|cause| Error::Connection { cause }),
        }
    }

    /// One of those that the last [`Queue::reap`] has taken.
    pub(crate) fn completion(&self, index: usize) -> Completion {
        match self {
            Self::VhostUser(queue) => queue.completion(index),
            Self::Virtio(queue) => queue.completion(index),
            Self::Nbd(connection) => connection.completion(index),
        }
    }

    /// Has completions announced where [`Queue::announcement`] is, or not.
    pub(crate) fn announce(&mut self, enabled: bool) {
        match self {
            Self::VhostUser(queue) => queue.announce(enabled),
            // Each announcement is asked for when it is waited for.
            Self::Virtio(_) => {}
            // A socket always says what has come.
            Self::Nbd(_) => {}
        }
    }

    /// What to poll for when there is nothing to reap.
    pub(crate) fn announcement(&self) -> Option<PollFd<'_>> {
        match self {
            Self::VhostUser(queue) => queue.announcement(),
            Self::Virtio(queue) => queue.announcement(),
            Self::Nbd(connection) => Some(connection.announcement()),
        }
    }

    /// Clears an announcement that was heard.
    pub(crate) fn clear_announcement(&self) {
        match self {
            Self::VhostUser(queue) => queue.clear_announcement(),
            Self::Virtio(queue) => queue.clear_announcement(),
            // It is clear once the replies have been received.
            Self::Nbd(_) => {}
        }
    }
}
