//! A copy of a disk that follows it.

use crate::after::{After, Dirt};
use crate::control::{Control, Find};
use crate::copying::{Copying, Course};
use crate::error::check_target;
use crate::marks::{CLUSTER_BYTES, Marks};
use crate::{JobError, Progress};
use engine::monotonic_ns;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use storage::copy::{CHUNK_BYTES, Copied, DEPTH};
use storage::{Storage, StorageError};

/// From the begin of one pass to that of the next: a block that is written all the time is copied so often and no more.
const PASS_NS: u64 = 10_000_000;
/// With so much left after a pass the copy counts as close: the lanes have it under way at once, and under a guest that writes all the
/// time there is always something.
const CLOSE_BYTES: u64 = CHUNK_BYTES * DEPTH as u64;
/// Or as much as is copied in this time: guests may wait so long for it.
const CLOSE_NS: u64 = 300_000_000;

/// Copies a disk, and then what was written to it meanwhile, until it is told to end.
pub struct Mirror {
    from: Arc<dyn Storage>,
    to: Arc<dyn Storage>,
    to_is_blank: bool,
    dirt: Arc<Dirt>,
    is_completing: AtomicBool,
    /// The limit does not hold for now.
    is_hurried: AtomicBool,
    /// What may be left when the copy is close.
    close_bytes: AtomicU64,
}

impl Mirror {
    /// Of `from`, into `to`, which reads as zeroes if it is blank.
    ///
    /// # Errors
    /// `to` is read-only or too small.
    pub fn new(from: Arc<dyn Storage>, to: Arc<dyn Storage>, to_is_blank: bool) -> Result<Mirror, StorageError> {
        Mirror::with(from, to, to_is_blank, true)
    }

    /// Of `from`, into `to`, which is the same but for what [`run_with`](Self::run_with) finds.
    ///
    /// # Errors
    /// As above.
    pub fn of_parts(from: Arc<dyn Storage>, to: Arc<dyn Storage>) -> Result<Mirror, StorageError> {
        Mirror::with(from, to, false, false)
    }

    fn with(
        from: Arc<dyn Storage>,
        to: Arc<dyn Storage>,
        to_is_blank: bool,
        everywhere: bool,
    ) -> Result<Mirror, StorageError> {
        check_target(&*from, &*to)?;
        let dirt = Arc::new(Dirt::new(from.capacity_bytes(), everywhere));
        if !everywhere {
            // How much there is to do shows when it is looked for.
            dirt.control.set_total(0);
        }
        Ok(Mirror {
            from,
            to,
            to_is_blank,
            dirt,
            is_completing: AtomicBool::new(false),
            is_hurried: AtomicBool::new(false),
            close_bytes: AtomicU64::new(CLOSE_BYTES),
        })
    }

    /// What guests use instead of the disk for as long as the job lasts. No request may be in flight when it is put in place.
    pub fn filter(&self) -> Arc<dyn Storage> {
        Arc::new(After::new(self.from.clone(), self.dirt.clone()))
    }

    /// Copies, and follows the disk until the job is [complete](Self::complete). Calls `ready` once, on this thread, when the copy is
    /// the same but for what guests have just written, which takes less than half a second to copy. Once: a second call is as good as cancelled.
    ///
    /// # Errors
    /// A storage's, the disk was resized, or the job was cancelled.
    pub fn run(&self, ready: &mut dyn FnMut()) -> Result<Copied, JobError> {
        self.dirt.control.begin()?;
        self.follow(ready)
    }

    /// As above, after `find` has shown the parts in which the copy differs. The filter is in place: what guests write from then on is
    /// copied as well.
    ///
    /// # Errors
    /// As above, and those of `find`.
    pub fn run_with(&self, find: &mut Find<'_>, ready: &mut dyn FnMut()) -> Result<Copied, JobError> {
        self.dirt.control.begin()?;
        self.dirt.control.find(&self.dirt.marks, find)?;
        self.follow(ready)
    }

