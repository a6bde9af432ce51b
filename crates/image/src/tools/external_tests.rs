//! External snapshots of an image that is served here; QEMU's opinion is asked for in the room `tests`.

use super::ExternalSnapshot;
use crate::features;
use crate::testing::New;
use crate::{Qcow2Options, Qcow2Storage};
use engine::Solo;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::{NullOptions, Storage, StorageError, open};
use tempfile::TempDir;
use testkit::storage as kit;
use values::{ByteSize, LogFile};

const SIZE: u64 = 4 << 20;

struct Served {
    directory: TempDir,
    options: Qcow2Options,
    storage: Arc<dyn Storage>,
    solo: Solo,
    oracle: Vec<u8>,
}

impl Served {
    fn new(new: &New) -> Served {
        let directory = TempDir::new_in(kit::shm()).unwrap();
        let path = directory.path().join("disk.qcow2");
        fs::write(&path, new.image().unwrap()).unwrap();
        let options = Qcow2Options::new(path);
        let storage = open(&options).unwrap();
        Served { directory, options, storage, solo: Solo::new().unwrap(), oracle: vec![0; SIZE as usize] }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&mut self, offset: usize, byte: u8, len: usize) -> Result<(), StorageError> {
        self.oracle[offset..offset + len].fill(byte);
        kit::write(&mut self.solo, &*self.storage, offset as u64, &self.oracle[offset..offset + len])
    }

    fn reads(&mut self, storage: &dyn Storage, oracle: &[u8]) {
        kit::assert_same(&kit::read(&mut self.solo, storage, 0, oracle.len()), oracle, 0);
    }

    fn prepare(&self, to: &Path) -> Result<ExternalSnapshot, String> {
        ExternalSnapshot::prepare(&self.options, self.storage.clone(), to).map_err(|error| error.to_string())
    }

