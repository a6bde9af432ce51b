//! The moment at which other storages come behind disks: of no export that uses one of them is a request in flight.

use crate::convert;
use crate::daemon::Daemon;
use control::ApiError;
use disk::{Disk, DiskError, StorageSpec, User};
use export::{Export, ExportError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::Storage;

/// How long requests in flight may take to end while their guests wait.
const HOLD_PATIENCE: Duration = Duration::from_secs(2);
/// How long workers may take to let go of a storage before somebody else waits for them.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// The name of a thread that waits until nobody uses what is to be closed.
pub(crate) const END_THREAD: &str = "disk-end";

/// What comes behind a disk.
pub(super) struct Next {
    pub(super) storage: Arc<dyn Storage>,
    /// The description that opens it, unless that of the disk does.
    pub(super) spec: Option<StorageSpec>,
}

impl Daemon {
    /// Holds the rings of all these disks, and lets what `change` answers stand behind them, one for each, from the same moment on.
    /// Answers with what stood there before, which is to be [closed](close). Whoever calls sees to it that neither the capacity of the
    /// disks changes meanwhile nor their exports do.
    ///
    /// # Errors
    /// Those of `change`, a disk that is gone, or requests that are still in flight after a while, or may be: the rings go on as they were.
    pub(super) fn replace(
        &self,
        disks: &[Arc<Disk>],
        change: impl FnOnce() -> Result<Vec<Next>, ApiError>,
    ) -> Result<Vec<Arc<dyn Storage>>, ApiError> {
        let mut exports: Vec<(usize, Arc<Export>)> = Vec::new();
        let mut before = Vec::new();
        for (number, disk) in disks.iter().enumerate() {
            let (present, users) = self.disks.get(disk.name())?;
            if !Arc::ptr_eq(&present, disk) {
                // Another one has its name by now.
                return Err(DiskError::Missing { name: disk.name().to_owned() }.into());
            }
            // No ring that is held knows of what another user has left.
            if let Err(left @ DiskError::Left { .. }) = self.disks.check_settled(disk.name()) {
                return Err(left.into());
            }
            before.push(disk.storage());
            for User::Export(name) in users {
                // A SCSI device may have several of them.
                if exports.iter().all(|(_, export)| export.name() != name) {
                    exports.push((number, self.get(&name)?));
                }
            }
        }
        let by = Instant::now() + HOLD_PATIENCE;
        let mut held = Vec::new();
        for (number, export) in &exports {
            let refused = |error| match error {
                // It is for whoever asks to try again.
                ExportError::InFlight { .. } | ExportError::Unsteady => ApiError::DiskUnsupported {
                    disk: disks.get(*number).map_or(String::new(), |disk| disk.name().to_owned()),
                    message: format!("export `{}`: {error}", export.name()),
                },
                error => convert::export_error(error, export.name()),
            };
            held.push(export.hold(by).map_err(refused)?);
        }
        let next = change()?;
        debug_assert_eq!(next.len(), disks.len(), "one for each");
        let put = |(before, (disk, next)): (Arc<dyn Storage>, (&Arc<Disk>, Next))| {
            held.iter().for_each(|held| held.put(&before, &next.storage));
            drop(before);
            disk.replace(next.spec, next.storage)
        };
        let before = before.into_iter().zip(disks.iter().zip(next)).map(put).collect();
        drop(held);
        // Workers may hold descriptors of what is to be closed.
        self.engine().sweep_files();
        Ok(before)
    }
}

impl Daemon {
    /// Waits until a disk without users has nothing under way: of what a ring that fell has left there nobody would hear any more.
    ///
    /// # Errors
    /// That is not so after a while.
    pub(super) fn settled(&self, disk: &str) -> Result<(), ApiError> {
        let by = Instant::now() + CLOSE_PATIENCE;
        loop {
            match self.disks.check_settled(disk) {
                // Whoever looks at a disk has it for a moment.
                Err(DiskError::Ending { .. }) if Instant::now() < by => std::thread::sleep(LOOK_AGAIN_AFTER),
                settled => return Ok(settled?),
            }
        }
    }
}

/// Closes what stood behind a disk and does not any more, as soon as no worker has it: never on one.
pub(super) fn close(storage: Arc<dyn Storage>) {
    let end = Instant::now() + CLOSE_PATIENCE;
    while Arc::strong_count(&storage) > 1 && Instant::now() < end {
        std::thread::sleep(LOOK_AGAIN_AFTER);
    }
    if Arc::strong_count(&storage) == 1 {
        return drop(storage);
    }
    let waits = move || {
        while Arc::strong_count(&storage) > 1 {
            std::thread::sleep(CLOSE_PATIENCE);
        }
        // Nothing of a device until then.
        let _ = std::ffi::CString::new(disk::CLOSE_THREAD).map(|name| rustix::thread::set_name(&name));
        drop(storage);
    };
    if let Err(error) = std::thread::Builder::new().name(END_THREAD.to_owned()).spawn(waits) {
        tracing::warn!(%error, "a storage is closed by the worker that is the last to use it, which may take that a while");
    }
}
