//! Disks: storages that are open and have names, and their users.
//!
//! Disks are kept by name in [`Disks`], and used by a [`Lease`]. A writable disk has one user, a read-only one any number, a shared one
//! any number of SCSI devices, a device of the host one SCSI device ([`Sharing`]). A disk without an owner stays open until it is removed; one with an owner goes with its
//! owner's lease, and nobody else uses it.
//!
//! A storage is closed when its last holder lets go of it. That may write a volume back: what takes a disk out of here
//! ([`Disks::remove`], the end of a [`Lease`]) is for threads that may wait, and never for a worker.

use crate::StorageSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use storage::{Kind, RecordFile, Storage};
use utoipa::ToSchema;

/// How often a change of capacity is looked for that somebody waits for.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A user of a disk.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DiskUser)]
pub enum User {
    /// The export of this name.
    Export(String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            User::Export(name) => write!(f, "export `{name}`"),
        }
    }
}

/// What a user makes of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A logical unit of a SCSI device: reservations exclude its other users.
    Unit,
    /// All of a device or of a server, which knows of no other user.
    Whole,
}

/// Who may use a disk at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One user: it is writable.
    One,
    /// Any number: nobody writes.
    Readers,
    /// Any number of SCSI devices, and nothing else: its operator shares it among guests that know of each other.
    Units,
    /// One SCSI device, and nothing else: what stands behind it performs SCSI commands, and no operation.
    Passed,
}

impl Sharing {
    /// That of a disk by its description. What is passed through is shared by nobody.
    pub fn of(is_shared: bool, storage: &dyn Kind) -> Sharing {
        Sharing::said(is_shared, storage.read_only(), storage.passes())
    }

    fn said(is_shared: bool, read_only: bool, passes: bool) -> Sharing {
        match (passes, is_shared, read_only) {
            (true, ..) => Sharing::Passed,
            (_, true, _) => Sharing::Units,
            (_, false, true) => Sharing::Readers,
            (_, false, false) => Sharing::One,
        }
    }
}

/// Users as a message lists them.
pub fn listed(users: &[User]) -> String {
    users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a disk cannot be had. The doc comments are the messages.
#[derive(Debug, Clone, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum DiskError {
    /// there is no disk `{name}`
    Missing {
        /// The name that was asked for.
        name: String,
    },
    /// there is already a disk `{name}`
    Exists {
        /// The name that is taken.
        name: String,
    },
    /// disk `{name}` is used by {users}: remove the exports that use it first
    InUse {
        /// The disk.
        name: String,
        /// Its users, listed.
        users: String,
    },
    /// disk `{name}` is writable and used by {by}, so {user} cannot use it: make the disk read-only, or give each a disk of its own
    Writable {
        /// The disk.
        name: String,
        /// Its user.
        by: User,
        /// Another one.
        user: User,
    },
    /// disk `{name}` is writable and used by {by}, so {user} cannot use it: make the disk read-only, give each a disk of its own, or, where both are SCSI devices of guests that know of each other, describe the disk with `shared = true`
    NotShared {
        /// The disk.
        name: String,
        /// Its user.
        by: User,
        /// A SCSI device.
        user: User,
    },
    /// disk `{name}` is shared, and only SCSI devices may have it, so {user} cannot use it: reservations would not hold for others; make that a SCSI device (`kind = "scsi"`), or leave `shared` out of the disk
    SharedByUnits {
        /// The disk.
        name: String,
        /// No SCSI device.
        user: User,
    },
    /// disk `{name}` is a SCSI device of the host (storage `sg`), and only a unit of a SCSI device passes its commands through, so {user} cannot use it: make that a SCSI device (`kind = "scsi"`) with the disk among its `luns`
    Passed {
        /// The disk.
        name: String,
        /// No SCSI device.
        user: User,
    },
    /// disk `{name}` is a SCSI device of the host (storage `sg`) and used by {by}, so {user} cannot use it: to the device both guests would be one
    PassedToOne {
        /// The disk.
        name: String,
        /// Its user.
        by: User,
        /// Another one.
        user: User,
    },
    /// requests of an earlier user of the shared disk `{name}` are still under way beside {users}: try again when its storage has answered them, or restart the daemon if that lasts
    Left {
        /// The disk.
        name: String,
        /// Its users, listed.
        users: String,
    },
    /// requests of an earlier user of disk `{name}` are still under way: try again when its storage has answered them, or restart the daemon if that lasts
    Ending {
        /// The disk.
        name: String,
    },
    /// the capacity of disk `{name}` is being changed: try again when its storage has done that
    Resizing {
        /// The disk.
        name: String,
    },
    /// disk `{name}` has failed: {why}; remove it and add it again
    Failed {
        /// The disk.
        name: String,
        /// What its storage says.
        why: String,
    },
    /// disk `{name}` belongs to {owner}, so {user} cannot use it: add it as a disk by itself, and let both use that
    Owned {
        /// The disk.
        name: String,
        /// Its owner.
        owner: User,
        /// Another one.
        user: User,
    },
}

