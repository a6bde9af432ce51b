//! Threads that close for others, one a tree: a file system that does not answer holds up its own tree alone.

use crate::closing::serves;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

#[cfg(test)]
thread_local! {
    /// How much this thread has left to others.
    pub(crate) static LEFT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Jobs that were left to such threads, and those of them that are done.
static JOBS: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);

/// How much the threads that close for others have done, while they have more to do: whoever wants them to end waits for them.
pub fn closing() -> Option<u64> {
    // In this order: what comes between the two is not yet done.
    let done = DONE.load(Ordering::Acquire);
    (JOBS.load(Ordering::Acquire) > done).then_some(done)
}

/// The thread of a tree, once there was something to do for it. It ends when the tree is gone and all is done.
#[derive(Debug, Default)]
pub(crate) struct Closer(Mutex<Option<Sender<Job>>>);

impl Closer {
    /// Has the thread do something. What it holds counts among the descriptors of its tree until then. Without a thread it is done here.
    pub(crate) fn leave(&self, job: Job) {
        #[cfg(test)]
        LEFT.set(LEFT.get() + 1);
        JOBS.fetch_add(1, Ordering::Release);
        let left = match self.sender() {
            Some(sender) => sender.send(job).map_err(|unsent| unsent.0),
            None => Err(job),
        };
        if let Err(job) = left {
            job();
            DONE.fetch_add(1, Ordering::Release);
        }
    }

    /// Does what may take long and nobody waits for: by the thread where this one serves others, and elsewhere here.
    pub(crate) fn when_there_is_time(&self, job: Job) {
        if serves() { self.leave(job) } else { job() }
    }

    fn sender(&self) -> Option<Sender<Job>> {
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            let (jobs, receiver) = channel::<Job>();
            let run = move || {
                receiver.into_iter().for_each(|job| {
                    // A panic is told by its hook; others still have this thread.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    DONE.fetch_add(1, Ordering::Release);
                });
            };
            *sender = std::thread::Builder::new().name("close".into()).spawn(run).ok().map(|_| jobs);
        }
        sender.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn what_is_left_to_the_thread_is_closed() {
        let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let count = std::sync::Arc::default();
        let share = crate::share::Share::of_process();
        let held = (OwnedFd::from(writer), (crate::sync::Counted::new(&count), share.take().unwrap()));
        share.closer.leave(Box::new(move || drop(held)));
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0, "the other end is closed");
    }

    #[test]
    fn it_is_known_while_something_is_closed() {
        let (begins, begun) = channel();
        let (ends, end) = channel::<()>();
        let share = crate::share::Share::of_process();
        share.closer.leave(Box::new(move || assert!(begins.send(()).is_ok() && end.recv().is_err())));
        begun.recv().unwrap();
        let before = closing();
        assert!(before.is_some());
        // Others have a thread of their own.
        let (also, done) = channel::<()>();
        crate::share::Share::of_process().closer.leave(Box::new(move || drop(also)));
        assert!(done.recv().is_err() && closing().is_some());
        let before = closing();
        drop((ends, share));
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while closing() == before {
            assert!(std::time::Instant::now() < by);
            std::thread::yield_now();
        }
    }
}
