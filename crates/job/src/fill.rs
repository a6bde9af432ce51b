//! What an image lacks, copied into it while guests use it.

use crate::control::{Control, Find};
use crate::copying::{Copying, Course};
use crate::error::check_target;
use crate::marks::Marks;
use crate::{JobError, Progress};
use std::sync::Arc;
use storage::copy::Copied;
use storage::kit::Through;
use storage::{Storage, StorageError};

/// Copies parts of a disk into the image that it is, which takes of that what it does not have itself. Guests go on meanwhile: the
/// target decides who came first.
pub struct Fill {
    from: Arc<dyn Storage>,
    to: Arc<dyn Storage>,
    todo: Marks,
    control: Control,
}

impl Fill {
    /// Of `from`, into `to`, where zeroes need not be written.
    ///
    /// # Errors
    /// `to` is read-only or too small.
    pub fn new(from: Arc<dyn Storage>, to: Arc<dyn Storage>) -> Result<Fill, StorageError> {
        check_target(&*from, &*to)?;
        let todo = Marks::new(from.capacity_bytes(), false);
        // How much there is to do shows when it is looked for.
        let control = Control::new(0);
        Ok(Fill { from, to, todo, control })
    }

    /// What guests use meanwhile: the disk, by another storage, so that it can be told who uses it.
    pub fn filter(&self) -> Arc<dyn Storage> {
        Arc::new(Passing(self.from.clone()))
    }

    /// Copies the parts that `find` shows, until all of it is in the target and stable there. Once: a second call is as good as cancelled.
    ///
    /// # Errors
    /// A storage's, those of `find`, the disk was resized, or the job was cancelled. What was copied stays.
    pub fn run(&self, find: &mut Find<'_>) -> Result<Copied, JobError> {
        self.control.begin()?;
        self.control.find(&self.todo, find)?;
        let mut copying = Copying::new(&*self.from, &*self.to, true, self)?;
        copying.pass()?;
        copying.flush()?;
        self.check()?;
        Ok(copying.copied())
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.control.progress(0)
    }

    /// Limits the job to so many bytes a second from now on; 0 stops it.
    pub fn set_limit(&self, bytes_per_second: Option<u64>) {
        self.control.set_limit(bytes_per_second);
    }

    /// Ends the job. [`run`](Self::run) returns when what it has under way has ended.
    pub fn cancel(&self) {
        self.control.cancel();
    }
}

impl Course for Fill {
    fn todo(&self) -> &Marks {
        &self.todo
    }

    /// What a disk has grown by was not looked for.
    fn check(&self) -> Result<(), JobError> {
        self.control.check()?;
        if self.from.capacity_bytes() == self.todo.size_bytes() { Ok(()) } else { Err(JobError::Resized) }
    }

    fn control(&self) -> &Control {
        &self.control
    }
}

/// See [`Fill::filter`].
struct Passing(Arc<dyn Storage>);

impl Through for Passing {
    fn below(&self) -> &dyn Storage {
        &*self.0
    }
}
