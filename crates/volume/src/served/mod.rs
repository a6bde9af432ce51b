//! A volume that is open: an intent log and a write-back cache over another storage.
//!
//! A write lands in the cache ([`crate::cache`]) and is readable at once. A flush, or a write that has to be stable, *commits*:
//! everything that is in the cache and not in the log goes there as one sequential write, which all who wait share. A thread
//! writes back to the lower storage what is dirty, in large sorted runs, and lets the log begin behind it.
//!
//! | file | concern |
//! |---|---|
//! | `machine` | a task's stages |
//! | `read`, `in_parts`, `write`, `sync` | what tasks do: reads and discards; large reads; writes and zeroes; flushes and durable writes |
//! | `commit` | who leads the next batch, which batches are in flight, how they land; where a checkpoint cuts the log |
//! | `overlay`, `large`, `extents` | what the cache has of a range; a large read; where the disk has data |
//! | `batch`, `progress`, `cursor`, `reply`, `line`, `passes` | a log write; a task's memory; its place in buffers; what tasks tell each other; writers without a slot; discards behind write-back |
//! | `shared` | what all of these share |
//! | `writeback`, `checkpoint` | the write-back thread and its superblocks |
//! | `apart`, `pair` | a log in front of a disk that is a storage of its own, and whether the two belong together |
//! | `open`, `ephemeral`, `epoch`, `memory`, `boot`, `blocking`, `tools`, `error` | opening, the memory that outlives the process and how long, blocking access, the operator's tools |
//! | `options`, `figures` | what may be chosen, what is counted |
//!
//! Only the write-back thread writes data to the lower storage, discards excepted. So no two writes of a block are ever under
//! way there together.

mod apart;
mod batch;
mod blocking;
mod boot;
mod checkpoint;
mod commit;
mod cursor;
mod ephemeral;
mod epoch;
mod error;
mod extents;
mod figures;
mod foresee;
mod in_parts;
mod large;
mod left;
mod line;
mod machine;
mod memory;
mod open;
mod options;
mod overlay;
mod pair;
mod passes;
mod poke;
mod progress;
mod read;
mod reply;
mod shared;
mod sync;
pub mod tools;
mod write;
mod writeback;

pub use apart::{adopt_apart, needs_of_log, open_apart};
pub use ephemeral::{adopt_made, open_made};
pub use error::VolumeError;
pub use foresee::{Foreseen, foresee_log};
pub use memory::{MEMORY_DIRECTORY, MEMORY_DIRECTORY_OF_OTHERS, default_memory_path};
pub use open::VolumeOptions;
pub use options::{Barriers, LoggedOptions};
pub use pair::PairError;

use crate::BLOCK_BYTES;
use engine::{Completion, Io, Token};
use shared::Shared;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::{
    Action, Counted, Description, Execution, Extent, GoBeforeError, Handed, InFront, LogMark, Step, Storage,
    StorageError, Task, VolumeControl, VolumeFigures, VolumeStatus,
};
use values::SyncMode;
use writeback::WriteBack;

/// See the module. Dropped, it writes everything back and closes the volume.
pub struct LoggedStorage {
    shared: Arc<Shared>,
    write_back: WriteBack,
    /// Path, or a few words.
    target: String,
    /// Of a log with a storage of its own.
    log_path: Option<String>,
    /// What a disk that is apart says of this opening.
    mark: LogMark,
}

impl LoggedStorage {
    /// What it has done since it was opened, and what it holds now.
    pub fn figures(&self) -> VolumeFigures {
        let shared = &self.shared;
        let counters = &shared.figures;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        VolumeFigures {
            commits: read(&counters.commits),
            committed_requests: read(&counters.committed_requests),
            committed_blocks: read(&counters.committed_blocks),
            committed_bytes: read(&counters.committed_bytes),
            flushes_for_nothing: read(&counters.flushes_for_nothing),
            company_wait: counters.company_wait.read(),
            commit_latency: counters.commit_latency.read(),
            flush_latency: counters.flush_latency.read(),
            log_used_bytes: shared.committer.log_used_bytes(),
            log_bytes: shared.layout.log_bytes,
            dirty_bytes: shared.dirty_bytes(),
            dirty_bytes_max: shared.cache_bytes(),
            written_back_bytes: read(&counters.written_back_bytes),
            write_back_errors: read(&counters.write_back_errors),
            log_errors: read(&counters.log_errors),
            sweeps: read(&counters.sweeps),
            parked_writers: read(&counters.parked_writers),
            parked_writers_now: shared.line.len() as u64,
            parked_commits: read(&counters.parked_commits),
        }
    }
}

