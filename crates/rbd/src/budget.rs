//! What librbd keeps of requests until the cluster has answered them: so many bytes and no more, whatever guests ask for and however long a
//! cluster is away. Requests beyond that wait in a line.
//!
//! While nobody waits a request costs one atomic addition, and its end another.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Goes on with something whose turn has come, on whatever thread that is seen; must not block.
type Later<T> = Box<dyn Fn(T, Permit<T>) + Send + Sync>;

/// Bytes that requests have, and requests that wait for some.
pub(crate) struct Budget<T> {
    most: u64,
    used: AtomicU64,
    /// How many wait. Set under the lock.
    waiting: AtomicUsize,
    line: Mutex<VecDeque<(u64, T)>>,
    later: Later<T>,
}

impl<T> Budget<T> {
    /// So many bytes.
    pub(crate) fn new(most: u64, later: impl Fn(T, Permit<T>) + Send + Sync + 'static) -> Arc<Budget<T>> {
        let (used, waiting) = (AtomicU64::new(0), AtomicUsize::new(0));
        Arc::new(Budget { most, used, waiting, line: Mutex::default(), later: Box::new(later) })
    }

    /// `item` has its bytes, or waits for them: then it goes on later. One that asks for more than all waits for all.
    pub(crate) fn ask(self: &Arc<Self>, bytes: u64, item: T) -> Option<(T, Permit<T>)> {
        let bytes = bytes.min(self.most);
        if self.waiting.load(Ordering::SeqCst) == 0 && self.try_use(bytes) {
            return Some((item, Permit { budget: self.clone(), bytes }));
        }
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.push_back((bytes, item));
        self.waiting.store(line.len(), Ordering::SeqCst);
        drop(line);
        // What was given back before anybody saw it wait.
        self.next();
        None
    }

    fn try_use(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.most);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Lets those go on for whom there is room.
    fn next(self: &Arc<Self>) {
        while self.waiting.load(Ordering::SeqCst) > 0 {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            let has_room = line.front().is_some_and(|(bytes, _)| self.try_use(*bytes));
            let Some((bytes, item)) = (if has_room { line.pop_front() } else { None }) else { return };
            self.waiting.store(line.len(), Ordering::SeqCst);
            drop(line);
            (self.later)(item, Permit { budget: self.clone(), bytes });
        }
    }
}

/// A request's bytes. Dropped, they are the next one's.
pub(crate) struct Permit<T> {
    budget: Arc<Budget<T>>,
    bytes: u64,
}

impl<T> Permit<T> {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
        self.budget.next();
    }
}

impl<T> fmt::Debug for Permit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn there_is_never_more_under_way_and_everything_has_its_turn_in_order() {
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let budget = Budget::new(100, move |item: u32, permit| tell.lock().unwrap().send((item, permit)).unwrap());
        let (zero, first) = budget.ask(60, 0).unwrap();
        let (one, second) = budget.ask(40, 1).unwrap();
        assert_eq!((zero, one), (0, 1));
        assert!(budget.ask(30, 2).is_none());
        // There is room for it, but not before those that came first; one that wants more than all gets all.
        assert!(budget.ask(1000, 3).is_none() && budget.ask(0, 4).is_none());
        assert!(told.try_recv().is_err());
        drop(second);
        let (two, third) = told.try_recv().unwrap();
        assert_eq!((two, budget.used.load(Ordering::SeqCst)), (2, 90));
        drop(first);
        assert!(told.try_recv().is_err(), "there are 30 bytes under way");
        drop(third);
        let (three, all) = told.try_recv().unwrap();
        assert_eq!((three, budget.used.load(Ordering::SeqCst)), (3, 100));
        // What has no bytes waits for none.
        let (four, nothing) = told.try_recv().unwrap();
        drop((all, nothing));
        assert_eq!((four, budget.used.load(Ordering::SeqCst), budget.waiting.load(Ordering::SeqCst)), (4, 0, 0));
    }

    #[test]
    fn nobody_is_forgotten_among_threads() {
        const EACH: usize = 20_000;
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let budget = Budget::new(8, move |(), permit| tell.lock().unwrap().send(permit).unwrap());
        std::thread::scope(|scope| {
            let ask = |seed: u64| {
                let budget = &budget;
                move || (0..EACH).filter(|at| budget.ask((seed + *at as u64) % 9, ()).is_some()).count()
            };
            let asking = [1, 2, 3].map(|seed| scope.spawn(ask(seed)));
            let at_once: usize = asking.into_iter().map(|thread| thread.join().unwrap()).sum();
            for _ in at_once..3 * EACH {
                assert!(budget.used.load(Ordering::SeqCst) <= 8);
                drop(told.recv_timeout(std::time::Duration::from_secs(60)).expect("one waits for ever"));
            }
        });
        assert_eq!((budget.used.load(Ordering::SeqCst), budget.waiting.load(Ordering::SeqCst)), (0, 0));
    }
}