    fn follow(&self, ready: &mut dyn FnMut()) -> Result<Copied, JobError> {
        let mut copying = Copying::new(&*self.from, &*self.to, self.to_is_blank, self)?;
        let mut ready = Some(ready);
        loop {
            let (begun_ns, before) = (monotonic_ns(), copying.copied().data_bytes);
            let mut next_ns = begun_ns + PASS_NS;
            copying.pass()?;
            self.check()?;
            self.learn(copying.copied().data_bytes - before, monotonic_ns() - begun_ns);
            // Looked at before the marks: what was written when it was set is marked by now.
            let is_completing = self.is_completing();
            let left_bytes = self.dirt.marks.count() * CLUSTER_BYTES;
            if left_bytes <= self.close_bytes.load(Ordering::Relaxed)
                && let Some(ready) = ready.take()
            {
                ready();
            }
            if left_bytes == 0 && is_completing {
                if self.has_ended(&mut copying)? {
                    return Ok(copying.copied());
                }
            } else if self.sleep(&mut copying) {
                // What comes together is copied together.
                next_ns = monotonic_ns() + PASS_NS;
            }
            self.pause(&mut copying, next_ns);
        }
    }

    /// Ends the job with a copy, at the next moment at which it is the same as the disk. While no request is in flight that is soon, and
    /// certain. The limit does not hold from now on: guests are waiting.
    pub fn complete(&self) {
        self.is_completing.store(true, Ordering::SeqCst);
        self.dirt.control.ring();
    }

    /// Lets the limit not hold until it is told to [go on](Self::go_on): it is about to be completed, and little may be left then.
    pub fn hurry(&self) {
        self.is_hurried.store(true, Ordering::SeqCst);
        self.dirt.control.ring();
    }

    /// As if nobody had wanted it completed. It may have ended already.
    pub fn go_on(&self) {
        self.is_completing.store(false, Ordering::SeqCst);
        self.is_hurried.store(false, Ordering::SeqCst);
    }

    /// Whether so little differs that it may be completed: guests wait for that.
    pub fn is_close(&self) -> bool {
        self.progress().dirty_bytes <= self.close_bytes.load(Ordering::Relaxed)
    }

    /// So much was copied in this time.
    fn learn(&self, bytes: u64, ns: u64) {
        // A small pass says little.
        if bytes >= CLOSE_BYTES {
            let soon = u128::from(bytes) * u128::from(CLOSE_NS) / u128::from(ns.max(1));
            self.close_bytes.store(CLOSE_BYTES.max(u64::try_from(soon).unwrap_or(u64::MAX)), Ordering::Relaxed);
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.dirt.control.progress(self.dirt.marks.count() * CLUSTER_BYTES)
    }

    /// Limits the job to so many bytes a second from now on; 0 stops it. Guests that write faster keep it from getting ready.
    pub fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.dirt.control.set_limit(bytes_per_second);
    }

    /// Ends the job without a copy. [`run`](Self::run) returns when what it has under way has ended.
    pub fn cancel(&self) {
        self.dirt.control.cancel();
    }

    fn is_completing(&self) -> bool {
        self.is_completing.load(Ordering::SeqCst)
    }

    /// Nothing differs: makes that stable, and looks whether it is still so.
    fn has_ended(&self, copying: &mut Copying<'_>) -> Result<bool, JobError> {
        copying.flush()?;
        self.check()?;
        Ok(self.dirt.is_clean())
    }

    /// Sleeps until there is something to do. False if there is already.
    fn sleep(&self, copying: &mut Copying<'_>) -> bool {
        copying.arm();
        let has_news = || self.check().is_err() || self.is_completing();
        !has_news() && self.dirt.while_clean(|| copying.wait(None))
    }

    /// Waits for the time, unless the job is to end.
    fn pause(&self, copying: &mut Copying<'_>, until_ns: u64) {
        loop {
            copying.arm();
            if self.check().is_err() || self.is_completing() || monotonic_ns() >= until_ns {
                return;
            }
            copying.wait(Some(until_ns));
        }
    }
}

impl Course for Mirror {
    fn todo(&self) -> &Marks {
        &self.dirt.marks
    }

    /// A disk that has grown has something that the copy has no room for.
    fn check(&self) -> Result<(), JobError> {
        self.dirt.control.check()?;
        let is_resized = self.from.capacity_bytes() != self.dirt.marks.size_bytes();
        if is_resized { Err(JobError::Resized) } else { Ok(()) }
    }

    fn control(&self) -> &Control {
        &self.dirt.control
    }

    fn is_urgent(&self) -> bool {
        self.is_completing() || self.is_hurried.load(Ordering::SeqCst)
    }
}
