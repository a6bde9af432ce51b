//! Threads that close for others, one a tree: a file system that does not answer holds up its own tree alone.

use crate::closing::serves;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

#[cfg(test)]
thread_local! {
    /// How much this thread has left to others.
    pub(crate) static LEFT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What was left to one thread.
#[derive(Debug, Default)]
struct Left {
    jobs: AtomicU64,
    done: AtomicU64,
}

/// Of all threads that have had something to do, as long as they, or their trees, are there.
static ALL: Mutex<BTreeMap<u64, Weak<Left>>> = Mutex::new(BTreeMap::new());

/// Without those that are gone.
fn all() -> MutexGuard<'static, BTreeMap<u64, Weak<Left>>> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, left| left.strong_count() > 0);
    all
}

/// How much each thread has done that closes for others and has more to do, by its number: whoever wants it to end waits for it. One
/// that has done no more since hangs, whatever others do.
pub fn closing() -> BTreeMap<u64, u64> {
    let all = all();
    let busy = |(number, left): (&u64, &Weak<Left>)| Some((*number, left.upgrade()?.more_to_do()?));
    all.iter().filter_map(busy).collect()
}

impl Left {
    fn begin(&self) {
        self.jobs.fetch_add(1, Ordering::Release);
    }

    fn end(&self) {
        self.done.fetch_add(1, Ordering::Release);
    }

    fn more_to_do(&self) -> Option<u64> {
        // In this order: what comes between the two is not yet done.
        let done = self.done.load(Ordering::Acquire);
        (self.jobs.load(Ordering::Acquire) > done).then_some(done)
    }
}

/// The thread of a tree, once there was something to do for it. It ends when the tree is gone and all is done.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    left: Arc<Left>,
    thread: Mutex<Option<Sender<Job>>>,
}

impl Closer {
    /// Has the thread do something. What it holds counts among the descriptors of its tree until then. Without a thread it is done here.
    pub(crate) fn leave(&self, job: Job) {
        #[cfg(test)]
        LEFT.set(LEFT.get() + 1);
        self.left.begin();
        let left = match self.sender() {
            Some(sender) => sender.send(job).map_err(|unsent| unsent.0),
            None => Err(job),
        };
        if let Err(job) = left {
            job();
            self.left.end();
        }
    }

    /// Does what may take long and nobody waits for: by the thread where this one serves others, and elsewhere here.
    pub(crate) fn when_there_is_time(&self, job: Job) {
        if serves() { self.leave(job) } else { job() }
    }

    fn sender(&self) -> Option<Sender<Job>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (jobs, receiver) = channel::<Job>();
            let left = Arc::clone(&self.left);
            let run = move || {
                receiver.into_iter().for_each(|job| {
                    // A panic is told by its hook; others still have this thread.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                    left.end();
                });
            };
            let mut all = all();
            all.insert(NEXT.fetch_add(1, Ordering::Relaxed), Arc::downgrade(&self.left));
            drop(all);
            *thread = std::thread::Builder::new().name("close".into()).spawn(run).ok().map(|_| jobs);
        }
        thread.clone()
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

    /// Whether each of those has done something since, or has no more to do.
    fn wait_for_progress(before: &BTreeMap<u64, u64>) {
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while closing().iter().any(|(number, done)| before.get(number) == Some(done)) {
            assert!(std::time::Instant::now() < by);
            std::thread::yield_now();
        }
    }

    #[test]
    fn each_thread_that_has_more_to_do_is_known() {
        let hangs = || {
            let share = crate::share::Share::of_process();
            let (begins, begun) = channel();
            let (ends, end) = channel::<()>();
            share.closer.leave(Box::new(move || assert!(begins.send(()).is_ok() && end.recv().is_err())));
            begun.recv().unwrap();
            (share, ends)
        };
        let (here, ends) = hangs();
        // A tree that is gone still has its thread.
        let (there, ends_there) = hangs();
        drop(there);
        let before = closing();
        assert!(before.len() >= 2, "{before:?}");
        // Others have a thread of their own, and what they do is not done by one that hangs.
        let (also, done) = channel::<()>();
        crate::share::Share::of_process().closer.leave(Box::new(move || drop(also)));
        assert!(done.recv().is_err());
        drop(ends_there);
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let hanging =
            |now: &BTreeMap<u64, u64>| before.iter().filter(|(number, done)| now.get(number) == Some(done)).count();
        while hanging(&closing()) > before.len() - 1 {
            assert!(std::time::Instant::now() < by);
            std::thread::yield_now();
        }
        assert!(hanging(&closing()) >= 1, "that one still has what it had");
        drop((ends, here));
        wait_for_progress(&before);
    }
}
