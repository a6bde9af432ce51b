//! What an image lacks, written into it while guests use it.
//!
//! A cluster that the image does not have itself is claimed like that of an allocating write, and looked at again: whoever comes first, a
//! guest or this, has it, and what a guest has written, or discarded, stays. What is read as nothing of the image's own never changes, so
//! it does not matter when it was read.

use super::Qcow2Storage;
use super::progress::Writes;
use engine::{Io, Token};
use std::sync::Arc;
use storage::kit::Through;
use storage::{Operation, Step, Storage, StorageError, Task};

/// An image to which nothing can be done but to fill its gaps.
pub(crate) struct Populated(Arc<dyn Storage>);

impl Populated {
    /// `None`: it is no image.
    pub(crate) fn of(image: Arc<dyn Storage>) -> Option<Populated> {
        Qcow2Storage::of(&image)?;
        Some(Populated(image))
    }
}

impl Through for Populated {
    fn below(&self) -> &dyn Storage {
        &*self.0
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let action = task.operation.action();
        match (Qcow2Storage::of(&self.0), task.operation) {
            (Some(image), Operation::Read { .. } | Operation::Write { .. } | Operation::Flush) => {
                image.begin(task, token, io, Writes::Gaps)
            }
            _ => Step::Done(Err(StorageError::errno(action, libc::EOPNOTSUPP))),
        }
    }
}
