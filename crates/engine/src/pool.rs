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

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads beyond those that the pool began with.
    extra: usize,
}

struct Shared {
    name: String,
    threads: usize,
    most: usize,
    queue: Mutex<Queue>,
    waiting: Condvar,
}

/// Threads that run jobs in the order they came. How many jobs wait is bounded by the rings that feed it: a request is in one place
/// at a time.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts a fixed number of threads, named after `name`.
    ///
    /// # Errors
    /// A number out of range, or a thread that the system refuses.
    pub fn new(name: &str, threads: usize) -> Result<Pool, PoolError> {
        Pool::growing(name, threads, threads)
    }

    /// Starts `threads` threads. When the last that waits takes a job it first starts another, up to `most` in all, so that jobs that hang
    /// hold up no others; as many as the pool began with stay when there is nothing to do. Threads are started by threads of the pool, and
    /// have its affinity and cgroup whoever hands a job in.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn growing(name: &str, threads: usize, most: usize) -> Result<Pool, PoolError> {
        if !(1..=POOL_THREADS_MAX).contains(&threads) || !(threads..=POOL_THREADS_MAX).contains(&most) {
            return Err(PoolError::Threads(most));
        }
        let shared =
            Shared { name: name.to_owned(), threads, most, queue: Mutex::default(), waiting: Condvar::default() };
        let mut pool = Pool { shared: Arc::new(shared), threads: Vec::with_capacity(threads) };
        for index in 1..=threads {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || work(&shared, false))
                .map_err(|source| PoolError::Spawn { index, threads, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// How many threads it began with.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Runs `job` on one of the threads and completes `reply` with its result.
    pub fn run(&self, reply: Reply, job: impl FnOnce() -> i32 + Send + 'static) {
        // A job that panics costs its request: the reply completes it with EIO when dropped.
        self.go(move || reply.complete(job()));
    }

    /// Runs `job` on one of the threads: whoever waits for it hears of it by the job itself.
    pub fn go(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.jobs.push_back(Box::new(job));
        drop(queue);
        self.shared.waiting.notify_one();
    }
}

fn work(shared: &Arc<Shared>, is_extra: bool) {
    loop {
        let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let job = loop {
            if let Some(job) = queue.jobs.pop_front() {
                break job;
            }
            if queue.closed || is_extra && queue.idle >= shared.threads {
                queue.extra -= usize::from(is_extra);
                return;
            }
            queue.idle += 1;
            queue = shared.waiting.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        };
        let alone = queue.idle == 0 && shared.threads + queue.extra < shared.most;
        queue.extra += usize::from(alone);
        drop(queue);
        if alone {
            add(shared);
        }
        // The thread outlives a job that panics.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

/// Starts a thread that was counted.
fn add(shared: &Arc<Shared>) {
    let its = shared.clone();
    let named = std::thread::Builder::new().name(format!("{}-more", shared.name));
    if let Err(error) = named.spawn(move || work(&its, true)) {
        tracing::debug!(%error, pool = shared.name, "no thread could be added");
        // Whoever takes a job next asks again. Where all of them hang nobody does, as if this were the most.
        shared.queue.lock().unwrap_or_else(PoisonError::into_inner).extra -= 1;
    }
}

/// Waits for what was handed in, but for what threads that were added still do.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Solo, Token};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    fn extra(pool: &Pool) -> usize {
        pool.shared.queue.lock().unwrap().extra
    }

    #[test]
    fn jobs_that_hang_hold_up_no_others_until_there_are_most_threads() {
        let pool = Pool::growing("growing", 2, 6).unwrap();
        let mut solo = Solo::new().unwrap();
        let mut run = |number, job: Box<dyn FnOnce() -> i32 + Send>| {
            pool.run(solo.io().reply(Token::request(number)), job);
        };
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (sender, began) = channel();
        for number in 0..6 {
            let (held, sender) = (held.clone(), sender.clone());
            run(
                number,
                Box::new(move || {
                    sender.send(number).unwrap();
                    let _ = held.lock().map(|held| held.recv());
                    i32::from(number)
                }),
            );
        }
        // All six run at once, though each hangs.
        let mut numbers: Vec<u16> = (0..6).map(|_| began.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        run(6, Box::new(|| 6));
        assert_eq!(extra(&pool), 4, "there are no more than were allowed");
        drop(hold);
        let mut ended: Vec<i32> = (0..7).map(|_| solo.wait().unwrap().result).collect();
        ended.sort_unstable();
        assert_eq!(ended, [0, 1, 2, 3, 4, 5, 6]);
        // And those that are not needed any more go.
        let deadline = Instant::now() + Duration::from_secs(60);
        while extra(&pool) > 2 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(extra(&pool) <= 2);
    }

    #[test]
    fn a_pool_that_is_not_to_grow_does_not() {
        let pool = Pool::new("fixed", 1).unwrap();
        let mut solo = Solo::new().unwrap();
        for number in 0..100 {
            pool.run(solo.io().reply(Token::request(number)), || 0);
        }
        (0..100).for_each(|_| assert_eq!(solo.wait().unwrap().result, 0));
        assert_eq!((extra(&pool), pool.threads()), (0, 1));
        assert!(Pool::growing("wrong", 2, 1).is_err() && Pool::growing("wrong", 1, 257).is_err());
    }
}