/// A storage that is open and has a name.
pub struct Disk {
    name: String,
    current: Mutex<Current>,
    owner: Option<User>,
    is_shared: bool,
    reservations: Option<Arc<RecordFile>>,
    space_threshold_bytes: Option<u64>,
    resizing: Mutex<()>,
}

/// What is open, and the description that opened it.
struct Current {
    spec: StorageSpec,
    storage: Arc<dyn Storage>,
}

impl Disk {
    /// What `spec` has opened, under a name. With an `owner` it goes with that.
    pub fn new(name: impl Into<String>, spec: StorageSpec, storage: Arc<dyn Storage>, owner: Option<User>) -> Disk {
        let current = Mutex::new(Current { spec, storage });
        Disk {
            name: name.into(),
            current,
            owner,
            is_shared: false,
            reservations: None,
            space_threshold_bytes: None,
            resizing: Mutex::new(()),
        }
    }

    /// The same, which several SCSI devices may use at once, or which they may not.
    #[must_use]
    pub fn shared(self, is_shared: bool) -> Disk {
        Disk { is_shared, ..self }
    }

    /// The same, whose reservations this file keeps over a loss of power.
    #[must_use]
    pub fn kept_in(self, file: Option<RecordFile>) -> Disk {
        Disk { reservations: file.map(Arc::new), ..self }
    }

    /// The same, with a threshold: when less space is left for it than this, in bytes, it is said.
    #[must_use]
    pub fn warns_below(self, space_threshold_bytes: Option<u64>) -> Disk {
        Disk { space_threshold_bytes, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is open.
    pub fn storage(&self) -> Arc<dyn Storage> {
        self.current().storage.clone()
    }

    /// Another storage is open under this name from now on, by its own description or that of the one before. Returns the one before,
    /// which is closed when its last user lets go of it. Whoever calls has the [capacity lock](Self::capacity_lock).
    pub fn replace(&self, spec: Option<StorageSpec>, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        let mut current = self.current();
        if let Some(spec) = spec {
            current.spec = spec;
        }
        std::mem::replace(&mut current.storage, storage)
    }

    /// The user with which it goes; none for a disk that stays until it is removed.
    pub fn owner(&self) -> Option<&User> {
        self.owner.as_ref()
    }

    /// Whether several SCSI devices may use it at once, and nothing else may.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// What keeps its reservations over a loss of power, if anything does.
    pub fn reservations(&self) -> Option<&Arc<RecordFile>> {
        self.reservations.as_ref()
    }

    /// Its threshold of space that is left, in bytes.
    pub fn space_threshold_bytes(&self) -> Option<u64> {
        self.space_threshold_bytes
    }

    /// Who may use it at once.
    pub fn sharing(&self) -> Sharing {
        let storage = self.storage();
        Sharing::said(self.is_shared, storage.describe().read_only, storage.passes().is_some())
    }

    /// Held while its capacity changes: changes are heard of in their order.
    pub fn capacity_lock(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for whoever begins to use it, who must not miss a change, nor wait with others behind him for a storage that hangs.
    ///
    /// # Errors
    /// [`DiskError::Resizing`]: a change has not ended within this time.
    pub fn capacity_lock_within(&self, patience: Duration) -> Result<MutexGuard<'_, ()>, DiskError> {
        let end = Instant::now() + patience;
        loop {
            match self.resizing.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(LOOK_AGAIN_AFTER),
                Err(TryLockError::WouldBlock) => return Err(DiskError::Resizing { name: self.name.clone() }),
            }
        }
    }

    /// The description that opens it as it is now: with what has been changed since.
    pub fn spec(&self) -> StorageSpec {
        let current = self.current();
        let mut spec = current.spec.clone();
        spec.set_execution(current.storage.describe().execution);
        if let Some(volume) = current.storage.volume() {
            spec.set_sync(volume.status().sync);
        }
        spec
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({}, {:?})", self.name, self.storage().describe())
    }
}

/// Whether `user` may use a disk, beside those that do: the rule for what is open and for what a configuration describes.
///
/// # Errors
/// [`DiskError::SharedByUnits`], [`DiskError::Passed`], [`DiskError::PassedToOne`], [`DiskError::NotShared`], [`DiskError::Writable`].
pub fn may_use(name: &str, sharing: Sharing, users: &[User], (user, role): (&User, Role)) -> Result<(), DiskError> {
    let (name, user) = (|| name.to_owned(), || user.clone());
    match (sharing, role, users.first()) {
        (Sharing::Units, Role::Whole, _) => Err(DiskError::SharedByUnits { name: name(), user: user() }),
        (Sharing::Passed, Role::Whole, _) => Err(DiskError::Passed { name: name(), user: user() }),
        (Sharing::Passed, Role::Unit, Some(by)) => {
            Err(DiskError::PassedToOne { name: name(), by: by.clone(), user: user() })
        }
        (Sharing::One, Role::Unit, Some(by)) => {
            Err(DiskError::NotShared { name: name(), by: by.clone(), user: user() })
        }
        (Sharing::One, Role::Whole, Some(by)) => {
            Err(DiskError::Writable { name: name(), by: by.clone(), user: user() })
        }
        (Sharing::One | Sharing::Passed, _, None) | (Sharing::Readers, ..) | (Sharing::Units, Role::Unit, _) => Ok(()),
    }
}

/// Whether requests are still under way that somebody has left.
pub type UnderWay = Box<dyn Fn() -> bool + Send + Sync>;

/// What users have left who have gone, while others stayed, who hold the storage as well.
#[derive(Default)]
struct Left(Vec<UnderWay>);

impl Left {
    fn is_any(&self) -> bool {
        self.0.iter().any(|is_under_way| is_under_way())
    }

