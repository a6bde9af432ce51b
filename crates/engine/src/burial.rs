//! The end of rings that no caller takes back: on threads of their own.
//!
//! A ring may be the last that has a disk or a directory, and memory of gigabytes: what dropping it takes (write-back, closing
//! files, unmapping) is for no worker to do, whose other rings would wait.

use crate::Ring;
use crate::panic::catch;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The name of a thread that lets a ring go; it is there for no longer.
pub const RING_END_THREAD: &str = "ring-end";

/// Those of one engine that are under way.
#[derive(Default)]
pub(crate) struct Burials {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Burials {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the ring on another thread. Where there is none it is kept until the process ends: whatever that leaves is what a
    /// killed process leaves.
    pub(crate) fn bury<R: Ring>(self: &Arc<Burials>, ring: Box<R>) {
        *self.count() += 1;
        let burials = self.clone();
        // In here, so that a thread that does not start drops no ring on ours.
        let grave = Arc::new(Mutex::new(Some(ring)));
        let theirs = grave.clone();
        let body = move || {
            let ring = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
            // It may have panicked before.
            if let Err(why) = catch(|| drop(ring)) {
                tracing::error!(reason = %why, "a ring that was lost could not be let go");
            }
            burials.has_ended();
        };
        if let Err(error) = std::thread::Builder::new().name(RING_END_THREAD.into()).spawn(body) {
            tracing::error!(%error, "a ring that was lost stays until the process ends: no thread to let it go");
            std::mem::forget(grave.lock().unwrap_or_else(PoisonError::into_inner).take());
            self.has_ended();
        }
    }

    fn has_ended(&self) {
        *self.count() -= 1;
        self.ended.notify_all();
    }

    /// How many are under way.
    pub(crate) fn under_way(&self) -> usize {
        *self.count()
    }

    /// Waits until none is under way.
    pub(crate) fn wait(&self) {
        drop(self.ended.wait_while(self.count(), |count| *count > 0).unwrap_or_else(PoisonError::into_inner));
    }
}
