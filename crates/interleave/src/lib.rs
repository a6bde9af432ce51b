//! Threads that go one at a time, in many orders: a model checker for code whose threads share atomics and locks.
//!
//! The code under test is the code that ships. In its crate's unit tests a small `sync` module takes the atomics and the
//! [`Mutex`] from here instead of from the standard library: the same types, with a point before each access at which another
//! thread may go on. Inside of [`in_many_orders`] shuttle decides at these points who goes on; elsewhere they do nothing, so
//! that all other tests of the crate run as ever.
//!
//! Of the orders a part is random, a part has few changes that are well chosen (PCT), and most have one thread sleep through long
//! stretches of the others (`sleepers`). Memory is sequentially consistent here; what weaker orders permit is argued where they are used, and met by tests
//! with free threads. A wait is no wait here but a loop around [`yield_now`].

pub mod atomic;
mod mutex;
mod sleepers;

pub use mutex::{Mutex, MutexGuard};
pub use shuttle::thread;

use std::cell::Cell;
use std::env;
use std::time::Duration;

use self::sleepers::Sleepers;
use shuttle::rand::RngCore;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Multiplies the number of orders: nights have time.
pub const MORE_VARIABLE: &str = "VRINGD_MORE";
/// An order that failed, as the failure shows it: it alone is run.
pub const SCHEDULE_VARIABLE: &str = "VRINGD_SCHEDULE";

/// How often one thread is put behind all others in one order of few changes.
const CHANGES: usize = 3;
/// What runs in tests is not small.
const STACK_BYTES: usize = 512 << 10;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` and the threads that it starts ([`thread`]) in so many orders, and more where [`MORE_VARIABLE`] says so. Panics
/// with the order in which one of them panicked, in which none can go on, or which does not end.
pub fn in_many_orders(orders: usize, body: impl Fn() + Send + Sync + Clone + 'static) {
    let more: usize = env::var(MORE_VARIABLE).ok().and_then(|more| more.parse().ok()).unwrap_or(1);
    in_so_many_orders(orders * more, body);
}

/// As [`in_many_orders`], and at night no more: each order leaves something behind.
pub fn in_so_many_orders(orders: usize, body: impl Fn() + Send + Sync + Clone + 'static) {
    let _inside = Inside::enter();
    if let Ok(schedule) = env::var(SCHEDULE_VARIABLE) {
        return shuttle::replay(body, &schedule);
    }
    let part = orders.div_ceil(8);
    run(RandomScheduler::new(part), body.clone());
    run(PctScheduler::new(CHANGES, part), body.clone());
    run(Sleepers::new(6 * part), body);
}

fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    Runner::new(scheduler, config).run(body);
}

/// A number that is another in each order, and the same when the order is run again.
pub fn random() -> u64 {
    shuttle::rand::thread_rng().next_u64()
}

/// A point at which another thread may go on.
#[inline]
pub fn turn() {
    if is_inside() {
        // Time does not pass, others may go on.
        thread::sleep(Duration::ZERO);
    }
}

/// Another thread has to go on first.
#[inline]
pub fn yield_now() {
    if is_inside() {
        thread::yield_now();
    } else {
        std::thread::yield_now();
    }
}

/// What is dropped by a panic goes straight on.
fn is_inside() -> bool {
    INSIDE.get() && !std::thread::panicking()
}

struct Inside;

impl Inside {
    fn enter() -> Inside {
        INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use super::atomic::AtomicU32;
    use super::{Mutex, in_many_orders, thread};

    #[test]
    fn a_lost_update_is_found() {
        let race = || {
            let count = Arc::new(AtomicU32::new(0));
            let add = |count: Arc<AtomicU32>| move || count.store(count.load(SeqCst) + 1, SeqCst);
            let other = thread::spawn(add(count.clone()));
            add(count.clone())();
            other.join().unwrap();
            assert_eq!(count.load(SeqCst), 2);
        };
        assert!(catch_unwind(|| in_many_orders(100, race)).is_err());
    }

    #[test]
    fn a_lock_keeps_others_out() {
        in_many_orders(100, || {
            let count = Arc::new(Mutex::new(0));
            let other = {
                let count = count.clone();
                thread::spawn(move || *count.lock().unwrap() += 1)
            };
            {
                let mut count = count.lock().unwrap();
                super::turn();
                *count += 1;
            }
            other.join().unwrap();
            assert_eq!(*count.lock().unwrap(), 2);
        });
    }

    #[test]
    fn outside_it_is_the_standard_librarys() {
        let count = Arc::new(AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| count.fetch_add(1, SeqCst));
            }
        });
        assert_eq!(count.load(SeqCst), 2);
    }
}
