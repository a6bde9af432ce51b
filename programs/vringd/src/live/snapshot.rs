//! External snapshots of disks that are served, all as of the same moment.

use super::swap::{Next, close};
use crate::daemon::{Daemon, PATIENCE};
use control::ApiError;
use control::model::{self as api, NewSnapshot};
use disk::StorageSpec;
use image::tools::ExternalSnapshot;

impl Daemon {
    /// Gives the image of each disk another name, and lets a new one in front of it take its place.
    pub(crate) fn take_snapshot(&self, new: &NewSnapshot) -> Result<Vec<api::Disk>, ApiError> {
        new.check()?;
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        let disks = new.disks.iter().map(|of| Ok(self.disks.get(&of.disk)?.0)).collect::<Result<Vec<_>, ApiError>>()?;
        let mut sizes = Vec::new();
        for (disk, of) in disks.iter().zip(&new.disks) {
            self.jobs.check_free(disk.name())?;
            self.held.admit_new("to", &of.to)?;
            sizes.push(disk.capacity_lock_within(PATIENCE)?);
        }
        let unsupported = |disk: &str, message: String| ApiError::DiskUnsupported { disk: disk.to_owned(), message };
        let mut snapshots = Vec::new();
        for (disk, of) in disks.iter().zip(&new.disks) {
            let StorageSpec::Qcow2(options) = disk.spec() else {
                let message = "an external snapshot is made of a qcow2 image: convert it, or `mirror` it into one";
                return Err(unsupported(disk.name(), message.to_owned()));
            };
            let prepared = ExternalSnapshot::prepare(&options, disk.storage(), &of.to);
            snapshots.push(prepared.map_err(|error| unsupported(disk.name(), error.to_string()))?);
        }
        let before = self.replace(&disks, || {
            let put = |(snapshot, disk): (&mut ExternalSnapshot, &std::sync::Arc<disk::Disk>)| match snapshot.put() {
                Ok(storage) => Ok(Next { storage, spec: None }),
                Err(error) => Err(unsupported(disk.name(), error.to_string())),
            };
            snapshots.iter_mut().zip(&disks).map(put).collect()
        })?;
        for (snapshot, disk) in snapshots.into_iter().zip(&disks) {
            tracing::info!(disk = disk.name(), path = %snapshot.to().display(), "what the disk held is there from now on");
            snapshot.keep();
        }
        before.into_iter().for_each(close);
        drop(sizes);
        new.disks.iter().map(|of| self.disk_shown(&of.disk)).collect()
    }
}