    /// Forgets what has ended.
    fn clean(&mut self) {
        self.0.retain(|is_under_way| is_under_way());
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Left({})", self.0.len())
    }
}

#[derive(Debug)]
struct Entry {
    disk: Arc<Disk>,
    users: Vec<User>,
    left: Left,
}

impl Entry {
    /// Whether nothing is under way but what its users know of: a ring that fell with requests in flight outlives its export, and
    /// a late write would undo a newer one. What is read late undoes nothing.
    fn check_settled(&self) -> Result<(), DiskError> {
        let name = &self.disk.name;
        let storage = &self.disk.current().storage;
        // A device of the host is moved by whoever reads it.
        if storage.describe().read_only && storage.passes().is_none() {
            return Ok(());
        }
        if !self.users.is_empty() {
            let left = || DiskError::Left { name: name.clone(), users: listed(&self.users) };
            return if self.left.is_any() { Err(left()) } else { Ok(()) };
        }
        let is_held = Arc::strong_count(storage) > 1 || storage.custody().is_some_and(storage::Custody::is_used);
        if is_held { Err(DiskError::Ending { name: name.clone() }) } else { Ok(()) }
    }
}

/// The disks of a daemon, by name.
#[derive(Clone, Debug, Default)]
pub struct Disks {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
}

impl Disks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a name is free, to be asked before anything is opened for it.
    ///
    /// # Errors
    /// [`DiskError::Exists`].
    pub fn check_free(&self, name: &str) -> Result<(), DiskError> {
        if self.lock().contains_key(name) { Err(DiskError::Exists { name: name.to_owned() }) } else { Ok(()) }
    }

    /// Keeps a disk until it is removed.
    ///
    /// # Errors
    /// [`DiskError::Exists`].
    pub fn add(&self, disk: Disk) -> Result<Arc<Disk>, DiskError> {
        let disk = Arc::new(disk);
        let mut entries = self.lock();
        if entries.contains_key(&disk.name) {
            return Err(DiskError::Exists { name: disk.name.clone() });
        }
        entries.insert(disk.name.clone(), Entry { disk: disk.clone(), users: Vec::new(), left: Left::default() });
        Ok(disk)
    }

