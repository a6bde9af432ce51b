//! Disks of the daemon: storages that are opened, resized and closed apart from exports, and those that belong to one.

use crate::convert::{self, storage_out};
use crate::daemon::{Daemon, PATIENCE};
use crate::failure::field;
use crate::prepared::{Contents, DiskContents, open_reservations};
use crate::volume;
use control::ApiError;
use control::model::config::Backing;
use control::model::{self as api, NewDisk, NewExport};
use disk::{Disk, DiskError, Lease, Role, User};
use export::Export;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{Storage, StorageError};

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

fn disk_out(disk: &Disk, users: Vec<User>) -> api::Disk {
    let storage = disk.storage();
    let about = storage.describe();
    let volume = storage.volume().map(|volume| volume::info_out(&volume.status()));
    let held = storage.custody().map(storage::Custody::is_held);
    let link = storage.remote().and_then(storage::Remote::link).map(convert::link_out);
    let shown = storage_out(storage.capacity_bytes(), about.block_size_bytes, &about);
    api::Disk {
        name: disk.name().to_owned(),
        owner: disk.owner().cloned(),
        storage: api::StorageInfo { held, link, volume, ..shown },
        shared: disk.is_shared(),
        reservations: disk.reservations().map(|file| file.path().display().to_string()),
        space_threshold_bytes: disk.space_threshold_bytes(),
        users,
    }
}

/// Whether somebody knows how much space is left for a disk.
fn check_counted(storage: &dyn Storage) -> Result<(), ApiError> {
    let about = storage.describe();
    // A memory disk has no file system that could be full.
    if about.discard && storage.counted().is_some() && about.kind != "memory" {
        return Ok(());
    }
    let why = match (about.read_only, about.discard) {
        (true, _) => "is of disks that are written, and this one is read-only: leave it out".to_owned(),
        (_, false) => "is of thin disks, and this one takes no discard: leave it out".to_owned(),
        _ => format!("is of images in files, and nobody counts the space of this {}: leave it out", about.kind),
    };
    Err(field(NewDisk::SPACE_THRESHOLD, why))
}

/// Whether what changes hands, and was to be given up by the end of its export, still does not answer.
pub(crate) fn is_late(disk: &Disk) -> bool {
    let storage = disk.storage();
    let held = storage.custody().filter(|custody| custody.is_held());
    held.is_some_and(|custody| custody.give_up(PATIENCE).is_err_and(|error| error.is_timeout()))
}

impl Daemon {
    /// Adds a disk that stays until it is removed.
    pub(crate) fn add_disk(&self, new: NewDisk, contents: DiskContents) -> Result<api::Disk, ApiError> {
        let DiskContents { storage: contents, reservations } = contents;
        // What another program has had open was checked there.
        if !matches!(contents, Contents::Handed(_)) {
            new.check()?;
            self.held.admit_storage(&new.storage)?;
            // What was opened before has its memory file.
            if matches!(contents, Contents::Paths) {
                self.held.admit_made(&new.storage)?;
                if let Some(path) = &new.reservations {
                    self.held.admit_written(NewDisk::RESERVATIONS, path)?;
                }
            }
        }
        self.disks.check_free(&new.name)?;
        let contents = contents.unlocked(&new.name, &new.storage)?;
        // Not while others wait for a change, either: it is written, where it is new.
        let kept = match (reservations, &new.reservations) {
            (None, Some(path)) => Some(open_reservations(path)?),
            (opened, _) => opened,
        };
        let _open = self.upgrade.gate();
        let _changing = self.change_lock();
        self.disks.check_free(&new.name)?;
        let is_handed = matches!(contents, Contents::Handed(_));
        let storage = contents.start(&new.name, &new.storage)?;
        let threshold_bytes = new.space_threshold.map(|size| size.0);
        // What another program has had open was checked there.
        if threshold_bytes.is_some() && !is_handed {
            check_counted(&*storage)?;
        }
        let disk = Disk::new(new.name, new.storage, storage, None);
        let disk = disk.shared(new.shared).kept_in(kept).warns_below(threshold_bytes);
        let disk = self.disks.add(disk)?;
        Ok(disk_out(&disk, Vec::new()))
    }

    /// Gives an export that is about to be made the disk that it names, or one of its own with the storage that it has.
    pub(crate) fn lease(&self, new: &NewExport, contents: Contents) -> Result<Lease, ApiError> {
        let user = User::Export(new.name.clone());
        let name = match new.backing()? {
            Backing::Disk(name) => name,
            Backing::Storage(storage) => {
                let taken = |error| field("name", format_args!("{error}, which is another one: choose another name"));
                self.disks.check_free(&new.name).map_err(taken)?;
                let started = contents.start(&new.name, storage)?;
                self.disks.add(Disk::new(&*new.name, storage.clone(), started, Some(user.clone()))).map_err(taken)?;
                &new.name
            }
        };
        self.lease_by_name(name, &user, Role::Whole).map_err(convert::lease_error)
    }