impl VolumeControl for LoggedStorage {
    fn status(&self) -> VolumeStatus {
        VolumeStatus {
            sync: self.shared.sync_mode(),
            log_path: self.log_path.clone(),
            failure: self.shared.death().map(str::to_owned),
            figures: self.figures(),
        }
    }

    fn opening(&self) -> u64 {
        self.mark.epoch
    }

    fn set_sync(&self, mode: SyncMode) {
        self.shared.set_sync_mode(mode);
    }

    fn sync_now(&self) -> Result<(), StorageError> {
        self.write_back.sync()
    }

    fn sync_within(&self, patience: Duration) -> Result<(), StorageError> {
        self.write_back.sync_within(patience)
    }

    fn close(&self) -> Result<(), StorageError> {
        self.write_back
            .close()
            .map_err(|error| StorageError::Io { action: Action::Write, source: io::Error::other(error) })
    }
}

impl InFront for LoggedStorage {
    fn disk(&self) -> Arc<dyn Storage> {
        self.shared.lower.clone()
    }

    fn leave(&self) -> Result<(), StorageError> {
        // Behind this the log would have to stay where it is.
        self.check_moves()?;
        self.write_back.leave()?;
        // After an error nobody knows whether it is marked: it would go on with what only the log has.
        self.marked()?.set_log_mark(None).map_err(|error| {
            let reason = format!("the disk has all that the log had, and cannot say so: {error}");
            let _ = self.come_back();
            StorageError::Io { action: Action::Write, source: std::io::Error::other(reason) }
        })
    }

    fn come_back(&self) -> Result<(), StorageError> {
        let marked = self.marked().and_then(|disk| disk.set_log_mark(Some(self.mark)));
        marked.inspect_err(|error| self.shared.fail(&format!("its disk cannot be marked again: {error}")))
    }

    fn go_before(&self, disk: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, GoBeforeError> {
        match self.moved_at_last(&disk) {
            Ok(moved) => Ok(Arc::new(moved)),
            Err(error) => Err(self.go_without(&disk, error.into())),
        }
    }
}

/// What a volume over such a storage is.
fn described(lower: &Description, target: String) -> Description {
    Description {
        kind: "volume",
        target,
        read_only: false,
        direct: lower.direct,
        block_size_bytes: 512,
        physical_block_bytes: BLOCK_BYTES as u32,
        optimal_io_bytes: lower.optimal_io_bytes,
        discard: lower.discard,
        discard_granularity_bytes: lower.discard_granularity_bytes.max(BLOCK_BYTES as u32),
        write_zeroes: true,
        execution: lower.execution,
        execution_chosen: lower.execution_chosen,
    }
}

impl Storage for LoggedStorage {
    fn describe(&self) -> Description {
        described(&self.shared.lower.describe(), self.target.clone())
    }

    fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.begin(task, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.proceed(task, completion, io)
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        self.write_back.resize(capacity_bytes)
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        self.write_back.hand_over()
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.shared.lower.set_execution(execution)?;
        if !Arc::ptr_eq(&self.shared.lower, &self.shared.log) {
            // A log of another kind may not have it; it goes on as it is.
            let _ = self.shared.log.set_execution(execution);
        }
        Ok(())
    }

    fn fills(&self) -> bool {
        self.shared.lower.fills()
    }

    fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        self.shared.extents(range, most)
    }

    fn counted(&self) -> Option<&dyn Counted> {
        self.shared.lower.counted()
    }

    fn volume(&self) -> Option<&dyn VolumeControl> {
        Some(self)
    }

    fn in_front(&self) -> Option<&dyn InFront> {
        self.shared.is_apart().then_some(self as &dyn InFront)
    }
}
