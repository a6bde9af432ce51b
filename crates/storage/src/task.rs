//! One operation and its progress.

use crate::file::FileProgress;
use crate::logged::LoggedProgress;
use crate::{Action, StorageError, buffers};

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
    pub(crate) fn action(&self) -> Action {
        match self {
            Operation::Read { .. } => Action::Read,
            Operation::Write { .. } => Action::Write,
            Operation::Flush => Action::Flush,
            Operation::Discard { .. } => Action::Discard,
            Operation::WriteZeroes { .. } => Action::WriteZeroes,
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
    pub(crate) progress: Progress,
}

/// What a storage remembers of a task in flight; used by one storage at a time.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) file: FileProgress,
    /// Of a volume; it holds tasks of its own, and is made when it is first needed.
    pub(crate) logged: Option<Box<LoggedProgress>>,
    /// The model has decided that this operation fails.
    pub(crate) doomed: bool,
}

// SAFETY: the buffers are plain addresses. They lead into memory that the task's owner keeps mapped while it is in flight, on
// whatever thread that is.
unsafe impl Send for Task {}

impl Default for Task {
    fn default() -> Task {
        Task::new()
    }
}

impl Task {
    /// An idle task without buffers.
    pub fn new() -> Task {
        Task { operation: Operation::Flush, buffers: Vec::new(), progress: Progress::default() }
    }

    /// Sets the operation and forgets the last one's progress. Buffers are left as they are.
    pub fn begin(&mut self, operation: Operation) {
        self.operation = operation;
        self.progress.doomed = false;
        self.progress.file.reset();
    }

    /// For a task that has ended, until it is needed again: gives back what lists of buffers have beyond a usual length. A guest may
    /// send a long one from each of its thousands of slots. The buffers are forgotten.
    pub fn rest(&mut self) {
        buffers::shorten(&mut self.buffers);
        self.progress.file.rest();
        if let Some(logged) = &mut self.progress.logged {
            logged.rest();
        }
    }

    /// Bytes in the buffers.
    pub fn bytes(&self) -> u64 {
        buffers::total(&self.buffers)
    }

    /// First byte and length of what the operation touches; zeroes for a flush.
    pub(crate) fn extent(&self) -> (u64, u64) {
        match self.operation {
            Operation::Read { offset } | Operation::Write { offset, .. } => (offset, self.bytes()),
            Operation::Flush => (0, 0),
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => (offset, len),
        }
    }

    /// Refuses what does not lie inside `capacity_bytes` and changes of a read-only storage. A guest's request was checked when
    /// it was decoded, against a capacity that may have been another.
    pub(crate) fn check(&self, capacity_bytes: u64, read_only: bool) -> Result<(u64, u64), StorageError> {
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
