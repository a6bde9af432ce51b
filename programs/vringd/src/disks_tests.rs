use super::*;
use control::Daemon as _;
use control::model::{ByteSize, Resize, Settings, SyncMode};
use engine::{Completion, Io, Token};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use storage::{Action, Custody, Description, Execution, Handed, OpenError, Step, Storage, Task};

/// A daemon without workers, and a directory for what it serves.
struct Place {
    daemon: Daemon,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let daemon = Daemon::new(1, 8, engine::Poll::Off, std::sync::mpsc::channel().0).unwrap();
        Place { daemon, dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn image(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    }

    fn disk(&self, name: &str, storage: &str) -> Result<api::Disk, ApiError> {
        self.daemon.disk_add(toml::from_str(&format!("name = '{name}'\nstorage = {{ {storage} }}")).unwrap())
    }

    fn export(&self, name: &str, behind: &str) -> Result<api::Export, ApiError> {
        let socket = self.path(&format!("{name}.sock"));
        let text = format!("name = '{name}'\nsocket = '{}'\nqueues = 1\n{behind}", socket.display());
        self.daemon.add_export(toml::from_str(&text).unwrap())
    }

    /// A SCSI device.
    fn device(&self, name: &str, more: &str) -> Result<api::Export, ApiError> {
        self.export(name, &format!("kind = 'scsi'\n{more}"))
    }

    fn add_unit(&self, device: &str, disk: &str, serial: Option<&str>) -> Result<api::Unit, ApiError> {
        let (lun, serial) = ("7".parse().unwrap(), serial.map(str::to_owned));
        self.daemon.unit_add(device, api::NewUnit { lun, disk: disk.to_owned(), serial })
    }

    fn unit_capacity(&self, device: &str) -> u64 {
        self.daemon.export(device).unwrap().luns[0].storage.capacity_bytes
    }

    fn capacities(&self, names: &[&str]) -> Vec<u64> {
        let of = |name: &&str| self.daemon.export(name).unwrap().storage.unwrap().capacity_bytes;
        names.iter().map(of).collect()
    }
}

fn file(path: &Path, read_only: bool) -> String {
    format!("kind = 'file', path = '{}', read_only = {read_only}", path.display())
}

fn size(bytes: u64) -> Resize {
    Resize { capacity_bytes: ByteSize(bytes) }
}

#[test]
fn exports_share_a_read_only_disk_and_it_stays_when_they_go() {
    let place = Place::new();
    let image = place.image("base.img");
    place.disk("base", &file(&image, true)).unwrap();
    for name in ["a", "b"] {
        let shown = place.export(name, "disk = 'base'").unwrap();
        assert_eq!((shown.disk.as_deref(), shown.storage.unwrap().target), (Some("base"), image.display().to_string()));
    }
    let users = ["a", "b"].map(|name| User::Export(name.into()));
    assert_eq!(place.daemon.disk("base").unwrap().users, users);
    let refused = place.daemon.disk_remove("base").unwrap_err();
    assert_eq!(refused.code(), "disk-in-use");
    assert_eq!(
        refused.to_string(),
        "disk `base` is used by export `a`, export `b`: remove the exports that use it first"
    );

    // As large as the file has become, for both.
    std::fs::File::options().write(true).open(&image).unwrap().set_len(3 << 20).unwrap();
    place.daemon.disk_resize("base", size(2 << 20)).unwrap();
    assert_eq!(place.capacities(&["a", "b"]), [2 << 20; 2]);
    // And by way of an export.
    place.daemon.resize("a", size(3 << 20)).unwrap();
    assert_eq!(place.capacities(&["a", "b"]), [3 << 20; 2]);
    assert_eq!(place.daemon.disk("base").unwrap().storage.capacity_bytes, 3 << 20);
    for (refused, line) in [
        (place.daemon.disk_resize("base", size(4 << 20)).map(drop), "disk `base` cannot do this: "),
        (place.daemon.resize("b", size(4 << 20)).map(drop), "export `b` cannot do this: "),
        (place.daemon.disk_resize("base", size(3 << 20 | 1)).map(drop), "capacity_bytes: "),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with(line), "{refused}");
    }

    place.daemon.remove_export("a", false).unwrap();
    assert_eq!(place.daemon.disk("base").unwrap().users, users[1..]);
    place.daemon.remove_export("b", false).unwrap();
    place.disk("again", &file(&image, false)).unwrap_err();
    place.daemon.disk_remove("base").unwrap();
    place.disk("again", &file(&image, false)).unwrap();
}

