//! Changes of what an export serves: each kind has its own.

use super::{Export, Served};
use crate::ExportError;
use crate::disk::Disk;
use engine::Execution;
use std::sync::Arc;
use storage::VolumeControl;
use values::SyncMode;

impl Export {
    /// Changes where the system calls behind it run.
    ///
    /// # Errors
    /// An execution that the storage does not have, a pool that cannot be started, or a worker that hangs.
    pub fn set_execution(&self, execution: Execution) -> Result<(), ExportError> {
        self.shared.rings.take_changes()?;
        match &self.served {
            Served::Disk(disk) => Ok(disk.storage().set_execution(execution)?),
            Served::Directory(directory) => directory.set_execution(&self.shared.rings, execution),
            Served::P9(p9) => p9.set_execution(&self.shared.rings, execution),
        }
    }

    /// Changes when writes to a volume are on stable storage; requests that are under way keep to what was.
    ///
    /// # Errors
    /// There is no intent log.
    pub fn set_sync(&self, sync: SyncMode) -> Result<(), ExportError> {
        self.with_volume(|volume| {
            volume.set_sync(sync);
            Ok(())
        })
    }

    /// Commits what was written to a volume so far, writes it back, and returns when it is there.
    ///
    /// # Errors
    /// There is no intent log, or the storage refuses it.
    pub fn sync(&self) -> Result<(), ExportError> {
        self.with_volume(|volume| volume.sync_now().map_err(ExportError::Sync))
    }

    pub(super) fn served_disk(&self) -> Result<&Arc<Disk>, ExportError> {
        match &self.served {
            Served::Disk(disk) => Ok(disk),
            Served::Directory(_) | Served::P9(_) => Err(ExportError::NoCapacity),
        }
    }

    fn with_volume(&self, ask: impl FnOnce(&dyn VolumeControl) -> Result<(), ExportError>) -> Result<(), ExportError> {
        match &self.served {
            Served::Disk(disk) => ask(disk.storage().volume().ok_or(ExportError::NoIntentLog)?),
            Served::Directory(_) | Served::P9(_) => Err(ExportError::NoIntentLog),
        }
    }

    /// Whether the storage behind a disk may come to have this capacity.
    ///
    /// # Errors
    /// A capacity that is not a multiple of the block size; a directory; a worker that hangs.
    pub fn check_capacity(&self, capacity_bytes: u64) -> Result<(), ExportError> {
        self.shared.rings.take_changes()?;
        self.served_disk()?.check_capacity(capacity_bytes)
    }

    /// The storage behind a disk has another capacity than before: tells the rings, then the guest.
    ///
    /// # Errors
    /// A capacity that no disk can have; a directory.
    pub fn follow_capacity(&self) -> Result<(), ExportError> {
        self.served_disk()?.follow_capacity(&self.shared.rings)?;
        self.shared.tell_config();
        Ok(())
    }
}
