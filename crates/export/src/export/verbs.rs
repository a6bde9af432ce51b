//! Changes of what an export serves: each kind has its own.

use super::{Export, Served};
use crate::ExportError;
use crate::disk::Disk;
use crate::scsi::Scsi;
use crate::{UnitOptions, UnitStatus, UnitWatch};
use engine::Execution;
use std::collections::BTreeMap;
use std::sync::Arc;
use storage::VolumeControl;
use values::{Lun, SyncMode};

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
            Served::Scsi(scsi) => scsi.storages().iter().try_for_each(|storage| Ok(storage.set_execution(execution)?)),
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
            Served::Scsi(_) => Err(ExportError::ManyCapacities),
            Served::Directory(_) | Served::P9(_) => Err(ExportError::NoCapacity),
        }
    }

    fn served_scsi(&self) -> Result<&Arc<Scsi>, ExportError> {
        match &self.served {
            Served::Scsi(scsi) => Ok(scsi),
            _ => Err(ExportError::NoUnits),
        }
    }

    fn with_volume(&self, ask: impl Fn(&dyn VolumeControl) -> Result<(), ExportError>) -> Result<(), ExportError> {
        let storages = match &self.served {
            Served::Disk(disk) => vec![disk.storage()],
            Served::Scsi(scsi) => scsi.storages(),
            Served::Directory(_) | Served::P9(_) => Vec::new(),
        };
        let volumes: Vec<_> = storages.iter().filter_map(|storage| storage.volume()).collect();
        if volumes.is_empty() {
            return Err(ExportError::NoIntentLog);
        }
        volumes.into_iter().try_for_each(ask)
    }

    /// The logical units of a SCSI device.
    ///
    /// # Errors
    /// It is none.
    pub fn units(&self) -> Result<Vec<UnitStatus>, ExportError> {
        Ok(self.served_scsi()?.status())
    }

    /// Adds a logical unit to a SCSI device, and tells its guest.
    ///
    /// # Errors
    /// It is none, no unit can have this geometry, or a worker hangs.
    pub fn add_unit(&self, options: UnitOptions) -> Result<UnitStatus, ExportError> {
        self.served_scsi()?.add(&self.shared.rings, options)
    }

    /// Takes a logical unit out of a SCSI device, and tells its guest. Whoever calls holds its storage.
    ///
    /// # Errors
    /// It is none, a worker hangs, or requests on the unit are still under way after a second: it is out of the device all the same.
    pub fn remove_unit(&self, lun: Lun) -> Result<(), ExportError> {
        self.served_scsi()?.remove(&self.shared.rings, lun)
    }

    /// Looks after the logical units of a SCSI device that is about to lose one or all of them; none of any other.
    pub fn watch_units(&self) -> BTreeMap<Lun, UnitWatch> {
        self.served_scsi().map(|scsi| scsi.watch_units()).unwrap_or_default()
    }

    /// Whether the storage behind a disk may come to have this capacity.
    ///
    /// # Errors
    /// A capacity that is not a multiple of the block size; a directory; a worker that hangs.
    pub fn check_capacity(&self, capacity_bytes: u64) -> Result<(), ExportError> {
        self.shared.rings.take_changes()?;
        match &self.served {
            Served::Scsi(scsi) => scsi.check_capacity(capacity_bytes),
            _ => self.served_disk()?.check_capacity(capacity_bytes),
        }
    }

    /// The storage behind a disk has another capacity than before: tells the rings, then the guest.
    ///
    /// # Errors
    /// A capacity that no disk can have; a directory.
    pub fn follow_capacity(&self) -> Result<(), ExportError> {
        if let Served::Scsi(scsi) = &self.served {
            return scsi.follow_capacity(&self.shared.rings);
        }
        self.served_disk()?.follow_capacity(&self.shared.rings)?;
        self.shared.tell_config();
        Ok(())
    }
}