#[test]
fn a_second_writer_is_refused_by_both_names() {
    let place = Place::new();
    place.disk("rw", &file(&place.image("a.img"), false)).unwrap();
    place.export("a", "disk = 'rw'").unwrap();
    let refused = place.export("b", "disk = 'rw'").unwrap_err();
    assert_eq!(refused.field(), Some("disk"));
    assert_eq!(
        refused.to_string(),
        "disk: disk `rw` is writable and used by export `a`, so export `b` cannot use it: make the disk read-only, or \
         give each a disk of its own"
    );
    assert!(!place.path("b.sock").exists());
    place.daemon.remove_export("a", false).unwrap();
    place.export("b", "disk = 'rw'").unwrap();
    let refused = place.export("c", "disk = 'none'").unwrap_err().to_string();
    assert_eq!(refused, "disk: there is no disk `none`: add it first");
}

#[test]
fn scsi_devices_have_a_shared_disk_at_once_and_nothing_else_has_it() {
    let place = Place::new();
    let text = format!("name = 'd'\nstorage = {{ {} }}\nshared = true", file(&place.image("d.img"), false));
    assert!(place.daemon.disk_add(toml::from_str(&text).unwrap()).unwrap().shared);
    place.device("a", "luns = [{ lun = 0, disk = 'd' }]").unwrap();
    place.device("b", "luns = [{ lun = '3:1', disk = 'd' }]").unwrap();
    place.device("c", "").unwrap();
    place.add_unit("c", "d", None).unwrap();
    let shown = place.daemon.disk("d").unwrap();
    assert_eq!((shown.shared, shown.users), (true, ["a", "b", "c"].map(|name| User::Export(name.into())).to_vec()));
    let refused = place.export("blk", "disk = 'd'").unwrap_err();
    assert_eq!(refused.field(), Some("disk"));
    assert!(
        refused.to_string().starts_with("disk: disk `d` is shared, and only SCSI devices may have it"),
        "{refused}"
    );

    // As large for all of them, by whichever way it is asked for.
    place.daemon.disk_resize("d", size(2 << 20)).unwrap();
    assert_eq!(["a", "b", "c"].map(|name| place.unit_capacity(name)), [2 << 20; 3]);

    // The same wherever it is.
    for (more, field, line) in [
        ("luns = [{ lun = 0, disk = 'd', serial = 'x' }]", "luns[0].serial", "is `x`, and `d` in export `a`"),
        ("block_size = 4096\nluns = [{ lun = 0, disk = 'd' }]", "block_size", "is 4096, and 512 in export `a`"),
        (
            "write_cache = 'guest'\nluns = [{ lun = 0, disk = 'd' }]",
            "write_cache",
            "is `guest`, and `on` in export `a`",
        ),
    ] {
        let refused = place.device("e", more).unwrap_err();
        assert_eq!(refused.field(), Some(field), "{refused}");
        assert!(refused.to_string().starts_with(&format!("{field}: {line}")), "{refused}");
    }
    place.device("e", "write_cache = 'off'").unwrap();
    let refused = place.add_unit("e", "d", None).unwrap_err();
    assert_eq!(refused.field(), Some("write_cache"));
    place.device("f", "").unwrap();
    assert_eq!(place.add_unit("f", "d", Some("x")).unwrap_err().field(), Some("serial"));
    assert_eq!(place.daemon.disk("d").unwrap().users.len(), 3);

    // It is there until all have given it back, and then has other terms.
    place.daemon.remove_export("a", false).unwrap();
    place.daemon.unit_remove("c", "7".parse().unwrap()).unwrap();
    let refused = place.daemon.disk_remove("d").unwrap_err().to_string();
    assert_eq!(refused, "disk `d` is used by export `b`: remove the exports that use it first");
    place.daemon.remove_export("b", false).unwrap();
    place.add_unit("f", "d", Some("x")).unwrap();
}

