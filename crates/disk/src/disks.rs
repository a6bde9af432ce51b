//! Disks: storages that are open and have names, and their users.
//!
//! Disks are kept by name in [`Disks`], and used by a [`Lease`]. A writable disk has one user, a read-only one any number. A disk
//! without an owner stays open until it is removed; one with an owner goes with its owner's lease, and nobody else uses it.
//!
//! A storage is closed when its last holder lets go of it. That may write a volume back: what takes a disk out of here
//! ([`Disks::remove`], the end of a [`Lease`]) is for threads that may wait, and never for a worker.

use crate::StorageSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use storage::Storage;
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
        Disk { name: name.into(), current: Mutex::new(Current { spec, storage }), owner, resizing: Mutex::new(()) }
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
/// [`DiskError::Writable`].
pub fn may_use(name: &str, read_only: bool, users: &[User], user: &User) -> Result<(), DiskError> {
    match users.first() {
        Some(by) if !read_only => {
            Err(DiskError::Writable { name: name.to_owned(), by: by.clone(), user: user.clone() })
        }
        _ => Ok(()),
    }
}

#[derive(Debug)]
struct Entry {
    disk: Arc<Disk>,
    users: Vec<User>,
}

impl Entry {
    /// Whether it has no user and something holds its storage: a ring that fell with requests in flight outlives its export, and
    /// a late write would undo a newer one. What is read late undoes nothing.
    fn is_ending(&self) -> bool {
        let storage = &self.disk.current().storage;
        let is_held = Arc::strong_count(storage) > 1 || storage.custody().is_some_and(storage::Custody::is_used);
        self.users.is_empty() && !storage.describe().read_only && is_held
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
        entries.insert(disk.name.clone(), Entry { disk: disk.clone(), users: Vec::new() });
        Ok(disk)
    }

    /// Lets a user have a disk, until the lease ends; a writable one when nothing of an earlier user is under way any more.
    ///
    /// # Errors
    /// There is none of this name, it may have no more users, or not yet.
    pub fn lease(&self, name: &str, user: User) -> Result<Lease, DiskError> {
        let mut entries = self.lock();
        let entry = entries.get_mut(name).ok_or_else(|| DiskError::Missing { name: name.to_owned() })?;
        if let Some(owner) = entry.disk.owner.as_ref().filter(|owner| **owner != user) {
            return Err(DiskError::Owned { name: name.to_owned(), owner: owner.clone(), user });
        }
        may_use(name, entry.disk.storage().describe().read_only, &entry.users, &user)?;
        if entry.is_ending() {
            return Err(DiskError::Ending { name: name.to_owned() });
        }
        // What has failed stays so while it is open: its next user would hear of nothing but errors.
        let volume = entry.disk.storage().volume().map(storage::VolumeControl::status);
        if let Some(why) = volume.and_then(|status| status.failure) {
            return Err(DiskError::Failed { name: name.to_owned(), why });
        }
        entry.users.push(user.clone());
        Ok(Lease { disk: entry.disk.clone(), user, of: self.clone() })
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
    /// [`DiskError::Ending`], [`DiskError::Missing`].
    pub fn check_settled(&self, name: &str) -> Result<(), DiskError> {
        match self.lock().get(name) {
            Some(entry) if entry.is_ending() => Err(DiskError::Ending { name: name.to_owned() }),
            Some(_) => Ok(()),
            None => Err(DiskError::Missing { name: name.to_owned() }),
        }
    }

    /// Whether nothing is under way on a writable disk but what its user knows of.
    ///
    /// # Errors
    /// [`DiskError::Ending`] for one of those where that is not so.
    pub fn check_ended(&self) -> Result<(), DiskError> {
        match self.lock().iter().find(|(_, entry)| entry.is_ending()) {
            Some((name, _)) => Err(DiskError::Ending { name: name.clone() }),
            None => Ok(()),
        }
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
    fn end(&self, name: &str, user: &User) -> Option<Arc<Disk>> {
        let mut entries = self.lock();
        let entry = entries.get_mut(name)?;
        if let Some(at) = entry.users.iter().position(|other| other == user) {
            entry.users.swap_remove(at);
        }
        let goes = entry.disk.owner.as_ref() == Some(user);
        if goes { entries.remove(name).map(|entry| entry.disk) } else { None }
    }
}

/// A disk in use: it cannot be removed before this is dropped.
#[derive(Debug)]
pub struct Lease {
    disk: Arc<Disk>,
    user: User,
    of: Disks,
}

impl Lease {
    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.of.end(&self.disk.name, &self.user));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileOptions, MemoryOptions};
    use proptest::prelude::*;
    use std::path::Path;
    use values::{ByteSize, Execution, IntentLog, SyncMode};

    fn user(name: &str) -> User {
        User::Export(name.to_owned())
    }

    fn file(image: &Path, read_only: bool) -> StorageSpec {
        StorageSpec::File(FileOptions { read_only, ..FileOptions::new(image) })
    }