    /// Lets a user have a disk that is open.
    pub(crate) fn lease_by_name(&self, name: &str, user: &User, role: Role) -> Result<Lease, DiskError> {
        // A thread that lists exports may hold one for a moment after its removal.
        let end = Instant::now() + PATIENCE;
        loop {
            match self.disks.lease(name, user.clone(), role) {
                Err(DiskError::Ending { .. }) if Instant::now() < end => std::thread::sleep(LOOK_AGAIN_AFTER),
                leased => return leased,
            }
        }
    }

    pub(crate) fn disk_list(&self) -> Vec<api::Disk> {
        self.disks.all().into_iter().map(|(disk, users)| disk_out(&disk, users)).collect()
    }

    pub(crate) fn disk_shown(&self, name: &str) -> Result<api::Disk, ApiError> {
        let (disk, users) = self.disks.get(name)?;
        Ok(disk_out(&disk, users))
    }

    /// Closes a disk, which may write a volume back.
    pub(crate) fn remove_disk(&self, name: &str) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let changing = self.change_lock();
        self.jobs.check_copied(name)?;
        let disk = self.disks.remove(name)?;
        // Nobody uses it any more, but may have left requests behind.
        if let Some(remote) = disk.storage().remote() {
            remote.end_waiting(true);
        }
        let storage = Arc::downgrade(&disk.storage());
        // Nobody finds it any more, and others have not to wait for a cluster, or for what is written back.
        drop(changing);
        drop(disk);
        if storage.strong_count() > 0 {
            let why =
                "requests of an earlier user are under way: it is closed when they have ended, or with the daemon";
            tracing::warn!(disk = name, reason = why, "a disk was removed and stays open");
        }
        // Workers still hold the image's descriptor, and with it its lock.
        self.engine().sweep_files();
        Ok(())
    }

    /// Has requests fail that wait for a cluster, of the disks that no other export serves: this one could not end otherwise, for as long as that is
    /// away. Nor could one that has left requests behind, of a unit that was removed.
    pub(crate) fn end_waiting(&self, export: &str) {
        let serves = |user: &str| self.get(user).is_ok_and(|other| other.failure().is_none());
        let is_nobody_elses = |disk: &Disk, users: &[User]| match users {
            [] => self.jobs.check_copied(disk.name()).is_ok(),
            users => users.iter().all(|User::Export(user)| user == export || !serves(user)),
        };
        for (disk, _) in self.disks.all().iter().filter(|(disk, users)| is_nobody_elses(disk, users)) {
            if let Some(remote) = disk.storage().remote() {
                remote.end_waiting(false);
            }
        }
    }

    /// Opens a disk again that is lost.
    pub(crate) fn reopen_disk(&self, name: &str) -> Result<api::Disk, ApiError> {
        let _open = self.upgrade.gate();
        let (disk, users) = self.disks.get(name)?;
        let refused = |message| ApiError::DiskUnsupported { disk: name.to_owned(), message };
        let storage = disk.storage();
        let remote = storage.remote().ok_or_else(|| {
            refused("is on this machine, and never lost: remove it and add it, to have it opened again".to_owned())
        })?;
        remote.open_again().map_err(|error| refused(error.to_string()))?;
        Ok(disk_out(&disk, users))
    }

    /// Ends what guests have reserved of a disk.
    pub(crate) fn break_reservations(&self, name: &str) -> Result<(), ApiError> {
        let _open = self.upgrade.gate();
        let (disk, _) = self.disks.get(name)?;
        let kept = disk.reservations();
        let failed = |error: io::Error| {
            let place = kept.map(|file| format!(" in {}", file.path().display())).unwrap_or_default();
            let late = "a change has not been written within 5 s: look at the file system";
            let what = if error.kind() == io::ErrorKind::TimedOut { late.to_owned() } else { error.to_string() };
            ApiError::Failed { message: format!("reservations of disk `{name}`{place}: {what}") }
        };
        // Not while others wait for a change: it may take as long as a file system does.
        self.logical_units.break_reservations(name, kept).map_err(failed)?;
        tracing::info!(disk = name, "reservations were broken");
        Ok(())
    }

    /// Changes the capacity of a disk, and tells the guests of all exports that use it. `refused` translates the storage's
    /// refusal.
    pub(crate) fn resize_disk(
        &self,
        disk: &Arc<Disk>,
        capacity_bytes: u64,
        refused: impl FnOnce(StorageError) -> ApiError,
    ) -> Result<(), ApiError> {
        let _in_order = disk.capacity_lock();
        let (present, users) = self.disks.get(disk.name())?;
        if !Arc::ptr_eq(&present, disk) {
            // Another one has its name by now.
            return Err(DiskError::Missing { name: disk.name().to_owned() }.into());
        }
        let exports = self.exports_of(&users);
        for export in &exports {
            let checked = export.check_capacity(capacity_bytes);
            checked.map_err(|error| convert::export_error(error, export.name()))?;
        }
        disk.storage().resize(capacity_bytes).map_err(refused)?;
        // All guests are told, also behind one that cannot be: each of them uses what there is now.
        let follow = |export: &Arc<Export>| {
            export.follow_capacity().map_err(|error| convert::export_error(error, export.name()))
        };
        let followed: Vec<_> = exports.iter().map(follow).collect();
        followed.into_iter().collect()
    }
}

#[cfg(test)]
#[path = "disks_tests.rs"]
mod tests;