#[test]
fn nothing_comes_behind_a_shared_disk_on_which_a_device_has_left_requests() {
    let place = Place::new();
    let text = format!("name = 'd'\nstorage = {{ {} }}\nshared = true", file(&place.image("d.img"), false));
    place.daemon.disk_add(toml::from_str(&text).unwrap()).unwrap();
    place.device("a", "luns = [{ lun = 0, disk = 'd' }]").unwrap();
    place.device("b", "").unwrap();
    let are_left = Arc::new(());
    let watched = Arc::downgrade(&are_left);
    let gone = place.daemon.lease_by_name("d", &User::Export("gone".into()), Role::Unit).unwrap();
    gone.end_with_requests(Box::new(move || watched.strong_count() > 0));
    let why = "requests of an earlier user of the shared disk `d` are still under way beside export `a`: try again when its storage has \
               answered them, or restart the daemon if that lasts";
    let to = place.path("copy.img");
    let job = format!("kind = 'backup'\ndisks = [{{ disk = 'd', target = '{}' }}]", to.display());
    let refused = place.daemon.job_add(toml::from_str(&job).unwrap()).unwrap_err();
    assert_eq!((refused.code(), refused.to_string().as_str()), ("disk-in-use", why));
    assert!(!to.exists());
    let refused = place.add_unit("b", "d", None).unwrap_err().to_string();
    assert_eq!(refused, format!("disk: {why}"));
    drop(are_left);
    place.add_unit("b", "d", None).unwrap();
    place.device("c", "luns = [{ lun = 0, disk = 'd' }]").unwrap();
}

#[test]
fn a_second_scsi_device_is_told_how_a_disk_is_shared() {
    let place = Place::new();
    place.disk("d", &file(&place.image("d.img"), false)).unwrap();
    place.device("a", "luns = [{ lun = 0, disk = 'd' }]").unwrap();
    let refused = place.device("b", "luns = [{ lun = 0, disk = 'd' }]").unwrap_err();
    assert_eq!(refused.field(), Some("luns[0].disk"));
    assert!(refused.to_string().ends_with("describe the disk with `shared = true`"), "{refused}");
    place.device("b", "").unwrap();
    assert_eq!(place.add_unit("b", "d", None).unwrap_err().field(), Some("disk"));
}

#[test]
fn a_disk_of_an_exports_own_comes_and_goes_with_it() {
    let place = Place::new();
    let image = place.image("a.img");
    let own = format!("storage = {{ {} }}", file(&image, true));
    assert_eq!(place.export("a", &own).unwrap().disk, None);
    let shown = place.daemon.disk("a").unwrap();
    let owner = User::Export("a".into());
    assert_eq!((shown.owner, shown.users), (Some(owner.clone()), vec![owner]));
    let refused = place.export("b", "disk = 'a'").unwrap_err();
    assert_eq!(refused.field(), Some("disk"));
    assert!(refused.to_string().contains("belongs to export `a`, so export `b` cannot use it"), "{refused}");
    assert_eq!(place.daemon.disk_remove("a").unwrap_err().code(), "disk-in-use");
    assert_eq!(place.disk("a", "kind = 'null', size = '1M'").unwrap_err().code(), "disk-exists");
    place.daemon.remove_export("a", false).unwrap();
    assert_eq!(place.daemon.disk("a").unwrap_err().code(), "no-such-disk");
    place.disk("a", &file(&image, false)).unwrap();
    // The name is that of a disk now, and the export's own would be another.
    let refused = place.export("a", "storage = { kind = 'null', size = '1M' }").unwrap_err();
    assert_eq!(refused.field(), Some("name"));
    place.export("a", "disk = 'a'").unwrap();
}

#[test]
fn an_export_that_cannot_be_made_leaves_no_disk_behind() {
    let place = Place::new();
    let image = place.image("a.img");
    std::fs::write(place.path("a.sock"), "no socket").unwrap();
    let own = format!("storage = {{ {} }}", file(&image, false));
    assert_eq!(place.export("a", &own).unwrap_err().field(), Some("socket"));
    assert!(place.daemon.disks().unwrap().is_empty());
    place.disk("a", &file(&image, false)).unwrap();
    assert_eq!(place.export("a", "disk = 'a'").unwrap_err().field(), Some("socket"));
    assert!(place.daemon.disk("a").unwrap().users.is_empty());
}

