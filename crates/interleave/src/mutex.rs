//! A lock of the standard library, whose waiters let others go on.

use std::sync::{LockResult, TryLockError, TryLockResult};

use crate::{is_inside, turn, yield_now};

/// As the standard library's.
pub use std::sync::MutexGuard;

/// The standard library's, with a turn before it is taken.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A new one.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !is_inside() {
            return self.0.lock();
        }
        turn();
        loop {
            match self.0.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                // Its holder is another thread of ours, which goes on only if this one does not hold the processor.
                Err(TryLockError::WouldBlock) => yield_now(),
            }
        }
    }

    /// As the standard library's.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        turn();
        self.0.try_lock()
    }
}