    fn opened(spec: &StorageSpec) -> Arc<dyn Storage> {
        spec.open().unwrap().start().unwrap()
    }

    fn image() -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        image
    }

    fn open(disks: &Disks, name: &str, spec: &StorageSpec, owner: Option<User>) -> Arc<Disk> {
        disks.add(Disk::new(name, spec.clone(), opened(spec), owner)).unwrap()
    }

    #[test]
    fn a_writable_disk_has_one_user_and_a_read_only_one_any_number() {
        let (one, two) = (image(), image());
        let disks = Disks::default();
        open(&disks, "rw", &file(one.path(), false), None);
        open(&disks, "ro", &file(two.path(), true), None);
        let first = disks.lease("rw", user("a")).unwrap();
        let line = disks.lease("rw", user("b")).unwrap_err().to_string();
        assert_eq!(
            line,
            "disk `rw` is writable and used by export `a`, so export `b` cannot use it: make the disk read-only, or give \
             each a disk of its own"
        );
        drop(first);
        drop(disks.lease("rw", user("b")).unwrap());
        let both = ["a", "b"].map(|name| disks.lease("ro", user(name)).unwrap());
        assert!(Arc::ptr_eq(both[0].disk(), both[1].disk()));
        assert_eq!(disks.get("ro").unwrap().1, [user("a"), user("b")]);
    }

    #[test]
    fn a_writable_disk_is_for_nobody_while_a_ring_of_its_last_user_is_left() {
        let (one, two) = (image(), image());
        let disks = Disks::default();
        let ring = open(&disks, "rw", &file(one.path(), false), None).storage();
        let line = disks.lease("rw", user("a")).unwrap_err().to_string();
        assert_eq!(
            line,
            "requests of an earlier user of disk `rw` are still under way: try again when its storage has answered them, or \
             restart the daemon if that lasts"
        );
        assert!(disks.get("rw").unwrap().1.is_empty());
        assert_eq!(disks.check_ended(), Err(DiskError::Ending { name: "rw".into() }));
        drop(ring);
        let lease = disks.lease("rw", user("a")).unwrap();
        let _ring = lease.disk().storage();
        assert_eq!(disks.check_ended(), Ok(()));
        let _reader = open(&disks, "ro", &file(two.path(), true), None).storage();
        disks.lease("ro", user("a")).unwrap();
    }

    #[test]
    fn who_begins_to_use_a_disk_waits_for_its_change_of_capacity_and_no_other() {
        let disks = Disks::default();
        let spec = StorageSpec::Memory(MemoryOptions { size: Some(ByteSize(512)), ..MemoryOptions::default() });
        let [one, two] = ["one", "two"].map(|name| open(&disks, name, &spec, None));
        let changing = one.capacity_lock();
        drop(two.capacity_lock_within(Duration::ZERO).unwrap());
        let refused = one.capacity_lock_within(Duration::from_millis(5)).map(drop);
        assert_eq!(refused, Err(DiskError::Resizing { name: "one".into() }));
        drop(changing);
        drop(one.capacity_lock_within(Duration::ZERO).unwrap());
    }

    #[test]
    fn a_disk_that_has_failed_is_for_nobody_until_it_is_opened_again() {
        let words =
            "kind = 'sim'\nsize = '4M'\nwrite_latency = '50ms'\nintent_log = { size = '1M', dirty_memory = '1M' }";
        let spec: StorageSpec = toml::from_str(words).unwrap();
        let disks = Disks::default();
        let storage = open(&disks, "db", &spec, None).storage();
        let mut solo = engine::Solo::new().unwrap();
        testkit::storage::write(&mut solo, &*storage, 0, &[1; 4096]).unwrap();
        let mut flush = storage::Task::new();
        flush.begin(storage::Operation::Flush);
        let step = storage.start(&mut flush, engine::Token::request(0), &mut solo.io());
        assert!(matches!(step, storage::Step::Pending), "it is answered already");
        // As the end of a ring that fell, whose request was part of a commit.
        drop(flush);
        drop(storage);
        let line = disks.lease("db", user("a")).unwrap_err().to_string();
        assert!(line.starts_with("disk `db` has failed: ") && line.ends_with("; remove it and add it again"), "{line}");
        drop(disks.remove("db").unwrap());
        open(&disks, "db", &spec, None);
        disks.lease("db", user("a")).unwrap();
    }

    #[test]
    fn a_disk_in_use_is_not_removed_and_one_that_is_removed_is_closed() {
        let image = image();
        let disks = Disks::default();
        let spec = file(image.path(), false);
        open(&disks, "a", &spec, None);
        assert_eq!(disks.check_free("a"), Err(DiskError::Exists { name: "a".into() }));
        let lease = disks.lease("a", user("x")).unwrap();
        let line = disks.remove("a").unwrap_err().to_string();
        assert_eq!(line, "disk `a` is used by export `x`: remove the exports that use it first");
        drop(lease);
        // It stays open, and locked, without users.
        assert!(spec.open().is_err());
        drop(disks.remove("a").unwrap());
        opened(&spec);
        disks.check_free("a").unwrap();
        assert_eq!(disks.remove("a").unwrap_err(), DiskError::Missing { name: "a".into() });
    }

    #[test]
    fn a_disk_with_an_owner_goes_with_it_and_is_for_nobody_else() {
        let image = image();
        let disks = Disks::default();
        let spec = file(image.path(), true);
        open(&disks, "x", &spec, Some(user("x")));
        let line = disks.lease("x", user("y")).unwrap_err().to_string();
        assert!(line.starts_with("disk `x` belongs to export `x`, so export `y` cannot use it: "), "{line}");
        let lease = disks.lease("x", user("x")).unwrap();
        assert_eq!(disks.all().len(), 1);
        drop(lease);
        assert!(disks.all().is_empty());
        opened(&file(image.path(), false));
    }

    /// What happens to three disks of which the second is read-only.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        Add(usize),
        Lease(usize, usize),
        End(usize),
        Remove(usize),
    }

    fn any_act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..3_usize).prop_map(Act::Add),
            (0..3_usize, 0..4_usize).prop_map(|(disk, by)| Act::Lease(disk, by)),
            (0..8_usize).prop_map(Act::End),
            (0..3_usize).prop_map(Act::Remove),
        ]
    }

    proptest! {
        /// Against a list of users a disk, for those that are there.
        #[test]
        fn disks_and_leases_are_as_in_a_simple_model(acts in prop::collection::vec(any_act(), 0..60)) {
            let disks = Disks::default();
            let mut leases: Vec<(usize, Lease)> = Vec::new();
            let mut model: [Option<Vec<User>>; 3] = Default::default();
            let (name, is_shared) = (|disk: usize| format!("d{disk}"), |disk: usize| disk == 1);
            for act in acts {
                match act {
                    Act::Add(disk) => {
                        let options = MemoryOptions { size: Some(ByteSize(512)), read_only: is_shared(disk), ..MemoryOptions::default() };
                        let spec = StorageSpec::Memory(options);
                        let added = disks.add(Disk::new(name(disk), spec.clone(), opened(&spec), None)).is_ok();
                        prop_assert_eq!(added, model[disk].is_none());
                        model[disk].get_or_insert_default();
                    }
                    Act::Lease(disk, by) => {
                        let leased = disks.lease(&name(disk), user(&by.to_string()));
                        let may = model[disk].as_ref().is_some_and(|users| is_shared(disk) || users.is_empty());
                        prop_assert_eq!(leased.is_ok(), may);
                        if let (Ok(lease), Some(users)) = (leased, &mut model[disk]) {
                            users.push(user(&by.to_string()));
                            leases.push((disk, lease));
                        }
                    }
                    Act::End(at) if at < leases.len() => {
                        let (disk, lease) = leases.swap_remove(at);
                        let users = model[disk].as_mut().unwrap();
                        users.remove(users.iter().position(|user| *user == lease.user).unwrap());
                    }
                    Act::End(_) => {}
                    Act::Remove(disk) => {
                        let may = model[disk].as_ref().is_some_and(Vec::is_empty);
                        prop_assert_eq!(disks.remove(&name(disk)).is_ok(), may);
                        if may {
                            model[disk] = None;
                        }
                    }
                }
                for (disk, users) in model.iter().enumerate() {
                    let mut found = disks.get(&name(disk)).ok().map(|(_, users)| users);
                    let mut users = users.clone();
                    found.iter_mut().chain(&mut users).for_each(|users| users.sort());
                    prop_assert_eq!(found, users);
                }
            }
        }
    }

    #[test]
    fn a_description_says_what_was_changed() {
        let options = MemoryOptions { size: Some(ByteSize(4 << 20)), ..MemoryOptions::default() };
        let spec = StorageSpec::Memory(options);
        let with_log = |sync| {
            let mut spec = spec.clone();
            if let StorageSpec::Memory(memory) = &mut spec {
                memory.intent_log = Some(IntentLog { size: ByteSize(1 << 20), sync, dirty_memory: ByteSize(1 << 20) });
            }
            spec
        };
        let before = with_log(SyncMode::Standard);
        let disk = Disk::new("m", before.clone(), opened(&before), None);
        assert_eq!(disk.spec(), before);
        disk.storage().volume().unwrap().set_sync(SyncMode::Always);
        assert_eq!(disk.spec(), with_log(SyncMode::Always));

        let image = image();
        let before = file(image.path(), false);
        let disk = Disk::new("f", before.clone(), opened(&before), None);
        disk.storage().set_execution(Execution::Inline).unwrap();
        let StorageSpec::File(now) = disk.spec() else { panic!() };
        assert_eq!(now.execution, Execution::Inline);
    }
}
