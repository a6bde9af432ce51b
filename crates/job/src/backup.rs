//! A copy of a disk as it was at one moment.

use crate::before::{Before, Guards, Lifted};
use crate::control::Control;
use crate::copying::{Copying, Course};
use crate::error::check_target;
use crate::marks::Marks;
use crate::{JobError, Progress};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::copy::Copied;
use storage::{Storage, StorageError};

/// Copies a disk as it was when the [filter](Self::filter) was put in place. A guest's write to what is not copied yet waits until its
/// old contents are read, which the job then does first.
///
/// The size is the one at the beginning: what a disk gets when it grows is not copied.
pub struct Backup {
    from: Arc<dyn Storage>,
    to: Arc<dyn Storage>,
    to_is_blank: bool,
    guards: Arc<Guards>,
    /// What no lane has had. The guards' marks stay until it is read.
    todo: Marks,
}

impl Backup {
    /// Of `from`, into `to`, which reads as zeroes if it is blank.
    ///
    /// # Errors
    /// `to` is read-only or too small.
    pub fn new(from: Arc<dyn Storage>, to: Arc<dyn Storage>, to_is_blank: bool) -> Result<Backup, StorageError> {
        let all = Marks::new(from.capacity_bytes(), true);
        Backup::with((from, to), to_is_blank, &all)
    }

    /// Of what has changed: of those clusters of `from` in which some of these bytes lie. `to` has all the others already.
    ///
    /// # Errors
    /// As above.
    pub fn of_changes(
        from: Arc<dyn Storage>,
        to: Arc<dyn Storage>,
        changes: impl IntoIterator<Item = Range<u64>>,
    ) -> Result<Backup, StorageError> {
        let marks = Marks::new(from.capacity_bytes(), false);
        for bytes in changes {
            marks.set(marks.clusters(bytes.start, bytes.end.saturating_sub(bytes.start)));
        }
        Backup::with((from, to), false, &marks)
    }

    fn with(
        (from, to): (Arc<dyn Storage>, Arc<dyn Storage>),
        to_is_blank: bool,
        marks: &Marks,
    ) -> Result<Backup, StorageError> {
        check_target(&*from, &*to)?;
        let guards = Arc::new(Guards::new(marks.again()));
        Ok(Backup { from, to, to_is_blank, guards, todo: marks.again() })
    }

    /// What guests use instead of the disk for as long as the job lasts. No request may be in flight when it is put in place. From then on
    /// writes wait for [`run`](Self::run), or for the end of the job. Later it is the disk and nothing more.
    pub fn filter(&self) -> Arc<dyn Storage> {
        Arc::new(Before::new(self.from.clone(), self.guards.clone()))
    }

    /// Copies, until all of it is in the target and stable there. Once: a second call is as good as cancelled.
    ///
    /// # Errors
    /// A storage's, or the job was cancelled. Guests go on.
    pub fn run(&self) -> Result<Copied, JobError> {
        self.guards.control.begin()?;
        let _until_the_end = Lifted(&self.guards);
        let mut copying = Copying::new(&*self.from, &*self.to, self.to_is_blank, self)?;
        copying.pass()?;
        copying.flush()?;
        // Guards go after a cancellation is there to be seen: who does not see it has read what they guarded.
        self.check()?;
        Ok(copying.copied())
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.guards.control.progress(0)
    }

    /// Limits the walk over the disk to so many bytes a second from now on; 0 stops it. What guests wait for is not limited.
    pub fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.guards.control.set_limit(bytes_per_second);
    }

    /// How long a guest waits for the job to get on before the job fails by that and the guest goes on; 10 seconds unless it is set.
    pub fn set_patience(&self, patience: Duration) {
        self.guards.set_patience(patience);
    }

    /// Ends the job without a copy. Guests go on at once; [`run`](Self::run) returns when what it has under way has ended.
    pub fn cancel(&self) {
        self.guards.control.cancel();
        self.guards.lift_all();
    }
}

impl Course for Backup {
    fn todo(&self) -> &Marks {
        &self.todo
    }

    fn check(&self) -> Result<(), JobError> {
        self.guards.control.check()?;
        self.guards.check_patience()
    }

    fn guards(&self) -> Option<&Guards> {
        Some(&self.guards)
    }

    fn control(&self) -> &Control {
        &self.guards.control
    }

    fn has_read(&self, bytes: &Range<u64>) {
        self.guards.lift(bytes);
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        self.cancel();
    }
}