    /// Lets a user have a disk, until the lease ends; a writable one when nothing of an earlier user is under way any more.
    ///
    /// # Errors
    /// There is none of this name, it may have no more users or none of this role, or not yet.
    pub fn lease(&self, name: &str, user: User, role: Role) -> Result<Lease, DiskError> {
        let mut entries = self.lock();
        let entry = entries.get_mut(name).ok_or_else(|| DiskError::Missing { name: name.to_owned() })?;
        if let Some(owner) = entry.disk.owner.as_ref().filter(|owner| **owner != user) {
            return Err(DiskError::Owned { name: name.to_owned(), owner: owner.clone(), user });
        }
        may_use(name, entry.disk.sharing(), &entry.users, (&user, role))?;
        entry.check_settled()?;
        entry.left.clean();
        // What has failed stays so while it is open: its next user would hear of nothing but errors.
        let volume = entry.disk.storage().volume().map(storage::VolumeControl::status);
        if let Some(why) = volume.and_then(|status| status.failure) {
            return Err(DiskError::Failed { name: name.to_owned(), why });
        }
        entry.users.push(user.clone());
        Ok(Lease { disk: entry.disk.clone(), user, of: self.clone(), leaves: None })
    }

    /// A disk and its users.
    ///
    /// # Errors
    /// [`DiskError::Missing`].
    pub fn get(&self, name: &str) -> Result<(Arc<Disk>, Vec<User>), DiskError> {
        let entries = self.lock();
        let entry = entries.get(name).ok_or_else(|| DiskError::Missing { name: name.to_owned() })?;
        Ok((entry.disk.clone(), entry.users.clone()))
    }

    /// The same of one disk, for whoever lets another storage stand behind it: what is under way on the one before would not be heard of.
    ///
    /// # Errors
    /// [`DiskError::Ending`], [`DiskError::Left`], [`DiskError::Missing`].
    pub fn check_settled(&self, name: &str) -> Result<(), DiskError> {
        let entries = self.lock();
        entries.get(name).ok_or_else(|| DiskError::Missing { name: name.to_owned() })?.check_settled()
    }

    /// Whether nothing is under way on a writable disk but what its users know of.
    ///
    /// # Errors
    /// [`DiskError::Ending`] or [`DiskError::Left`] for one of those where that is not so.
    pub fn check_ended(&self) -> Result<(), DiskError> {
        self.lock().values().try_for_each(Entry::check_settled)
    }

    /// All disks with their users, by name.
    pub fn all(&self) -> Vec<(Arc<Disk>, Vec<User>)> {
        self.lock().values().map(|entry| (entry.disk.clone(), entry.users.clone())).collect()
    }

    /// Takes out a disk that nothing uses. It is closed when what is returned is dropped.
    ///
    /// # Errors
    /// There is none of this name, or it has users.
    pub fn remove(&self, name: &str) -> Result<Arc<Disk>, DiskError> {
        let mut entries = self.lock();
        let entry = entries.get(name).ok_or_else(|| DiskError::Missing { name: name.to_owned() })?;
        if !entry.users.is_empty() {
            return Err(DiskError::InUse { name: name.to_owned(), users: listed(&entry.users) });
        }
        let disk = entry.disk.clone();
        entries.remove(name);
        Ok(disk)
    }

    /// The end of a lease. Returns the disk where it goes with that, to be closed when nobody waits for the lock.
    fn end(&self, name: &str, user: &User, leaves: Option<UnderWay>) -> Option<Arc<Disk>> {
        let mut entries = self.lock();
        let entry = entries.get_mut(name)?;
        entry.left.clean();
        entry.left.0.extend(leaves);
        if let Some(at) = entry.users.iter().position(|other| other == user) {
            entry.users.swap_remove(at);
        }
        let goes = entry.disk.owner.as_ref() == Some(user);
        if goes { entries.remove(name).map(|entry| entry.disk) } else { None }
    }
}

/// A disk in use: it cannot be removed before this is dropped.
pub struct Lease {
    disk: Arc<Disk>,
    user: User,
    of: Disks,
    leaves: Option<UnderWay>,
}

impl Lease {
    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Ends it while requests of its user may be under way. Other users hold the storage as these do: until they have ended, nobody
    /// else has the disk, and no other storage comes behind it.
    pub fn end_with_requests(mut self, are_under_way: UnderWay) {
        self.leaves = Some(are_under_way);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?}, {})", self.disk, self.user)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.of.end(&self.disk.name, &self.user, self.leaves.take()));
    }
}

#[cfg(test)]
#[path = "disks_tests.rs"]
mod tests;
