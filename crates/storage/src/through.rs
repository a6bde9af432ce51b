//! Storages that are another one but for something.

use crate::{
    Counted, Description, Execution, Extent, Handed, Remote, Step, Storage, StorageError, Task, VolumeControl,
};
use engine::{Completion, Io, Token};
use std::ops::Range;

/// A storage that is the one below, but for what it does itself of starting, going on, growing, and telling where there is
/// data.
pub trait Through: Send + Sync {
    /// The one below.
    fn below(&self) -> &dyn Storage;

    /// As [`Storage::start`].
    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.below().start(task, token, io)
    }

    /// As [`Storage::resume`].
    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.below().resume(task, completion, io)
    }

    /// As [`Storage::extents`].
    ///
    /// # Errors
    /// As of that.
    fn extents_through(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        self.below().extents(range, most)
    }

    /// As [`Storage::resize`].
    ///
    /// # Errors
    /// As of that.
    fn resize_through(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        self.below().resize(capacity_bytes)
    }
}

impl<T: Through> Storage for T {
    fn describe(&self) -> Description {
        self.below().describe()
    }

    fn capacity_bytes(&self) -> u64 {
        self.below().capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.start_through(task, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.resume_through(task, completion, io)
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        self.resize_through(capacity_bytes)
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        self.below().hand_over()
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.below().set_execution(execution)
    }

    fn fills(&self) -> bool {
        self.below().fills()
    }

    fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        self.extents_through(range, most)
    }

    fn counted(&self) -> Option<&dyn Counted> {
        self.below().counted()
    }

    fn volume(&self) -> Option<&dyn VolumeControl> {
        self.below().volume()
    }

    fn remote(&self) -> Option<&dyn Remote> {
        self.below().remote()
    }
}
