//! Memory: a request is a copy between two mappings, without a system call.
//!
//! The memory is anonymous (4 KiB or huge pages of a file without a name, so that another program can go on with the
//! contents), or a file on tmpfs, ramfs or hugetlbfs that is mapped. A file's space is
//! allocated in full when it is opened: a write into a hole of a full file system would not be an error but a SIGBUS, the
//! end of the process. For the same reason nothing is given back from files and huge pages, and nobody else may cut the file
//! short or punch holes into it while it is served; image locks keep QEMU and this program from doing so.
//!
//! Contents of anonymous memory end with the export. A flush has nothing to do: there is nothing more stable than the memory.

mod foresee;
mod map;
mod open;
mod reservation;

pub(crate) use map::{Backing, Map};
pub use open::MemoryOptions;

use crate::buffers::Lent;
use crate::jobs::Jobs;
use crate::null::{check_growth, only_inline};
use crate::{Counted, Description, Execution, Handed, Operation, Room, Step, Storage, StorageError, Task, buffers};
use engine::{Completion, Io, Token};
use libc::iovec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See [`MemoryOptions`].
pub struct MemoryStorage {
    map: Arc<Map>,
    lock: Option<crate::lock::ImageLock>,
    target: String,
    read_only: bool,
    capacity_bytes: AtomicU64,
    /// Held while the size changes.
    resizing: Mutex<()>,
    /// Long copies.
    jobs: Jobs,
}

/// Carries out an operation on mapped contents.
///
/// # Safety
/// The operation lies inside what is mapped (for writing, if it writes), and its buffers are mapped.
pub(crate) unsafe fn apply(map: &Map, operation: Operation, list: &[iovec]) {
    // SAFETY: promised by our caller.
    unsafe {
        match operation {
            Operation::Read { offset } => {
                buffers::copy_in(list, 0, map.as_ptr().add(offset as usize), buffers::total(list));
            }
            Operation::Write { offset, .. } => {
                buffers::copy_out(list, 0, map.as_ptr().add(offset as usize), buffers::total(list));
            }
            Operation::Flush => {}
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => apply_range(map, operation),
        }
    }
}

/// # Safety
/// As for [`apply`].
unsafe fn apply_range(map: &Map, operation: Operation) {
    // SAFETY: promised by our caller.
    unsafe {
        match operation {
            Operation::Discard { offset, len } if gives_back(map) => map.unmap(offset, len),
            Operation::WriteZeroes { offset, len, unmap: true, .. } => map.unmap(offset, len),
            Operation::WriteZeroes { offset, len, unmap: false, .. } => map.zero(offset, len),
            // A discard is advice, and there is nothing to give back.
            _ => {}
        }
    }
}

fn gives_back(map: &Map) -> bool {
    matches!(map.backing(), Backing::Anonymous { .. })
}

impl Storage for MemoryStorage {
    fn describe(&self) -> Description {
        Description {
            kind: "memory",
            target: self.target.clone(),
            read_only: self.read_only,
            direct: false,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 0,
            discard: gives_back(&self.map) && !self.read_only,
            discard_granularity_bytes: 4096,
            write_zeroes: !self.read_only,
            execution: Execution::Auto,
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if let Err(error) = task.check(self.capacity_bytes(), self.read_only) {
            return Step::Done(Err(error));
        }
        let (_, len) = task.extent();
        if len <= buffers::ON_THE_SPOT_MAX {
            // SAFETY: checked against the capacity, and everything below it is mapped, for writing unless read-only.
            unsafe { apply(&self.map, task.operation, &task.buffers) };
            return Step::Done(Ok(()));
        }
        let (map, operation, list) = (self.map.clone(), task.operation, Lent::new(&task.buffers));
        self.jobs.run(io, token, move || {
            // SAFETY: as above; the map is held by the job, and the task waits for it.
            unsafe { apply(&map, operation, list.list()) };
            0
        });
        Step::Pending
    }

    fn resume(&self, _task: &mut Task, completion: Completion, _io: &mut Io<'_>) -> Step {
        debug_assert_eq!(completion.result, 0, "copying and zeroing memory does not fail");
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let _one_at_a_time = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.capacity_bytes();
        check_growth(&self.target, present, capacity_bytes)?;
        let cannot = |reason| StorageError::Grow { target: self.target.clone(), asked_bytes: capacity_bytes, reason };
        if capacity_bytes > self.map.room_bytes() {
            let room = self.map.room_bytes();
            return Err(cannot(format!("address space for {room} bytes was reserved at start: export it again")));
        }
        if let Backing::File { fd, read_only } = self.map.backing() {
            if *read_only {
                return Err(cannot("it is exported read-only".to_owned()));
            }
            open::allocate(fd, open::file_unit(fd, &self.map), capacity_bytes)
                .map_err(|errno| cannot(format!("cannot allocate its space: {errno}")))?;
        }
        self.map.grow(present, capacity_bytes).map_err(|errno| cannot(format!("cannot map it: {errno}")))?;
        // Release: who sees the capacity sees the mapping.
        self.capacity_bytes.store(capacity_bytes, Ordering::Release);
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Ok(Handed::new(
            self.capacity_bytes(),
            self.map.backing().descriptor(),
            self.lock.as_ref().map(|lock| lock.fd().clone()),
        ))
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        only_inline(execution, "memory")
    }

    fn counted(&self) -> Option<&dyn Counted> {
        gives_back(&self.map).then_some(self as &dyn Counted)
    }
}

impl Counted for MemoryStorage {
    fn room(&self) -> Result<Room, StorageError> {
        Room::of_file(self.map.backing())
    }
}
