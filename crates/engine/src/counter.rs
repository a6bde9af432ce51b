//! Numbers that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that its one writer changes by plain loads and stores, and that anybody reads at any time without asking.
///
/// Each is exact by itself. Two that are read one after the other may belong to different moments: no order is kept between
/// them, so that a count costs what it costs in a plain field. What is counted by two threads at once may be lost; hand the
/// number over with what it is about, as a ring is handed from worker to worker.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// What it is now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Writer only: makes it `value`.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Writer only: adds `more`.
    #[inline]
    pub fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    /// Writer only: takes `less` away, of which there is so much.
    #[inline]
    pub fn sub(&self, less: u64) {
        self.set(self.get() - less);
    }

    /// Writer only: makes it at least `value`.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }
}
