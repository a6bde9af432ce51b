//! What other threads tell a running job, and what it tells them.

use crate::JobError;
use crate::limit::Limit;
use crate::marks::Marks;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use engine::Reply;
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use storage::StorageError;

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the disk that were copied, or need no copy: each once, also where a mirror has copied them again.
    pub done_bytes: u64,
    /// Bytes of the disk, or of that part of it that is to be copied.
    pub total_bytes: u64,
    /// Bytes in which a mirror's copy differs from the disk, and that nobody is copying. 0 for a backup.
    pub dirty_bytes: u64,
}

/// Shows parts of a disk, in bytes, to whom it is given, until that answers with false.
pub type Find<'a> = dyn FnMut(&mut dyn FnMut(Range<u64>) -> bool) -> Result<(), StorageError> + 'a;

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
    total_bytes: AtomicU64,
}

impl Control {
    pub(crate) fn new(total_bytes: u64) -> Control {
        Control {
            limit: Limit::none(),
            bell: Mutex::new(None),
            has_begun: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            done_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(total_bytes),
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

    /// There are so many bytes to be done, which only showed after it had begun.
    pub(crate) fn set_total(&self, bytes: u64) {
        self.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Marks what `find` shows, and has that to be done.
    ///
    /// # Errors
    /// Those of `find`, or the job is cancelled.
    pub(crate) fn find(&self, marks: &Marks, find: &mut Find<'_>) -> Result<(), JobError> {
        let mut show = |bytes: Range<u64>| {
            marks.set(marks.clusters(bytes.start, bytes.end.saturating_sub(bytes.start)));
            self.check().is_ok()
        };
        find(&mut show).map_err(JobError::storage("look for what is to be copied"))?;
        self.set_total(marks.marked_bytes());
        self.check()
    }

    pub(crate) fn progress(&self, dirty_bytes: u64) -> Progress {
        let total_bytes = self.total_bytes.load(Ordering::Relaxed);
        let done_bytes = self.done_bytes.load(Ordering::Relaxed).min(total_bytes);
        Progress { done_bytes, total_bytes, dirty_bytes }
    }
}
