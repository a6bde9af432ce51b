//! Threads for work that can only block.

use crate::Reply;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Most threads one pool may have.
pub const POOL_THREADS_MAX: usize = 256;

/// Errors of [`Pool::new`].
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum PoolError {
    /// a pool of {0} threads is out of range: use 1 to 256
    Threads(usize),
    /// cannot start pool thread {index} of {threads}: {source} (check RLIMIT_NPROC, the cgroup's pids.max and kernel.threads-max)
    Spawn {
        /// Which thread failed, from 1.
        index: usize,
        /// How many were asked for.
        threads: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

type Job = Box<dyn FnOnce() -> i32 + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Reply, Job)>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    waiting: Condvar,
}

/// A fixed number of threads that run jobs in the order they came. How many wait is bounded by the rings that feed it: a
/// request is in one place at a time.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads, named after `name`.
    ///
    /// # Errors
    /// A number out of range, or a thread that the system refuses.
    pub fn new(name: &str, threads: usize) -> Result<Pool, PoolError> {
        if !(1..=POOL_THREADS_MAX).contains(&threads) {
            return Err(PoolError::Threads(threads));
        }
        let mut pool = Pool { shared: Arc::default(), threads: Vec::with_capacity(threads) };
        for index in 1..=threads {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || work(&shared))
                .map_err(|source| PoolError::Spawn { index, threads, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Runs `job` on one of the threads and completes `reply` with its result.
    pub fn run(&self, reply: Reply, job: impl FnOnce() -> i32 + Send + 'static) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.jobs.push_back((reply, Box::new(job)));
        drop(queue);
        self.shared.waiting.notify_one();
    }
}

fn work(shared: &Shared) {
    loop {
        let (reply, job) = {
            let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.closed {
                    return;
                }
                queue = shared.waiting.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        };
        // A job that panics costs its request (the reply completes it with EIO when dropped), not the thread.
        if let Ok(result) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)) {
            reply.complete(result);
        }
    }
}

/// Waits for what was handed in.
impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.waiting.notify_all();
        for thread in self.threads.drain(..) {
            // The last handle may go with a job, and a thread cannot wait for its own end.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
