//! Small things for threads: locks whose holder panicked, counts that give themselves back, hashing of our own numbers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Takes a lock. What a panicking thread left is consistent: no guard here spans more than one change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for readers.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for a writer.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// One of a counted number of things. The count falls when this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// One more, whatever the count.
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(count))
    }

    /// One more, unless there are `max` already.
    pub(crate) fn within(count: &Arc<AtomicUsize>, max: usize) -> Option<Counted> {
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < max).then_some(now + 1)).ok()?;
        Some(Counted(Arc::clone(count)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Hashes numbers that this program gave out itself, or another one before a client was migrated: in a way that nobody knows who could
/// choose them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberHasher {
    state: u64,
    factor: u64,
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplicative hashing; the fold brings the good upper bits down to where a table looks for its bucket.
        let product = (self.state ^ number).wrapping_mul(self.factor);
        self.state = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

/// Makes [`NumberHasher`]s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers(NumberHasher);

impl Default for Numbers {
    fn default() -> Numbers {
        let secret = RandomState::new();
        // An odd factor leaves different numbers different.
        Numbers(NumberHasher { state: secret.hash_one(0), factor: secret.hash_one(1) | 1 })
    }
}

impl BuildHasher for Numbers {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_kept_and_given_back() {
        let count = Arc::new(AtomicUsize::new(0));
        let first = Counted::within(&count, 2);
        let second = Counted::new(&count);
        assert!(first.is_some());
        assert!(Counted::within(&count, 2).is_none());
        drop(second);
        assert!(Counted::within(&count, 2).is_some());
        drop(first);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
