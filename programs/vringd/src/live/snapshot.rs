//! External snapshots of disks that are served, all as of the same moment.

use super::jobs::unsupported;
use super::swap::{Next, close};
use crate::daemon::{Daemon, PATIENCE};
use control::ApiError;
use control::model::{self as api, NewSnapshot, SnapshotDisk};
use disk::{Disk, StorageSpec};
use image::tools::ExternalSnapshot;
use std::sync::Arc;

impl Daemon {
    /// Gives the image of each disk another name, and lets a new one in front of it take its place.
    pub(crate) fn take_snapshot(&self, new: &NewSnapshot) -> Result<Vec<api::Disk>, ApiError> {
        new.check()?;
        // A file system that hangs holds up nobody else: whether the disks are still the same is looked at again.
        let mut disks: Vec<Arc<Disk>> = Vec::new();
        let mut snapshots = Vec::new();
        for of in &new.disks {
            let (disk, _) = self.disks.get(&of.disk)?;
            self.jobs.check_free(disk.name())?;
            self.settled(disk.name())?;
            snapshots.push(self.prepared(&disk, of)?);
            disks.push(disk);
        }
        let open = self.upgrade.gate();
        let changing = self.change_lock();
        let mut sizes = Vec::new();
        for (disk, snapshot) in disks.iter().zip(&snapshots) {
            self.jobs.check_free(disk.name())?;
            sizes.push(disk.capacity_lock_within(PATIENCE)?);
            let now = disk.storage();
            if !snapshot.is_of(&now) || now.capacity_bytes() != snapshot.size_bytes() {
                return Err(unsupported(disk, "was changed meanwhile: try again"));
            }
        }
        let mut taken = Vec::new();
        let before = self.replace(&disks, || {
            let mut next = Vec::new();
            for (mut snapshot, disk) in snapshots.drain(..).zip(&disks) {
                // What was done is undone before the rings go on.
                let put = snapshot.put().map_err(|error| unsupported(disk, &error.to_string()));
                taken.push(snapshot);
                match put {
                    Ok(storage) => next.push(Next { storage, spec: None }),
                    Err(error) => {
                        taken.clear();
                        return Err(error);
                    }
                }
            }
            Ok(next)
        })?;
        for (snapshot, disk) in taken.into_iter().zip(&disks) {
            tracing::info!(disk = disk.name(), path = %snapshot.to().display(), "what the disk held is there from now on");
            snapshot.keep();
        }
        // Somebody may remove a disk as soon as he can: its snapshot was taken.
        let shown = new.disks.iter().map(|of| self.disk_shown(&of.disk)).collect();
        // Closing may take a while, and holds up nobody else.
        drop(sizes);
        drop((changing, open));
        before.into_iter().for_each(close);
        shown
    }

    fn prepared(&self, disk: &Disk, of: &SnapshotDisk) -> Result<ExternalSnapshot, ApiError> {
        let StorageSpec::Qcow2(options) = disk.spec() else {
            let message = "an external snapshot is made of a qcow2 image: convert it, or `mirror` it into one";
            return Err(unsupported(disk, message));
        };
        self.held.admit_new("to", &of.to)?;
        // The new image is made beside the old one.
        self.held.admit_new("storage.path", &options.path)?;
        let prepared = ExternalSnapshot::prepare(&options, disk.storage(), &of.to);
        prepared.map_err(|error| unsupported(disk, &error.to_string()))
    }
}
