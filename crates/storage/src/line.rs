//! Tasks that wait for something bounded (a buffer, a slot), first come, first called.
//!
//! The resource itself is taken and given back without a lock, so two rules keep a wake-up from being lost: a task looks for the
//! resource once more *after* [`Line::park`], and whoever gives one back asks [`Line::wanted`] *after* that. Both fence in between,
//! so at least one of them sees the other.

use crate::sync::{AtomicU64, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::{Ordering, fence};

/// See the module.
#[derive(Debug)]
pub struct Line<W> {
    /// Length of the queue, for those that look without the lock.
    waiting: AtomicU64,
    queue: Mutex<VecDeque<W>>,
}

impl<W> Line<W> {
    /// An empty one.
    pub const fn new() -> Line<W> {
        Line { waiting: AtomicU64::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<W>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed) as usize
    }

    /// Whether nobody waits: newcomers ask, so that they do not overtake.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues at the back, or at the front `again` if the task was called and found the resource taken. The caller must then look
    /// for the resource once more, and [`call`](Self::call) if there is any.
    pub fn park(&self, waiter: W, again: bool) {
        let mut queue = self.queue();
        if again {
            queue.push_front(waiter);
        } else {
            queue.push_back(waiter);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(queue);
        fence(Ordering::SeqCst);
    }

    /// Whether somebody is to be called, for a thread that has just given something back.
    pub fn wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.is_empty()
    }

    /// Takes up to `count` of those that wait longest out of the line. Returned rather than told here: a waiter may be back before
    /// the lock is released.
    pub fn call(&self, count: usize) -> Vec<W> {
        let mut queue = self.queue();
        let count = count.min(queue.len());
        let called: Vec<W> = queue.drain(..count).collect();
        self.waiting.fetch_sub(called.len() as u64, Ordering::Relaxed);
        called
    }

    /// Takes one that gives up out of the line. `None`: it was called before, and must pass the call on if it has no use for it.
    pub fn leave(&self, is_it: impl FnMut(&W) -> bool) -> Option<W> {
        let mut queue = self.queue();
        let at = queue.iter().position(is_it)?;
        let left = queue.remove(at);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        left
    }
}

impl<W> Default for Line<W> {
    fn default() -> Line<W> {
        Line::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interleave::{in_many_orders, thread, yield_now};
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    #[test]
    fn first_come_first_called() {
        let line = Line::new();
        assert!(!line.wanted());
        (1..=4).for_each(|waiter| line.park(waiter, false));
        assert!(line.wanted());
        assert_eq!(line.call(1), [1]);
        line.park(1, true);
        assert_eq!(line.leave(|waiter| *waiter == 3), Some(3));
        assert_eq!(line.leave(|waiter| *waiter == 3), None);
        assert_eq!(line.len(), 3);
        assert_eq!(line.call(2), [1, 2]);
        assert_eq!(line.call(usize::MAX), [4]);
        assert_eq!(line.call(usize::MAX), [0; 0]);
        assert!(!line.wanted());
    }

    const GUESTS: usize = 3;

    /// One table, and guests that want it once each.
    struct Inn {
        free: AtomicU64,
        line: Line<usize>,
        called: [AtomicBool; GUESTS],
        /// Guests that are neither gone nor asleep: only they can call one that sleeps.
        awake: AtomicUsize,
    }

    impl Inn {
        fn take(&self) -> bool {
            self.free.compare_exchange(1, 0, SeqCst, SeqCst).is_ok()
        }

        fn call(&self) {
            for guest in self.line.call(1) {
                self.awake.fetch_add(1, SeqCst);
                self.called[guest].store(true, SeqCst);
            }
        }

        fn guest(&self, me: usize) {
            let mut again = false;
            while !self.take() {
                self.line.park(me, again);
                if self.free.load(SeqCst) > 0 {
                    self.call();
                }
                self.awake.fetch_sub(1, SeqCst);
                while !self.called[me].swap(false, SeqCst) {
                    assert!(self.awake.load(SeqCst) > 0, "a wake-up was lost");
                    yield_now();
                }
                again = true;
            }
            self.free.store(1, SeqCst);
            if self.line.wanted() {
                self.call();
            }
            self.awake.fetch_sub(1, SeqCst);
        }
    }

    #[test]
    fn no_wake_up_is_lost_in_any_order() {
        in_many_orders(4000, || {
            let inn = Arc::new(Inn {
                free: AtomicU64::new(1),
                line: Line::new(),
                called: Default::default(),
                awake: AtomicUsize::new(GUESTS),
            });
            let guests: Vec<_> = (0..GUESTS)
                .map(|me| {
                    let inn = inn.clone();
                    thread::spawn(move || inn.guest(me))
                })
                .collect();
            guests.into_iter().for_each(|guest| guest.join().unwrap());
            assert!(inn.line.is_empty());
        });
    }
}
