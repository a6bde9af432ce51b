use super::*;
use crate::{FileOptions, MemoryOptions};
use proptest::prelude::*;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    let first = disks.lease("rw", user("a"), Role::Whole).unwrap();
    let line = disks.lease("rw", user("b"), Role::Whole).unwrap_err().to_string();
    assert_eq!(
        line,
        "disk `rw` is writable and used by export `a`, so export `b` cannot use it: make the disk read-only, or give \
         each a disk of its own"
    );
    drop(first);
    drop(disks.lease("rw", user("b"), Role::Whole).unwrap());
    let both = ["a", "b"].map(|name| disks.lease("ro", user(name), Role::Whole).unwrap());
    assert!(Arc::ptr_eq(both[0].disk(), both[1].disk()));
    assert_eq!(disks.get("ro").unwrap().1, [user("a"), user("b")]);
}

#[test]
fn a_shared_disk_is_for_scsi_devices_alone() {
    let (one, two) = (image(), image());
    let disks = Disks::default();
    let shared = |name: &str, spec: StorageSpec| {
        disks.add(Disk::new(name, spec.clone(), opened(&spec), None).shared(true)).unwrap()
    };
    assert_eq!(shared("rw", file(one.path(), false)).sharing(), Sharing::Units);
    assert_eq!(shared("ro", file(two.path(), true)).sharing(), Sharing::Units);
    for name in ["rw", "ro"] {
        let line = disks.lease(name, user("blk"), Role::Whole).unwrap_err().to_string();
        assert_eq!(
            line,
            format!(
                "disk `{name}` is shared, and only SCSI devices may have it, so export `blk` cannot use it: reservations \
                 would not hold for others; make that a SCSI device (`kind = \"scsi\"`), or leave `shared` out of the disk"
            )
        );
        let both = ["a", "b"].map(|name_of| disks.lease(name, user(name_of), Role::Unit).unwrap());
        assert!(Arc::ptr_eq(both[0].disk(), both[1].disk()));
        assert_eq!(disks.get(name).unwrap().1, [user("a"), user("b")]);
        let line = disks.remove(name).unwrap_err().to_string();
        assert_eq!(
            line,
            format!("disk `{name}` is used by export `a`, export `b`: remove the exports that use it first")
        );
    }
    let spec = StorageSpec::Memory(MemoryOptions { size: Some(ByteSize(512)), ..MemoryOptions::default() });
    open(&disks, "own", &spec, None);
    let _first = disks.lease("own", user("a"), Role::Unit).unwrap();
    let line = disks.lease("own", user("b"), Role::Unit).unwrap_err().to_string();
    assert_eq!(
        line,
        "disk `own` is writable and used by export `a`, so export `b` cannot use it: make the disk read-only, give each \
         a disk of its own, or, where both are SCSI devices of guests that know of each other, describe the disk with \
         `shared = true`"
    );
}

#[test]
fn requests_that_a_user_of_a_shared_disk_leaves_keep_others_away_until_they_have_ended() {
    let image = image();
    let disks = Disks::default();
    let spec = file(image.path(), false);
    let disk = disks.add(Disk::new("d", spec.clone(), opened(&spec), None).shared(true)).unwrap();
    let [stays, goes] = ["a", "b"].map(|name| disks.lease("d", user(name), Role::Unit).unwrap());
    let (ring, left) = (disk.storage(), disk.storage());
    assert_eq!(disks.check_settled("d"), Ok(()));
    let are_left = Arc::new(());
    let watched = Arc::downgrade(&are_left);
    goes.end_with_requests(Box::new(move || watched.strong_count() > 0));
    let why = DiskError::Left { name: "d".into(), users: "export `a`".into() };
    assert_eq!(disks.check_settled("d"), Err(why.clone()));
    assert_eq!(disks.check_ended(), Err(why.clone()));
    assert_eq!(disks.lease("d", user("c"), Role::Unit).unwrap_err(), why);
    drop(are_left);
    assert_eq!(disks.check_settled("d"), Ok(()));
    let other = disks.lease("d", user("c"), Role::Unit).unwrap();
    drop((ring, stays, other));
    assert_eq!(disks.check_settled("d"), Err(DiskError::Ending { name: "d".into() }));
    drop(left);
    assert_eq!(disks.check_settled("d"), Ok(()));
    let _again = ["c", "d"].map(|name| disks.lease("d", user(name), Role::Unit).unwrap());
    assert_eq!(disks.check_ended(), Ok(()));
}

#[test]
fn a_writable_disk_is_for_nobody_while_a_ring_of_its_last_user_is_left() {
    let (one, two) = (image(), image());
    let disks = Disks::default();
    let ring = open(&disks, "rw", &file(one.path(), false), None).storage();
    let line = disks.lease("rw", user("a"), Role::Whole).unwrap_err().to_string();
    assert_eq!(
        line,
        "requests of an earlier user of disk `rw` are still under way: try again when its storage has answered them, or \
         restart the daemon if that lasts"
    );
    assert!(disks.get("rw").unwrap().1.is_empty());
    assert_eq!(disks.check_ended(), Err(DiskError::Ending { name: "rw".into() }));
    drop(ring);
    let lease = disks.lease("rw", user("a"), Role::Whole).unwrap();
    let _ring = lease.disk().storage();
    assert_eq!(disks.check_ended(), Ok(()));
    let _reader = open(&disks, "ro", &file(two.path(), true), None).storage();
    disks.lease("ro", user("a"), Role::Whole).unwrap();
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
    let words = "kind = 'sim'\nsize = '4M'\nwrite_latency = '50ms'\nintent_log = { size = '1M', dirty_memory = '1M' }";
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
    let line = disks.lease("db", user("a"), Role::Whole).unwrap_err().to_string();
    assert!(line.starts_with("disk `db` has failed: ") && line.ends_with("; remove it and add it again"), "{line}");
    drop(disks.remove("db").unwrap());
    open(&disks, "db", &spec, None);
    disks.lease("db", user("a"), Role::Whole).unwrap();
}

