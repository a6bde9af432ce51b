//! Nothing, quickly: what remains is the cost of everything around a storage.

use crate::error::check_size;
use crate::{Description, Execution, Handed, OpenError, Operation, Step, Storage, StorageError, Task, buffers};
use engine::{Completion, Io, Token};
use std::sync::atomic::{AtomicU64, Ordering};

/// A storage without contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NullOptions {
    /// Size, in bytes: a multiple of 512.
    pub size_bytes: u64,
    /// Reads give zeroes. Otherwise they leave the buffers as they are, which costs nothing (QEMU's null-co does the same).
    pub zeroes: bool,
}

/// See [`NullOptions`].
pub struct NullStorage {
    capacity_bytes: AtomicU64,
    zeroes: bool,
}

impl NullStorage {
    /// Checks the size.
    ///
    /// # Errors
    /// A size out of range.
    pub fn open(options: &NullOptions) -> Result<NullStorage, OpenError> {
        check_size(options.size_bytes)?;
        Ok(NullStorage { capacity_bytes: AtomicU64::new(options.size_bytes), zeroes: options.zeroes })
    }

    /// Nothing has nothing to hand over but its size.
    pub(crate) fn adopt(options: &NullOptions, handed: &Handed) -> Result<NullStorage, OpenError> {
        NullStorage::open(&NullOptions { size_bytes: handed.capacity_bytes, ..options.clone() })
    }
}

impl Storage for NullStorage {
    fn describe(&self) -> Description {
        Description {
            kind: "null",
            target: if self.zeroes { "zeroes" } else { "nothing" }.to_owned(),
            read_only: false,
            direct: false,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 0,
            discard: true,
            discard_granularity_bytes: 512,
            write_zeroes: true,
            execution: Execution::Auto,
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        if let Err(error) = task.check(self.capacity_bytes(), false) {
            return Step::Done(Err(error));
        }
        if self.zeroes && matches!(task.operation, Operation::Read { .. }) {
            // SAFETY: the buffers of a started task are mapped and writable.
            unsafe { buffers::zero(&task.buffers, 0) };
        }
        Step::Done(Ok(()))
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        debug_assert!(false, "nothing is ever pending");
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let grow = |present| check_growth("null", present, capacity_bytes).map(|()| capacity_bytes);
        let mut present = self.capacity_bytes();
        loop {
            let grown = grow(present)?;
            match self.capacity_bytes.compare_exchange(present, grown, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => present = now,
            }
        }
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Ok(Handed { capacity_bytes: self.capacity_bytes(), data: None, lock: None, log: None, memory: None })
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        only_inline(execution, "null")
    }
}

/// A size that a storage of `present_bytes` may change to.
pub(crate) fn check_growth(target: &str, present_bytes: u64, asked_bytes: u64) -> Result<(), StorageError> {
    if !asked_bytes.is_multiple_of(512) {
        return Err(StorageError::Unaligned(asked_bytes));
    }
    if asked_bytes < present_bytes {
        return Err(StorageError::Shrink { target: target.to_owned(), present_bytes, asked_bytes });
    }
    Ok(())
}

/// Storage that never waits has nowhere else to run.
pub(crate) fn only_inline(execution: Execution, kind: &'static str) -> Result<(), StorageError> {
    match execution {
        Execution::Auto | Execution::Inline => Ok(()),
        Execution::Uring | Execution::Pool(_) => Err(StorageError::Execution { execution, kind }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_only() {
        let null = NullStorage::open(&NullOptions { size_bytes: 1024, zeroes: false }).unwrap();
        null.resize(1024).unwrap();
        null.resize(4096).unwrap();
        assert_eq!(null.capacity_bytes(), 4096);
        assert!(matches!(null.resize(512), Err(StorageError::Shrink { present_bytes: 4096, asked_bytes: 512, .. })));
        assert!(matches!(null.resize(4097), Err(StorageError::Unaligned(4097))));
        for size_bytes in [0, 1, 513, u64::MAX] {
            assert!(NullStorage::open(&NullOptions { size_bytes, zeroes: false }).is_err());
        }
    }

    #[test]
    fn it_runs_on_the_spot_only() {
        let null = NullStorage::open(&NullOptions { size_bytes: 1024, zeroes: false }).unwrap();
        null.set_execution(Execution::Inline).unwrap();
        assert!(null.set_execution(Execution::Uring).is_err());
        assert!(null.set_execution(Execution::Pool(2)).is_err());
    }
}
