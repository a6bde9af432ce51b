//! Counters with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that its one writer updates by a relaxed load and store, never by a read-modify-write: it costs what a plain field
/// costs, and any thread can read it at any time.
///
/// Each counter is exact. No order is kept between counters: two that are read one after the other may be of different moments.
/// Two writers at once lose counts, so a counter moves from thread to thread only with the ring that it describes.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The present value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value. Writer only.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `more`. Writer only.
    #[inline]
    pub fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    /// Subtracts `less`, which is at most the value. Writer only.
    #[inline]
    pub fn sub(&self, less: u64) {
        self.set(self.get() - less);
    }

    /// Raises the value to at least `value`. Writer only.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }
}