#[test]
fn a_disk_in_use_is_not_removed_and_one_that_is_removed_is_closed() {
    let image = image();
    let disks = Disks::default();
    let spec = file(image.path(), false);
    open(&disks, "a", &spec, None);
    assert_eq!(disks.check_free("a"), Err(DiskError::Exists { name: "a".into() }));
    let lease = disks.lease("a", user("x"), Role::Whole).unwrap();
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
    let line = disks.lease("x", user("y"), Role::Whole).unwrap_err().to_string();
    assert!(line.starts_with("disk `x` belongs to export `x`, so export `y` cannot use it: "), "{line}");
    let lease = disks.lease("x", user("x"), Role::Whole).unwrap();
    assert_eq!(disks.all().len(), 1);
    drop(lease);
    assert!(disks.all().is_empty());
    opened(&file(image.path(), false));
}

/// What happens to four disks, of which the second is read-only, the third is shared, and the last is both.
#[derive(Clone, Copy, Debug)]
enum Act {
    Add(usize),
    Lease(usize, usize, Role),
    /// And whether requests may be left.
    End(usize, bool),
    /// Of what was left there.
    Answer(usize),
    Remove(usize),
}

fn any_act() -> impl Strategy<Value = Act> {
    let role = prop_oneof![Just(Role::Unit), Just(Role::Whole)];
    prop_oneof![
        (0..4_usize).prop_map(Act::Add),
        (0..4_usize, 0..4_usize, role).prop_map(|(disk, by, role)| Act::Lease(disk, by, role)),
        (0..8_usize, prop::bool::weighted(0.2)).prop_map(|(at, leaves)| Act::End(at, leaves)),
        (0..4_usize).prop_map(Act::Answer),
        (0..4_usize).prop_map(Act::Remove),
    ]
}

/// A disk that is there: its users, and what those have left who have gone.
#[derive(Default)]
struct Model {
    users: Vec<User>,
    left: Arc<AtomicUsize>,
}

impl Model {
    fn is_left(&self) -> bool {
        !self.users.is_empty() && self.left.load(Ordering::Relaxed) > 0
    }
}

proptest! {
    /// Against a list of users a disk, for those that are there.
    #[test]
    fn disks_and_leases_are_as_in_a_simple_model(acts in prop::collection::vec(any_act(), 0..60)) {
        let disks = Disks::default();
        let mut leases: Vec<(usize, Lease)> = Vec::new();
        let mut model: [Option<Model>; 4] = Default::default();
        let name = |disk: usize| format!("d{disk}");
        let (is_read_only, is_shared) = (|disk: usize| disk % 2 == 1, |disk: usize| disk >= 2);
        for act in acts {
            match act {
                Act::Add(disk) => {
                    let options = MemoryOptions { size: Some(ByteSize(512)), read_only: is_read_only(disk), ..MemoryOptions::default() };
                    let spec = StorageSpec::Memory(options);
                    let new = Disk::new(name(disk), spec.clone(), opened(&spec), None).shared(is_shared(disk));
                    let added = disks.add(new).is_ok();
                    prop_assert_eq!(added, model[disk].is_none());
                    model[disk].get_or_insert_default();
                }
                Act::Lease(disk, by, role) => {
                    let leased = disks.lease(&name(disk), user(&by.to_string()), role);
                    let may = model[disk].as_ref().is_some_and(|model| match is_shared(disk) {
                        true => role == Role::Unit && (is_read_only(disk) || !model.is_left()),
                        false => is_read_only(disk) || model.users.is_empty(),
                    });
                    prop_assert_eq!(leased.is_ok(), may);
                    if let (Ok(lease), Some(Model { users, .. })) = (leased, &mut model[disk]) {
                        users.push(user(&by.to_string()));
                        leases.push((disk, lease));
                    }
                }
                Act::End(at, leaves) if at < leases.len() => {
                    let (disk, lease) = leases.swap_remove(at);
                    let Model { users, left } = model[disk].as_mut().unwrap();
                    users.remove(users.iter().position(|user| *user == lease.user).unwrap());
                    if leaves {
                        left.fetch_add(1, Ordering::Relaxed);
                        let left = left.clone();
                        lease.end_with_requests(Box::new(move || left.load(Ordering::Relaxed) > 0));
                    } else {
                        drop(lease);
                    }
                }
                Act::Answer(disk) => {
                    if let Some(model) = &model[disk] {
                        model.left.store(0, Ordering::Relaxed);
                    }
                }
                Act::End(..) => {}
                Act::Remove(disk) => {
                    let may = model[disk].as_ref().is_some_and(|model| model.users.is_empty());
                    prop_assert_eq!(disks.remove(&name(disk)).is_ok(), may);
                    if may {
                        model[disk] = None;
                    }
                }
            }
            for (disk, model) in model.iter().enumerate() {
                let mut found = disks.get(&name(disk)).ok().map(|(_, users)| users);
                let mut users = model.as_ref().map(|model| model.users.clone());
                found.iter_mut().chain(&mut users).for_each(|users| users.sort());
                prop_assert_eq!(found, users);
                let is_left = model.as_ref().is_some_and(|model| !is_read_only(disk) && model.is_left());
                prop_assert_eq!(disks.check_settled(&name(disk)).is_ok(), model.is_some() && !is_left);
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
