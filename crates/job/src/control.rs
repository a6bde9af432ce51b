//! What other threads tell a running job, and what it tells them.

use crate::JobError;
use crate::limit::Limit;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use engine::Reply;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the disk that were copied, or need no copy: each once, also where a mirror has copied them again.
    pub done_bytes: u64,
    /// Bytes of the disk.
    pub total_bytes: u64,
    /// Bytes in which a mirror's copy differs from the disk, and that nobody is copying. 0 for a backup.
    pub dirty_bytes: u64,
}

/// See the module.
///
/// The job sleeps in [`Solo::wait`](engine::Solo::wait) and is woken by a reply of its own, the bell. It *arms* the bell, then looks at
/// what it may have been told, then waits; whoever tells it something does so first and rings then. So no wake-up is lost: a ring before
/// the bell was armed is before the look (the bell's lock is between them), and a ring after it completes what is waited for.
pub(crate) struct Control {
    pub(crate) limit: Limit,
    bell: Mutex<Option<Reply>>,
    has_begun: AtomicBool,
    is_cancelled: AtomicBool,
    done_bytes: AtomicU64,
    total_bytes: u64,
}

impl Control {
    pub(crate) fn new(total_bytes: u64) -> Control {
        Control {
            limit: Limit::none(),
            bell: Mutex::new(None),
            has_begun: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            done_bytes: AtomicU64::new(0),
            total_bytes,
        }
    }

    /// The job runs, for the first time.
    pub(crate) fn begin(&self) -> Result<(), JobError> {
        // A second run would find marks that the first one has used up.
        if self.has_begun.swap(true, Ordering::SeqCst) { Err(JobError::Cancelled) } else { Ok(()) }
    }

    /// Puts a bell in place, unless one is there that has not rung.
    pub(crate) fn arm(&self, make: impl FnOnce() -> Reply) {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(make);
    }

    /// Whether there is a bell that has not rung.
    #[cfg(test)]
    pub(crate) fn is_armed(&self) -> bool {
        self.bell.lock().unwrap().is_some()
    }

    /// Wakes the job if it sleeps.
    pub(crate) fn ring(&self) {
        let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(bell) = bell {
            bell.complete(0);
        }
    }

    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        self.ring();
    }

    pub(crate) fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.limit.set(bytes_per_second);
        self.ring();
    }

    /// # Errors
    /// The job is cancelled.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        if self.is_cancelled.load(Ordering::SeqCst) { Err(JobError::Cancelled) } else { Ok(()) }
    }

    /// So many bytes more are copied.
    pub(crate) fn has_done(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self, dirty_bytes: u64) -> Progress {
        let done_bytes = self.done_bytes.load(Ordering::Relaxed).min(self.total_bytes);
        Progress { done_bytes, total_bytes: self.total_bytes, dirty_bytes: dirty_bytes.min(self.total_bytes) }
    }
}
