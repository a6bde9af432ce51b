//! A LUKS container that is open: encryption over another storage.
//!
//! A request is done in pieces. Of a read the lower storage fills buffers of ours, which are decrypted in place and copied to the guest's;
//! a write is copied into ours first and encrypted there. So a guest's memory never has ciphertext, nor does a guest that changes its
//! buffers meanwhile change what was encrypted. Workers share the keys and the buffers, and take no lock while there are buffers.
//!
//! | file | concern |
//! |---|---|
//! | `open` | from a storage and a passphrase to a disk |
//! | `handover` | the volume key, for the program that comes next |
//! | `machine`, `progress` | a task's stages, what it remembers |
//! | `pool`, `sync` | the buffers, of which there is a bounded number; the atomics they are handed out with |
//! | `blocks` | blocking calls, for headers |

mod blocks;
mod handover;
mod machine;
#[cfg(test)]
mod models;
mod open;
mod pool;
mod progress;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use blocks::Blocks;
pub use open::{adopt, open};

use crate::header::Data;
use crate::slot::VolumeKey;
use crate::xts::Xts;
use engine::{Completion, Io, Token};
use pool::Pool;
use std::sync::Arc;
use storage::{Counted, Description, Execution, Handed, Step, Storage, StorageError, Task, VolumeControl};

/// See the module.
pub struct LuksStorage {
    lower: Arc<dyn Storage>,
    data: Data,
    cipher: Xts,
    /// For the next program.
    key: VolumeKey,
    allow_discards: bool,
    read_only: bool,
    pool: Arc<Pool>,
}

impl Storage for LuksStorage {
    fn describe(&self) -> Description {
        let lower = self.lower.describe();
        let sector = self.data.sector_bytes;
        Description {
            kind: "luks",
            target: format!("{} ({})", lower.target, lower.kind),
            block_size_bytes: lower.block_size_bytes.max(sector),
            physical_block_bytes: lower.physical_block_bytes.max(sector),
            discard: self.allow_discards && lower.discard,
            discard_granularity_bytes: lower.discard_granularity_bytes.max(sector),
            write_zeroes: !self.read_only,
            ..lower
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.data.within(self.lower.capacity_bytes())
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.begin(task, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.proceed(task, completion, io)
    }

    /// Grows with the storage below. What is new reads as noise until it is written.
    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let lower = self.lower.describe();
        let (present_bytes, target) = (self.capacity_bytes(), lower.target);
        let cannot = |reason: String| StorageError::Grow { target, asked_bytes: capacity_bytes, reason };
        if capacity_bytes < present_bytes {
            // What shrinks an image would cut off as many bytes more as the container begins with.
            return Err(cannot(format!("it has {present_bytes}, and an encrypted disk does not shrink")));
        }
        if !capacity_bytes.is_multiple_of(512) {
            return Err(StorageError::Unaligned(capacity_bytes));
        }
        if !capacity_bytes.is_multiple_of(u64::from(self.data.sector_bytes)) {
            return Err(cannot(format!("its sectors have {} bytes: use a multiple of that", self.data.sector_bytes)));
        }
        if capacity_bytes == present_bytes {
            return Ok(());
        }
        if let Some(bytes) = self.data.bytes {
            return Err(cannot(format!("its LUKS2 header says that its data have {bytes} bytes")));
        }
        let Some(lower_bytes) = self.data.offset.checked_add(capacity_bytes) else {
            return Err(cannot("that is more than there can be".to_owned()));
        };
        if lower_bytes <= self.lower.capacity_bytes() {
            return Ok(());
        }
        self.lower.resize(lower_bytes)
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        let lower = self.lower.hand_over()?;
        handover::give(lower, self.data, &self.key)
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.lower.set_execution(execution)
    }

    fn volume(&self) -> Option<&dyn VolumeControl> {
        self.lower.volume()
    }

    fn counted(&self) -> Option<&dyn Counted> {
        self.lower.counted()
    }
}
