//! Threads for what a worker must not wait for, whatever the execution.
//!
//! All storages share them. A storage has few jobs there at once, and its others wait in a line of its own: so one whose file hangs keeps
//! these few threads and no more, and threads are added where many hang.

use engine::{Io, POOL_THREADS_MAX, Pool, Reply, Token};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Most jobs of one storage that run at once.
const JOBS_MAX: usize = 2;

/// How long no threads are started where they could not be.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Hole punching, device discards, zeroing of large ranges, long copies. One device serialises much of it anyway.
pub static WORK: Threads =
    Threads::new("storage", 2, "discards and write zeroes run on the workers and may delay other requests");

/// Questions of where there is data, which keep no such work waiting.
pub static LOOKS: Threads = Threads::new(
    "extents",
    2,
    "clients that ask where a disk has data are answered on the workers and may delay other requests",
);

/// Records that are to be durable before somebody is told so: no question and no discard keeps them waiting.
pub static RECORDS: Threads =
    Threads::new("records", 1, "reservations are stored on the workers and may delay other requests");

/// Threads for one kind of job.
pub struct Threads {
    name: &'static str,
    /// How many there are when none of them hangs.
    usual: usize,
    /// What happens where they cannot be had.
    otherwise: &'static str,
    pool: OnceLock<Pool>,
    /// When they could not be had last.
    failed: Mutex<Option<Instant>>,
}

impl Threads {
    /// None yet.
    pub const fn new(name: &'static str, usual: usize, otherwise: &'static str) -> Threads {
        Threads { name, usual, otherwise, pool: OnceLock::new(), failed: Mutex::new(None) }
    }

    /// Starts them, unless they run. Called when a storage is opened, so that they have the daemon's affinity and cgroup and not those
    /// of the worker that happens to need them first.
    /// Where they could not be had, the next storage that is opened asks for them again, after a while.
    pub fn prepare(&'static self) {
        if self.pool.get().is_some() {
            return;
        }
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.pool.get().is_none() && failed.is_none_or(|at| at.elapsed() >= TRY_AGAIN_AFTER) {
            match Pool::growing(self.name, self.usual, POOL_THREADS_MAX) {
                Ok(pool) => drop(self.pool.set(pool)),
                Err(error) => {
                    tracing::warn!(%error, "{}", self.otherwise);
                    *failed = Some(Instant::now());
                }
            }
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The jobs of one storage.
#[derive(Clone)]
pub struct Jobs {
    threads: &'static Threads,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    running: usize,
    waiting: VecDeque<Job>,
}

/// A job runs; when it ends, well or by a panic, the next one in its line does.
struct Running(Jobs);

impl Jobs {
    /// None yet, on these threads.
    pub fn on(threads: &'static Threads) -> Jobs {
        Jobs { threads, state: Arc::default() }
    }

    /// Completes `token` with the result of `job`, which runs on one of the threads; without threads, and where nobody else would wait
    /// for it, here.
    pub fn run(&self, io: &mut Io<'_>, token: Token, job: impl FnOnce() -> i32 + Send + 'static) {
        let reply = io.reply(token);
        if io.may_block() {
            reply.complete(job());
        } else {
            self.run_elsewhere(reply, job);
        }
    }

    /// Completes `reply` with the result of `job`, which runs on one of the threads; without threads, here.
    pub fn run_elsewhere(&self, reply: Reply, job: impl FnOnce() -> i32 + Send + 'static) {
        self.go(move || reply.complete(job()));
    }

    /// Whether there are threads.
    pub fn has_threads(&self) -> bool {
        self.threads.pool.get().is_some()
    }

    /// Runs `job` on one of the threads, and without threads here. Whoever waits for it hears of it by the job itself.
    pub fn go(&self, job: impl FnOnce() + Send + 'static) {
        let Some(pool) = self.threads.pool.get() else { return job() };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.running == JOBS_MAX {
            state.waiting.push_back(Box::new(job));
            return;
        }
        state.running += 1;
        drop(state);
        self.hand_in(pool, Box::new(job));
    }

    /// Hands a job to the threads, behind those of other storages.
    fn hand_in(&self, pool: &Pool, job: Job) {
        let running = Running(self.clone());
        pool.go(move || {
            let _until_it_ends = running;
            job();
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let jobs = &self.0;
        let mut state = jobs.state.lock().unwrap_or_else(PoisonError::into_inner);
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.running -= 1;
        }
        drop(state);
        if let (Some(job), Some(pool)) = (next, jobs.threads.pool.get()) {
            jobs.hand_in(pool, job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Solo;
    use std::sync::mpsc::channel;

    static THREADS: Threads = Threads::new("test", 2, "a test");

    /// As after a failure: that a thread cannot be had is not to be had in a test.
    #[test]
    fn threads_that_could_not_be_had_are_asked_for_again_after_a_while() {
        static LATE: Threads = Threads::new("late", 1, "a test");
        *LATE.failed.lock().unwrap() = Some(Instant::now());
        LATE.prepare();
        let (jobs, here) = (Jobs::on(&LATE), std::thread::current().id());
        let (sender, ran) = channel();
        let run = || {
            let sender = sender.clone();
            jobs.go(move || sender.send(std::thread::current().id()).unwrap());
            ran.recv().unwrap()
        };
        assert_eq!(run(), here);
        assert!(!jobs.has_threads());
        *LATE.failed.lock().unwrap() = Instant::now().checked_sub(TRY_AGAIN_AFTER);
        // Not by a worker, whose affinity they would have.
        assert_eq!(run(), here);
        LATE.prepare();
        assert_ne!(run(), here);
        assert!(jobs.has_threads());
    }

    #[test]
    fn storages_that_hang_leave_threads_to_others() {
        THREADS.prepare();
        let hanging: Vec<Jobs> = (0..10).map(|_| Jobs::on(&THREADS)).collect();
        let other = Jobs::on(&THREADS);
        let mut solo = Solo::new().unwrap();
        let mut senders = Vec::new();
        for number in 0..200 {
            let (sender, receiver) = channel::<()>();
            senders.push(sender);
            let reply = solo.io().reply(Token::request(number));
            hanging[number as usize % 10].run_elsewhere(reply, move || {
                let _ = receiver.recv();
                0
            });
        }
        other.run_elsewhere(solo.io().reply(Token::request(1000)), || 7);
        let first = solo.wait().unwrap();
        assert_eq!((first.token, first.result), (Token::request(1000), 7));
        // In their order, and all of them.
        drop(senders);
        for _ in 0..200 {
            assert_eq!(solo.wait().unwrap().result, 0);
        }
        assert!(hanging.iter().all(|jobs| jobs.state.lock().unwrap().waiting.is_empty()));
    }
}