    fn snapshot(&mut self, to: &Path) {
        let mut snapshot = self.prepare(to).unwrap();
        self.storage = snapshot.put().unwrap();
        snapshot.keep();
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn reader(path: &Path) -> Arc<dyn Storage> {
    open(&Qcow2Options { read_only: true, ..Qcow2Options::new(path) }).unwrap()
}

#[test]
fn the_disk_goes_on_and_what_it_held_stays() {
    for incompatible in [0, features::EXTENDED_L2] {
        let mut served = Served::new(&New { size_bytes: SIZE, incompatible, ..New::default() });
        fs::set_permissions(&served.options.path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut states = Vec::new();
        for number in 0..3 {
            served.write(number * 100_352, 1 + number as u8, 200_704).unwrap();
            states.push(served.oracle.clone());
            let to = served.at(&format!("old-{number}.qcow2"));
            served.snapshot(&to);
            assert_eq!(served.storage.describe().target, served.options.path.display().to_string());
        }
        served.write(0, 9, 512).unwrap();
        let (now, storage) = (served.oracle.clone(), served.storage.clone());
        served.reads(&*storage, &now);
        drop(storage);
        assert_eq!(fs::metadata(&served.options.path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(served.names(), ["disk.qcow2", "old-0.qcow2", "old-1.qcow2", "old-2.qcow2"]);
        // Others may read what is not written any more, and nobody may write it.
        for (number, state) in states.iter().enumerate() {
            let path = served.at(&format!("old-{number}.qcow2"));
            served.reads(&*reader(&path), state);
            let error = open(&Qcow2Options::new(&path)).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("lets nobody write"), "{error}");
        }
        // The image is somebody's as before.
        let error = open(&served.options).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("for writing") || error.contains("lets nobody write"), "{error}");
        // By its name it is the disk, for this program, the next one and whoever comes after a kill.
        let handed = served.storage.hand_over().unwrap();
        served.storage = storage::Kind::adopt(&served.options, handed).unwrap();
        served.write(512, 8, 512).unwrap();
        let now = served.oracle.clone();
        served.storage = open(&NullOptions { size: ByteSize(512), ..NullOptions::default() }).unwrap();
        served.reads(&*reader(&served.options.path), &now);
    }
}

#[test]
fn one_that_is_not_kept_never_was() {
    let mut served = Served::new(&New { size_bytes: SIZE, ..New::default() });
    served.write(0, 1, 65_536).unwrap();
    let inode = fs::metadata(&served.options.path).unwrap().ino();
    let to = served.at("old");
    drop(served.prepare(&to).unwrap());
    assert_eq!(served.names(), ["disk.qcow2"]);
    // It had come to be behind another one, of which nothing is left.
    let mut snapshot = served.prepare(&to).unwrap();
    let overlay = snapshot.put().unwrap();
    assert_ne!(fs::metadata(&served.options.path).unwrap().ino(), inode);
    drop((overlay, snapshot));
    assert_eq!(served.names(), ["disk.qcow2"]);
    assert_eq!(fs::metadata(&served.options.path).unwrap().ino(), inode);
    // It needs no other name for that than the one it has.
    let mut snapshot = served.prepare(&to).unwrap();
    let hidden = served.names().into_iter().find(|name| name.starts_with('.')).unwrap();
    drop(snapshot.put().unwrap());
    fs::create_dir(served.at(&hidden)).unwrap();
    drop(snapshot);
    fs::remove_dir(served.at(&hidden)).unwrap();
    assert_eq!(served.names(), ["disk.qcow2"]);
    assert_eq!(fs::metadata(&served.options.path).unwrap().ino(), inode);
    served.write(4096, 2, 4096).unwrap();
    let error = open(&served.options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("for writing") || error.contains("lets nobody write"), "{error}");
    let now = served.oracle.clone();
    served.snapshot(&to);
    served.reads(&*reader(&to), &now);
}

/// An intent log goes on in front of the new image, which has to say so.
#[test]
fn a_name_that_leaves_a_log_no_room_for_its_mark_is_refused() {
    let mut served = Served::new(&New { size_bytes: SIZE, cluster_bits: 9, ..New::default() });
    let below = served.at(&"d".repeat(200));
    fs::create_dir(&below).unwrap();
    let (long, short) = (below.join("n".repeat(90)), served.at("old"));
    drop(served.prepare(&long).unwrap());
    served.options.log = Some(LogFile::new(served.at("log")));
    let before = served.names();
    let error = served.prepare(&long).err().unwrap();
    assert!(error.starts_with(long.to_str().unwrap()) && error.contains("no room for the mark"), "{error}");
    assert_eq!((served.names(), fs::read_dir(&below).unwrap().count()), (before, 0));
    let mut snapshot = served.prepare(&short).unwrap();
    let overlay = snapshot.put().unwrap();
    overlay.marked().unwrap().check_log_mark().unwrap();
}

#[test]
fn names_lead_where_they_led() {
    // Opened through a link into another directory, where there is something of the other name, too.
    let mut served = Served::new(&New { size_bytes: SIZE, ..New::default() });
    fs::create_dir(served.at("real")).unwrap();
    fs::rename(&served.options.path, served.at("real/disk.qcow2")).unwrap();
    std::os::unix::fs::symlink("real/disk.qcow2", &served.options.path).unwrap();
    fs::write(served.at("old"), New { size_bytes: SIZE, ..New::default() }.image().unwrap()).unwrap();
    served.write(0, 7, 65_536).unwrap();
    let (to, path) = (served.at("real/old"), served.options.path.clone());
    served.snapshot(&to);
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    let oracle = served.oracle.clone();
    served.storage = open(&NullOptions { size: ByteSize(512), ..NullOptions::default() }).unwrap();
    served.reads(&*reader(&path), &oracle);

    // A colon is none of a protocol.
    let mut served = Served::new(&New { size_bytes: SIZE, ..New::default() });
    served.write(0, 7, 512).unwrap();
    let to = served.at("a:b");
    served.snapshot(&to);
    let (oracle, path) = (served.oracle.clone(), served.options.path.clone());
    served.storage = open(&NullOptions { size: ByteSize(512), ..NullOptions::default() }).unwrap();
    served.reads(&*reader(&path), &oracle);

    // What is behind it is found from where it is.
    let mut base = Served::new(&New { size_bytes: SIZE, ..New::default() });
    base.storage = open(&NullOptions { size: ByteSize(512), ..NullOptions::default() }).unwrap();
    let new = New { size_bytes: SIZE, backing: Some((b"base".to_vec(), "qcow2")), ..New::default() };
    fs::rename(&base.options.path, base.at("base")).unwrap();
    fs::write(&base.options.path, new.image().unwrap()).unwrap();
    fs::create_dir(base.at("below")).unwrap();
    let storage = open(&base.options).unwrap();
    let prepare = |to: &str| ExternalSnapshot::prepare(&base.options, storage.clone(), &base.at(to));
    let error = prepare("below/old").err().unwrap().to_string();
    assert!(error.contains("`base`") && error.contains("own directory"), "{error}");
    prepare("old").unwrap();
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let served = Served::new(&New { size_bytes: SIZE, ..New::default() });
    let refused = |to: &Path, part: &str| {
        let error = served.prepare(to).err().unwrap();
        assert!(error.contains(part) && error.contains(to.parent().unwrap().to_str().unwrap()), "{error}");
        assert!(served.names().iter().all(|name| !name.starts_with('.')), "{:?}", served.names());
    };
    fs::write(served.at("there"), "").unwrap();
    refused(&served.at("there"), "exists");
    fs::hard_link(&served.options.path, served.at("again")).unwrap();
    refused(&served.at("again"), "cut off");
    refused(&served.at("missing/old"), "missing");
    fs::create_dir(served.at("below")).unwrap();
    drop(served.prepare(&served.at("below/old")).unwrap());
    let elsewhere = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    if elsewhere.path().metadata().unwrap().dev() != served.directory.path().metadata().unwrap().dev() {
        refused(&elsewhere.path().join("old"), "another file system");
    }
    // Where images behind it may not lie.
    let outside = TempDir::new_in(kit::shm()).unwrap();
    let error = served.prepare(&outside.path().join("old")).err().unwrap();
    assert!(error.contains("allow"), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    refused(&served.options.path, "own name");
    refused(&served.at("below/"), "no name of a file");
    // Not what somebody has put in its place, before or meanwhile.
    let moved = served.at("moved");
    fs::rename(&served.options.path, &moved).unwrap();
    fs::copy(&moved, &served.options.path).unwrap();
    refused(&served.at("old"), "was replaced");
    fs::rename(&moved, &served.options.path).unwrap();
    let mut snapshot = served.prepare(&served.at("old")).unwrap();
    fs::remove_file(&served.options.path).unwrap();
    fs::write(&served.options.path, "precious").unwrap();
    let error = snapshot.put().err().unwrap().to_string();
    assert!(error.contains("was replaced"), "{error}");
    drop(snapshot);
    assert_eq!(fs::read(&served.options.path).unwrap(), b"precious");
    let read_only = Served::new(&New { size_bytes: SIZE, ..New::default() });
    let options = Qcow2Options { read_only: true, ..read_only.options.clone() };
    let error = ExternalSnapshot::prepare(&options, read_only.storage.clone(), &read_only.at("old")).err().unwrap();
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(read_only.storage.as_any().unwrap().is::<Qcow2Storage>());
}
