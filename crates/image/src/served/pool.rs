//! Threads for what a worker must not wait for: metadata, copies on write, decompression.
//!
//! All images share them. An image has two jobs there at most, and its others wait in a lane of its own: so one whose file hangs keeps
//! two threads and no more, and threads are added where many hang.

use engine::{POOL_THREADS_MAX, Pool, Reply};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Enough for a few images at once; each job is short.
const THREADS: usize = 4;

/// Most jobs of one image that run at once.
const JOBS_MAX: usize = 2;

static POOL: OnceLock<Option<Pool>> = OnceLock::new();

type Job = Box<dyn FnOnce() -> i32 + Send>;

/// The jobs of one image.
#[derive(Clone, Default)]
pub(super) struct Lane(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    running: usize,
    waiting: VecDeque<(Reply, Job)>,
}

/// A job runs; when it ends, well or by a panic, the next one of its lane does.
struct Running(Lane);

/// Starts the threads, unless they run: when a storage is started, so that they have the daemon's affinity.
pub(super) fn prepare() {
    pool();
}

fn pool() -> Option<&'static Pool> {
    let start = || match Pool::growing("qcow2", THREADS, POOL_THREADS_MAX) {
        Ok(pool) => Some(pool),
        Err(error) => {
            tracing::warn!(%error, "metadata of qcow2 images is read and written on the workers and may delay other requests");
            None
        }
    };
    POOL.get_or_init(start).as_ref()
}

impl Lane {
    /// Runs `job` on one of the threads; without threads, here.
    pub(super) fn run(&self, reply: Reply, job: impl FnOnce() -> i32 + Send + 'static) {
        let Some(pool) = pool() else {
            reply.complete(job());
            return;
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.running == JOBS_MAX {
            state.waiting.push_back((reply, Box::new(job)));
            return;
        }
        state.running += 1;
        drop(state);
        self.go(pool, reply, Box::new(job));
    }

    /// Hands a job to the threads, behind those of other images.
    fn go(&self, pool: &Pool, reply: Reply, job: Job) {
        let running = Running(self.clone());
        pool.run(reply, move || {
            let _until_it_ends = running;
            job()
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let lane = &self.0;
        let mut state = lane.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.running -= 1;
        }
        drop(state);
        if let (Some((reply, job)), Some(pool)) = (next, pool()) {
            lane.go(pool, reply, job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Solo, Token};
    use std::sync::mpsc::channel;

    #[test]
    fn images_that_hang_leave_threads_to_others() {
        let hanging: Vec<Lane> = (0..10).map(|_| Lane::default()).collect();
        let other = Lane::default();
        let mut solo = Solo::new().unwrap();
        let mut senders = Vec::new();
        for number in 0..200 {
            let (sender, receiver) = channel::<()>();
            senders.push(sender);
            let reply = solo.io().reply(Token::request(number));
            hanging[number as usize % 10].run(reply, move || {
                let _ = receiver.recv();
                0
            });
        }
        other.run(solo.io().reply(Token::request(1000)), || 7);
        let first = solo.wait().unwrap();
        assert_eq!((first.token, first.result), (Token::request(1000), 7));
        // In their order, and all of them.
        drop(senders);
        for _ in 0..200 {
            assert_eq!(solo.wait().unwrap().result, 0);
        }
        assert!(hanging.iter().all(|lane| lane.0.lock().unwrap().waiting.is_empty()));
    }
}
