//! What the kernel lets a worker have, for whoever asks before there is one.

use crate::lane::{Lane, Tag};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::AsFd;

/// Workers that are tried at once, at most: 7 MiB of memory that is not swapped.
const TOGETHER: usize = 64;

/// What a worker of this process would have. It was tried, by the thread that asked: with its rights and under its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// One poll says of every kick (Linux 5.13). Nothing is served without.
    pub watches: bool,
    /// Completions run when the worker asks for them, and interrupt it at no other time (IORING_SETUP_DEFER_TASKRUN, Linux 6.1).
    pub deferred: bool,
    /// Files are registered, so that no request looks them up (IORING_RSRC_REGISTER_SPARSE, Linux 5.19).
    pub registers_files: bool,
    /// Guests are notified with what is submitted anyhow (IORING_OP_MSG_RING, Linux 5.18).
    pub messages: bool,
    /// A worker sleeps until several completions are there (IORING_FEAT_MIN_TIMEOUT, Linux 6.12).
    pub gathers: bool,
}

impl Abilities {
    /// Sets up what so many workers have, but for one at least and 64 at most, looks, and takes it down again.
    ///
    /// # Errors
    /// The kernel's refusal of an io_uring, which these workers would meet.
    pub fn probe(workers: usize) -> io::Result<Abilities> {
        let set_up = |_| {
            let mut lane = Lane::new()?;
            lane.prepare_bells()?;
            Ok(lane)
        };
        let others = (1..workers.min(TOGETHER)).map(set_up).collect::<io::Result<Vec<_>>>()?;
        let mut lane = set_up(0)?;
        // Readable from the beginning: the first completion comes at once.
        let watched = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        lane.watch(Tag::Mail, watched.as_fd());
        lane.submit_and_wait(1, 0);
        let watches = lane.completions.iter().any(|completion| completion.result >= 0 && completion.more);
        let abilities = Abilities { watches, ..lane.abilities() };
        lane.unwatch(Tag::Mail);
        lane.submit();
        drop(others);
        Ok(abilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_what_every_worker_needs() {
        let abilities = std::thread::spawn(|| Abilities::probe(3)).join().unwrap().unwrap();
        assert!(abilities.watches, "{abilities:?}");
    }

    #[test]
    fn a_worker_locks_no_less_than_its_queues() {
        // Entries of 64 and of 16 bytes (linux/io_uring.h: struct io_uring_sqe, struct io_uring_cqe).
        assert_eq!(crate::WORKER_LOCKED_BYTES % 4096, 0);
        const { assert!(crate::WORKER_LOCKED_BYTES > 512 * 64 + 4096 * 16) }
    }
}
