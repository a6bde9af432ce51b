//! Nothing, quickly: what remains is the cost of everything around a storage.

use crate::error::check_size;
use crate::{
    Description, Execution, Extent, Handed, Kind, Made, OpenError, Opened, Operation, Step, Storage, StorageError,
    Task, buffers,
};
use engine::{Completion, Io, Token};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use utoipa::ToSchema;
use values::{ByteSize, FieldError, IntentLog};

/// Nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NullStorage)]
pub struct NullOptions {
    /// Capacity.
    pub size: ByteSize,
    /// Reads give zeroes. Otherwise they leave a guest's buffers as they are, which costs nothing (QEMU's null-co does the same); over
    /// NBD, where buffers are the daemon's, they give zeroes all the same.
    // Not written where it is off: an earlier program, to which a daemon goes back, does not know it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zeroes: bool,
    /// Intent log over it; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_log: Option<IntentLog>,
}

impl Kind for NullOptions {
    fn check(&self, block_size_bytes: u32) -> Result<(), FieldError> {
        values::check_size(self.size, block_size_bytes)
    }

    fn open(&self) -> Result<Opened, OpenError> {
        let options = self.clone();
        Ok(Opened::new(self, move || Ok(Arc::new(NullStorage::open(&options)?))))
    }

    /// Nothing has nothing to hand over but its size.
    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        let options = NullOptions { size: ByteSize(handed.capacity_bytes), ..self.clone() };
        Ok(Arc::new(NullStorage::open(&options)?))
    }

    fn made(&mut self) -> Option<Made<'_>> {
        Some(Made { size: &mut self.size, intent_log: self.intent_log.as_mut() })
    }
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
        check_size(options.size.0)?;
        Ok(NullStorage { capacity_bytes: AtomicU64::new(options.size.0), zeroes: options.zeroes })
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

    fn fills(&self) -> bool {
        self.zeroes
    }

    fn extents(&self, range: Range<u64>, _most: usize) -> Result<Vec<Extent>, StorageError> {
        Ok(vec![Extent { bytes: range.end.saturating_sub(range.start), data: !self.zeroes }])
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
        Ok(Handed::empty(self.capacity_bytes()))
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        only_inline(execution, "null")
    }
}

/// Checks a size that a storage of `present_bytes` is to change to.
///
/// # Errors
/// It is smaller, or no multiple of 512.
pub fn check_growth(target: &str, present_bytes: u64, asked_bytes: u64) -> Result<(), StorageError> {
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
        let null = NullStorage::open(&NullOptions { size: ByteSize(1024), ..NullOptions::default() }).unwrap();
        null.resize(1024).unwrap();
        null.resize(4096).unwrap();
        assert_eq!(null.capacity_bytes(), 4096);
        assert!(matches!(null.resize(512), Err(StorageError::Shrink { present_bytes: 4096, asked_bytes: 512, .. })));
        assert!(matches!(null.resize(4097), Err(StorageError::Unaligned(4097))));
        for size_bytes in [0, 1, 513, u64::MAX] {
            assert!(NullStorage::open(&NullOptions { size: ByteSize(size_bytes), ..NullOptions::default() }).is_err());
        }
    }

    #[test]
    fn it_runs_on_the_spot_only() {
        let null = NullStorage::open(&NullOptions { size: ByteSize(1024), ..NullOptions::default() }).unwrap();
        null.set_execution(Execution::Inline).unwrap();
        assert!(null.set_execution(Execution::Uring).is_err());
        assert!(null.set_execution(Execution::Pool(2)).is_err());
    }
}