#[test]
fn what_is_changed_by_an_export_is_the_disks() {
    let place = Place::new();
    place.disk("m", "kind = 'memory', size = '4M', intent_log = { size = '1M', dirty_memory = '1M' }").unwrap();
    place.export("a", "disk = 'm'").unwrap();
    let settings = Settings { sync: Some(SyncMode::Always), ..Settings::default() };
    place.daemon.change("a", settings).unwrap();
    place.daemon.remove_export("a", false).unwrap();
    place.export("b", "disk = 'm'").unwrap();
    let storage = place.daemon.export("b").unwrap().storage.unwrap();
    assert_eq!(storage.volume.unwrap().sync, SyncMode::Always);
}

#[test]
fn a_guest_sees_whole_blocks_of_a_disk() {
    let place = Place::new();
    place.disk("n", "kind = 'null', size = '1048064'").unwrap();
    place.export("a", "disk = 'n'\nblock_size = 4096").unwrap();
    assert_eq!(place.capacities(&["a"]), [1_048_064 / 4096 * 4096]);
    let refused = place.daemon.disk_resize("n", size((1 << 20) + 512)).unwrap_err();
    assert_eq!(refused.field(), Some("capacity_bytes"));
    place.daemon.disk_resize("n", size(2 << 20)).unwrap();
    assert_eq!(place.capacities(&["a"]), [2 << 20]);
}

#[test]
fn the_end_of_the_daemon_closes_everything() {
    let place = Place::new();
    let (one, two) = (place.image("1.img"), place.image("2.img"));
    place.disk("d", &file(&one, false)).unwrap();
    place.export("a", "disk = 'd'").unwrap();
    place.export("b", &format!("storage = {{ {} }}", file(&two, false))).unwrap();
    place.daemon.end_all();
    assert!(place.daemon.disks().unwrap().is_empty() && place.daemon.exports().unwrap().is_empty());
    place.disk("1", &file(&one, false)).unwrap();
    place.disk("2", &file(&two, false)).unwrap();
}

#[test]
fn an_export_whose_disk_hangs_goes_when_that_answers() {
    let place = Place::new();
    let (one, two) = (place.image("1.img"), place.image("2.img"));
    place.disk("2", &file(&two, false)).unwrap();
    place.export("b", "disk = '2'").unwrap();
    place.export("a", &format!("storage = {{ {} }}", file(&one, false))).unwrap();
    let hangs = Arc::new(Hangs(AtomicBool::new(true), place.daemon.disks.get("2").unwrap().0.storage()));
    // Of a disk of its own name nothing ends with the export.
    for name in ["a", "2"] {
        place.daemon.disks.get(name).unwrap().0.replace(None, hangs.clone());
    }
    place.daemon.remove_export("b", false).unwrap();
    for _ in 0..2 {
        assert_eq!(place.daemon.remove_export("a", false).unwrap_err().code(), "failed");
        let why = place.daemon.export("a").unwrap().last_error.unwrap();
        assert_eq!(why, export::ExportError::Undrained.to_string());
    }
    // An answer is one, whatever it says.
    hangs.0.store(false, Ordering::Relaxed);
    place.daemon.remove_export("a", false).unwrap();
    assert!(place.daemon.exports().unwrap().is_empty());
}

/// A disk that changes hands, and whose device does not answer.
struct Hangs(AtomicBool, Arc<dyn Storage>);

impl Storage for Hangs {
    fn describe(&self) -> Description {
        self.1.describe()
    }

    fn capacity_bytes(&self) -> u64 {
        1 << 20
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn resize(&self, _capacity_bytes: u64) -> Result<(), StorageError> {
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Ok(Handed::empty(1 << 20))
    }

    fn set_execution(&self, _execution: Execution) -> Result<(), StorageError> {
        Ok(())
    }

    fn custody(&self) -> Option<&dyn Custody> {
        Some(self)
    }
}

impl Custody for Hangs {
    fn take(&self, _is_wanted: &dyn Fn() -> bool) -> Result<Arc<dyn Storage>, OpenError> {
        Err(OpenError::NothingHanded)
    }

    fn give_up(&self, _patience: Duration) -> Result<bool, StorageError> {
        let kind =
            if self.0.load(Ordering::Relaxed) { std::io::ErrorKind::TimedOut } else { std::io::ErrorKind::Other };
        Err(StorageError::Io { action: Action::Write, source: kind.into() })
    }

    fn held(&self) -> Option<Arc<dyn Storage>> {
        None
    }

    fn is_held(&self) -> bool {
        true
    }

    fn is_changing(&self) -> bool {
        false
    }

    fn is_used(&self) -> bool {
        false
    }
}
