//! One operation and its progress.

use crate::{Action, StorageError, buffers};
use std::any::Any;

/// What is asked of a storage. Offsets and lengths are bytes, multiples of 512, and lie inside the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffers from `offset` on.
    Read {
        /// First byte.
        offset: u64,
    },
    /// Store the buffers from `offset` on.
    Write {
        /// First byte.
        offset: u64,
        /// Complete only once the data is on stable storage.
        durable: bool,
    },
    /// Bring every completed write to stable storage.
    Flush,
    /// Contents of the range no longer matter.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The range reads as zeroes from now on.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Space may be given back.
        unmap: bool,
        /// Complete only once the zeroes are on stable storage.
        durable: bool,
    },
}

impl Operation {
    /// What it is, for an error.
    pub fn action(&self) -> Action {
        match self {
            Operation::Read { .. } => Action::Read,
            Operation::Write { .. } => Action::Write,
            Operation::Flush => Action::Flush,
            Operation::Discard { .. } => Action::Discard,
            Operation::WriteZeroes { .. } => Action::WriteZeroes,
        }
    }

    /// Whether its success says that something is on stable storage.
    pub fn is_durable(&self) -> bool {
        match *self {
            Operation::Flush => true,
            Operation::Write { durable, .. } | Operation::WriteZeroes { durable, .. } => durable,
            Operation::Read { .. } | Operation::Discard { .. } => false,
        }
    }
}

/// How far a call to a storage came.
#[derive(Debug)]
pub enum Step {
    /// The task has ended; it belongs to its owner again.
    Done(Result<(), StorageError>),
    /// Its token will complete; call [`Storage::resume`](crate::Storage::resume) then.
    Pending,
}

/// One operation with its buffers. It is made once for a slot of a ring and used again for every request there.
pub struct Task {
    /// What to do.
    pub operation: Operation,
    /// Where the data of reads goes and that of writes comes from. They belong to the caller, who fills them before
    /// [`Storage::start`](crate::Storage::start); other operations ignore them.
    pub buffers: Vec<libc::iovec>,
    /// It is right only where its last operation was done: nobody else can have written there since. Storage that is found again elsewhere, or
    /// as somebody else has left it, fails it.
    pub follows: bool,
    /// The storage's own.
    pub state: State,
}

/// What a storage remembers of a task, and nobody else looks into. Made with the task's first request that needs it and kept for
/// those after it, so that they allocate nothing.
#[derive(Default)]
pub struct State(Option<Box<dyn Progress>>);

/// What can be a [`State`].
pub trait Progress: Any + Send {
    /// As [`Task::rest`].
    fn rest(&mut self) {}

    /// As [`Task::lost`].
    fn lost(&mut self) {}
}

impl State {
    /// As a storage has left it, or new: what another storage has left is forgotten.
    pub fn of<T: Progress + Default>(&mut self) -> &mut T {
        if self.get::<T>().is_none() {
            self.0 = Some(Box::<T>::default());
        }
        self.get().unwrap_or_else(|| unreachable!("it was made just now"))
    }

    /// As a storage has left it; `None` where it has left nothing, or another storage has left something else.
    pub fn get<T: Progress>(&mut self) -> Option<&mut T> {
        let progress: &mut dyn Any = self.0.as_deref_mut()?;
        progress.downcast_mut()
    }
}

// SAFETY: the buffers are plain addresses. They lead into memory that the task's owner keeps mapped while it is in flight, on
// whatever thread that is. All else is Send by itself.
unsafe impl Send for Task {}

impl Default for Task {
    fn default() -> Task {
        Task::new()
    }
}

impl Task {
    /// An idle task without buffers.
    pub fn new() -> Task {
        Task { operation: Operation::Flush, buffers: Vec::new(), follows: false, state: State::default() }
    }

    /// Sets the operation. Buffers are left as they are.
    pub fn begin(&mut self, operation: Operation) {
        self.operation = operation;
        self.follows = false;
    }

    /// For a task that has ended, until it is needed again: gives back what lists of buffers have beyond a usual length. A guest may
    /// send a long one from each of its thousands of slots. The buffers are forgotten.
    pub fn rest(&mut self) {
        buffers::shorten(&mut self.buffers);
        if let Some(progress) = &mut self.state.0 {
            progress.rest();
        }
    }

    /// Nobody goes on with this task, which is in flight: it stops waiting for other tasks, and is dropped when the kernel has no
    /// part of it any more.
    pub fn lost(&mut self) {
        if let Some(progress) = &mut self.state.0 {
            progress.lost();
        }
    }

    /// Bytes in the buffers.
    pub fn bytes(&self) -> u64 {
        buffers::total(&self.buffers)
    }

    /// First byte and length of what the operation touches; zeroes for a flush.
    pub fn extent(&self) -> (u64, u64) {
        match self.operation {
            Operation::Read { offset } | Operation::Write { offset, .. } => (offset, self.bytes()),
            Operation::Flush => (0, 0),
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => (offset, len),
        }
    }

    /// Refuses what does not lie inside `capacity_bytes` and changes of a read-only storage. A guest's request was checked when
    /// it was decoded, against a capacity that may have been another.
    ///
    /// # Errors
    /// What it does not do.
    pub fn check(&self, capacity_bytes: u64, read_only: bool) -> Result<(u64, u64), StorageError> {
        let action = self.operation.action();
        if read_only && !matches!(action, Action::Read | Action::Flush) {
            return Err(StorageError::ReadOnly(action));
        }
        let (offset, len) = self.extent();
        let inside = offset.checked_add(len).is_some_and(|end| end <= capacity_bytes);
        if !inside || !offset.is_multiple_of(512) || !len.is_multiple_of(512) {
            return Err(StorageError::OutOfRange(action));
        }
        Ok((offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::iovec;

    #[test]
    fn a_storage_finds_what_it_left_and_nothing_of_others() {
        #[derive(Default)]
        struct One(u32);
        #[derive(Default)]
        struct Other(u32);
        impl Progress for One {}
        impl Progress for Other {}
        let mut state = State::default();
        assert!(state.get::<One>().is_none());
        state.of::<One>().0 = 7;
        assert_eq!(state.of::<One>().0, 7);
        assert_eq!(state.get::<One>().map(|one| one.0), Some(7));
        assert!(state.get::<Other>().is_none(), "a look makes nothing");
        assert_eq!(state.of::<One>().0, 7);
        assert_eq!(state.of::<Other>().0, 0);
        assert_eq!(state.of::<One>().0, 0);
    }

    #[test]
    fn a_long_list_of_buffers_does_not_stay() {
        let buffer = iovec { iov_base: std::ptr::null_mut(), iov_len: 512 };
        let mut task = Task::new();
        task.buffers = vec![buffer; 4];
        let place = task.buffers.as_ptr();
        task.rest();
        assert_eq!((task.buffers.len(), task.buffers.as_ptr()), (0, place), "a short one stays where it is");
        task.buffers = vec![buffer; 65_536];
        task.rest();
        assert!(task.buffers.is_empty() && task.buffers.capacity() <= 1024);
    }
}
