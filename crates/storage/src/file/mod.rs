//! Regular files and block devices.
//!
//! | file | concern |
//! |---|---|
//! | `open` | from a path to an open, locked, measured image |
//! | `looks` | a warning for what does not look raw |
//! | `measure` | sizes, alignments and abilities, as the kernel tells them |
//! | `machine` | the stages of a task: what comes after which completion |
//! | `issue` | one system call, on the spot, by io_uring or on a pool |
//! | `gate` | who may touch which blocks while a partial block is rewritten |
//! | `holes` | where a file has data |
//! | `space` | discard and write zeroes by fallocate and ioctl |

mod gate;
mod holes;
mod issue;
mod looks;
mod machine;
mod measure;
mod open;
mod space;
#[cfg(test)]
mod tests;

pub use looks::begins_like;
pub use measure::file_system_memory;
pub(crate) use measure::huge_page_file;
use open::Hold;
pub(crate) use open::open_to_look;
pub use open::{FileOptions, check_access, check_kind, check_makes_files, check_writable, forget_cached};

use crate::{Counted, Description, Execution, Extent, Handed, Room, Step, Storage, StorageError, Task};
use engine::{Completion, Io, SharedFile, Token};
use gate::Gate;
use holes::Known;
use issue::Executor;
use measure::Measures;
use space::Abilities;
use std::any::Any;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See [`FileOptions`].
///
/// An image whose size is not a multiple of 512 is served up to the last whole sector. With `direct`, a write to the last
/// block of a file whose size is not a multiple of the alignment of O_DIRECT extends the file to that multiple.
pub struct FileStorage {
    path: PathBuf,
    file: Arc<SharedFile>,
    /// None of an image that an older program has opened without locks.
    hold: Option<Hold>,
    measures: Measures,
    read_only: bool,
    direct: bool,
    capacity_bytes: AtomicU64,
    executor: Executor,
    gate: Gate,
    abilities: Arc<Abilities>,
    known: Known,
    /// Held while the size changes.
    resizing: Mutex<()>,
}

impl Storage for FileStorage {
    fn describe(&self) -> Description {
        let about = &self.measures;
        let (execution, execution_chosen) = self.executor.get();
        Description {
            kind: if about.device { "device" } else { "file" },
            target: self.path.display().to_string(),
            read_only: self.read_only,
            direct: self.direct,
            block_size_bytes: about.logical_block_bytes,
            physical_block_bytes: about.physical_block_bytes,
            optimal_io_bytes: about.optimal_io_bytes,
            discard: self.abilities.discard() && !self.read_only,
            discard_granularity_bytes: about.discard_granularity_bytes,
            write_zeroes: !self.read_only,
            execution,
            execution_chosen,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.begin(task, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.proceed(task, completion, io)
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.path.display().to_string();
        crate::null::check_growth(&target, self.capacity_bytes(), capacity_bytes)?;
        let cannot =
            |reason: String| StorageError::Grow { target: target.clone(), asked_bytes: capacity_bytes, reason };
        let size_bytes = measure::size_bytes(&*self.file).map_err(|error| cannot(error.to_string()))?;
        if size_bytes < capacity_bytes {
            if self.measures.device {
                return Err(cannot(format!("the device has {size_bytes} bytes: grow the device first")));
            }
            if self.read_only {
                return Err(cannot(format!("it is exported read-only and the file has {size_bytes} bytes")));
            }
            rustix::fs::ftruncate(&*self.file, capacity_bytes).map_err(|error| cannot(error.to_string()))?;
        }
        self.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Ok(Handed::new(self.capacity_bytes(), self.file.descriptor(), self.hold.as_ref().map(|hold| hold.fd().clone())))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.executor.set(execution)
    }

    fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        Ok(holes::extents(&*self.file, &self.known, range, most))
    }

    fn counted(&self) -> Option<&dyn Counted> {
        (!self.measures.device).then_some(self as &dyn Counted)
    }
}

impl Counted for FileStorage {
    fn room(&self) -> Result<Room, StorageError> {
        Room::of_file(&*self.file)
    }
}

impl Drop for FileStorage {
    fn drop(&mut self) {
        // Every operation has ended: whoever has one under way keeps the storage. Where there are no locks there is no mark.
        let _ = crate::late::unmark(&*self.file);
    }
}
