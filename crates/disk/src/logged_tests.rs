//! Intent logs in front of qcow2 images: opened as a person describes them, on files.

use super::*;
use engine::Solo;
use image::tools::{self, Backing};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use storage::{Execution, Operation, StorageError, Task};
use testkit::storage as kit;
use values::{ByteSize, LogFile, MemoryFile};

const SIZE: u64 = 1 << 20;

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Bench {
        let bench = Bench(tempfile::TempDir::new_in(kit::shm()).unwrap());
        bench.make("image", None);
        bench.make_log("log");
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn make(&self, name: &str, backing: Option<&str>) {
        let path = self.at(name);
        let backing = backing.map(|backing| Backing { name: self.at(backing), is_qcow2: true });
        let options = tools::CreateOptions {
            size_bytes: backing.is_none().then_some(SIZE),
            cluster_bytes: 4096,
            refcount_bits: 16,
            subclusters: false,
            backing,
            force: true,
        };
        tools::create(&path, &options).unwrap();
    }

    fn make_log(&self, name: &str) {
        volume::tools::create_log(&self.log(name), 64 << 10, true, false, "a test", &mut |_| {}).unwrap();
    }

    fn log(&self, name: &str) -> LogFile {
        LogFile {
            dirty_memory: ByteSize(1 << 20),
            memory_file: MemoryFile::Path(self.at("memory")),
            ..LogFile::new(self.at(name))
        }
    }

    fn spec(&self, image: &str, log: Option<&str>) -> StorageSpec {
        StorageSpec::Qcow2(Qcow2Options { log: log.map(|log| self.log(log)), ..Qcow2Options::new(self.at(image)) })
    }

    fn open(&self, image: &str, log: Option<&str>) -> Result<Arc<dyn Storage>, String> {
        let opened = self.spec(image, log).open().and_then(Opened::start);
        opened.map_err(|error| error.to_string())
    }

    /// Why it cannot be opened; what was tried has changed nothing.
    fn refusal(&self, image: &str, log: Option<&str>) -> String {
        let bytes = || (std::fs::read(self.at(image)).unwrap(), log.map(|log| std::fs::read(self.at(log)).unwrap()));
        let before = bytes();
        let Err(error) = self.open(image, log) else { panic!("{image} was opened with {log:?}") };
        assert!(before == bytes(), "{error}");
        assert!(!error.contains('\n'), "{error}");
        error
    }

    /// What a kill leaves while the disk is served, under other names; the memory file is of the machine, and stays where it is.
    fn copy(&self, pairs: &[(&str, &str)]) {
        for (from, to) in pairs {
            std::fs::copy(self.at(from), self.at(to)).unwrap();
        }
    }

    fn is_marked(&self, image: &str) -> bool {
        tools::info(&self.at(image)).unwrap().intent_log.is_some()
    }
}

fn write(storage: &dyn Storage, byte: u8) {
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, storage, 0, &[byte; 512]).unwrap();
    let mut task = Task::new();
    task.begin(Operation::Flush);
    kit::run(&mut solo, storage, &mut task).unwrap();
}

fn first(storage: &dyn Storage) -> u8 {
    kit::read(&mut Solo::new().unwrap(), storage, 0, 512)[0]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    /// Of small clusters over an image with nothing; closed, the image alone has all of it, and is sound.
    #[test]
    fn an_image_with_a_log_reads_what_was_written(
        history in kit::moves(vec![Execution::Auto, Execution::Inline, Execution::Uring], SIZE / 512),
        always: bool, over: bool,
    ) {
        let bench = Bench::new();
        bench.make("over", Some("image"));
        let image = if over { "over" } else { "image" };
        // What has a backing file does not grow.
        let history: Vec<_> = history.into_iter().filter(|step| !(over && matches!(step, kit::Move::Grow { .. }))).collect();
        let storage = bench.open(image, Some("log")).unwrap();
        if always {
            storage.volume().unwrap().set_sync(values::SyncMode::Always);
        }
        let oracle = kit::play(storage.as_ref(), &history);
        drop(storage);
        assert!(!bench.is_marked(image) && !bench.at("memory").exists());
        let checked = tools::check(&bench.at(image), false, true, &mut |_, _| {}).unwrap();
        assert!(checked.sound, "{checked:?}");
        let alone = bench.open(image, None).unwrap();
        assert_eq!(alone.capacity_bytes(), oracle.len() as u64);
        kit::assert_same(&kit::read(&mut Solo::new().unwrap(), alone.as_ref(), 0, oracle.len()), &oracle, 0);
    }
}

#[test]
fn an_image_says_that_its_log_has_more_and_nobody_opens_it_without() {
    let bench = Bench::new();
    let storage = bench.open("image", Some("log")).unwrap();
    assert_eq!((storage.describe().kind, storage.capacity_bytes()), ("volume", SIZE));
    assert!(storage.volume().unwrap().status().log_path.unwrap().ends_with("/log"));
    write(storage.as_ref(), 7);
    assert!(bench.is_marked("image"));
    bench.copy(&[("image", "cut")]);
    let log = tools::info(&bench.at("cut")).unwrap().intent_log.unwrap();
    let refusal = bench.refusal("cut", None);
    assert!(refusal.contains("vringd image log replay") && refusal.contains(&log), "{refusal}");
    for refused in [
        tools::check(&bench.at("cut"), true, true, &mut |_, _| {}).unwrap_err(),
        tools::change_bitmaps(
            &bench.at("cut"),
            tools::BitmapChange::Add { name: "b", granularity_bytes: 65536 },
            &mut |_, _| {},
        )
        .unwrap_err(),
    ] {
        assert!(refused.to_string().contains(&format!("intent log {log}")), "{refused}");
    }
    // Nor as what is behind another one.
    bench.make("free", None);
    bench.make("behind", Some("free"));
    std::fs::rename(bench.at("cut"), bench.at("free")).unwrap();
    assert!(bench.refusal("behind", None).contains(&log));
    assert!(tools::forget_log(&bench.at("free")).unwrap());
    assert_eq!(first(bench.open("free", None).unwrap().as_ref()), 0);
    drop(storage);
    assert!(!bench.is_marked("image"));
    assert!(!tools::forget_log(&bench.at("image")).unwrap());
    assert_eq!(first(bench.open("image", None).unwrap().as_ref()), 7);
}

/// Whoever repairs an image has to get it without its log, whatever is wrong with it and with what is behind it.
#[test]
fn a_corrupt_image_is_let_go_by_its_log_and_stays_corrupt() {
    let bench = Bench::new();
    bench.make("behind", None);
    bench.make("image", Some("behind"));
    let storage = bench.open("image", Some("log")).unwrap();
    write(storage.as_ref(), 7);
    assert!(tools::forget_log(&bench.at("image")).unwrap_err().to_string().contains("is in use"));
    bench.copy(&[("image", "cut"), ("log", "cut.log")]);
    drop(storage);
    let cut = std::fs::File::options().read(true).write(true).open(bench.at("cut")).unwrap();
    let incompatible = || {
        let mut word = [0; 8];
        cut.read_exact_at(&mut word, 72).unwrap();
        u64::from_be_bytes(word)
    };
    cut.write_all_at(&(incompatible() | image::features::CORRUPT).to_be_bytes(), 72).unwrap();
    let refusal = bench.refusal("cut", Some("cut.log"));
    assert!(refusal.contains("vringd image log forget") && refusal.contains("--repaired"), "{refusal}");
    std::fs::rename(bench.at("behind"), bench.at("moved")).unwrap();
    assert!(tools::forget_log(&bench.at("cut")).unwrap());
    assert_eq!(incompatible(), image::features::CORRUPT);
    assert!(!bench.is_marked("cut") && !tools::forget_log(&bench.at("cut")).unwrap());
    let header = image::header::Header::parse(&std::fs::read(bench.at("cut")).unwrap()).unwrap();
    assert!(header.extensions.log.is_none() && header.backing_file.is_some(), "{header:?}");
    assert!(header.extensions.feature_names.iter().all(|name| name.name != image::features::LOGGED_NAME));
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let bench = Bench::new();
    bench.make_log("other");
    bench.copy(&[("image", "old")]);
    write(bench.open("image", Some("log")).unwrap().as_ref(), 1);
    // Closed: either goes with anything. A log takes the size of its image.
    bench.make("small", None);
    write(bench.open("small", Some("log")).unwrap().as_ref(), 1);
    let storage = bench.open("image", Some("other")).unwrap();
    write(storage.as_ref(), 2);
    bench.copy(&[("image", "image.cut"), ("other", "other.cut")]);
    // The memory file is of the log whose copy is opened here, and there is none of the copy.
    std::fs::rename(bench.at("memory"), bench.at("memory.cut")).unwrap();
    assert!(bench.refusal("image.cut", Some("other.cut")).contains("is the memory file that"));
    let copied = volume::tools::Discard { memory: true, unreadable: false };
    let replay_as = |image: &str, log: &str, repaired: bool| {
        let StorageSpec::Qcow2(options) = bench.spec(image, Some(log)) else { unreachable!() };
        let disk = storage::open(&options).unwrap();
        volume::tools::replay_log(&bench.log(log), disk, &copied, repaired, &mut |_| {})
            .map_err(|error| error.to_string())
    };
    let replay = |image: &str, log: &str| replay_as(image, log, false);
    let refused = |image: &str, log: &str| replay(image, log).unwrap_err();
    assert!(refused("old", "other.cut").contains("does not say that they are of it"));
    assert!(refused("image.cut", "log").contains("this is another log"));
    // Whoever has to repair an image goes on without its log for that long.
    bench.copy(&[("image.cut", "repaired"), ("other.cut", "other.repaired")]);
    assert!(tools::forget_log(&bench.at("repaired")).unwrap());
    assert!(refused("repaired", "other.repaired").contains("does not say that they are of it"));
    assert!(replay_as("repaired", "other.repaired", true).unwrap().log.records > 0);
    assert_eq!(first(bench.open("repaired", None).unwrap().as_ref()), 2);
    bench.copy(&[("image.cut", "image.again"), ("other.cut", "other.again")]);
    assert!(replay("image.again", "other.again").unwrap().log.records > 0);
    assert_eq!(first(bench.open("image.again", None).unwrap().as_ref()), 2);
    assert!(refused("image.cut", "other.again").contains("closed in order with another copy"));
    // It was used again since.
    let next = bench.open("image.again", Some("other.again")).unwrap();
    write(next.as_ref(), 3);
    bench.copy(&[("other.again", "other.next")]);
    std::fs::remove_file(bench.at("memory")).unwrap();
    assert!(refused("image.cut", "other.next").contains("at another time"));
    drop(next);
    drop(storage);
}

/// A log that was closed stays closed for copies that were made before, whatever fails in between.
#[test]
fn an_opening_that_fails_changes_no_log_and_admits_no_copy() {
    let bench = Bench::new();
    let storage = bench.open("image", Some("log")).unwrap();
    write(storage.as_ref(), 1);
    storage.volume().unwrap().sync_now().unwrap();
    bench.copy(&[("image", "hot")]);
    write(storage.as_ref(), 2);
    drop(storage);
    assert!(bench.refusal("hot", Some("log")).contains("closed in order with another copy"));
    // Neither has a place for a mark.
    let old = image::new::New { version: 2, ..Default::default() };
    std::fs::write(bench.at("old"), old.image().unwrap()).unwrap();
    assert!(bench.refusal("old", Some("log")).contains("compat=1.1"));
    std::fs::write(bench.at("behind"), [0; 512]).unwrap();
    let name = format!("{}behind", "./".repeat(170)).into_bytes();
    let full = image::new::New { cluster_bits: 9, backing: Some((name, "raw")), ..Default::default() };
    std::fs::write(bench.at("full"), full.image().unwrap()).unwrap();
    assert!(bench.refusal("full", Some("log")).contains("there is no room"));
    // A kill right behind an opening's recovery leaves it open and empty.
    let mut log = volume::Ram(std::fs::read(bench.at("log")).unwrap());
    let recovered = volume::recover::recover(&mut log, None, &mut |_| {}).unwrap();
    assert!(recovered.was_clean && !recovered.superblock.clean);
    std::fs::write(bench.at("log"), log.0).unwrap();
    assert!(bench.refusal("hot", Some("log")).contains("at another time"));
    assert_eq!(first(bench.open("image", Some("log")).unwrap().as_ref()), 2);
}

#[test]
fn what_cannot_be_replayed_is_named_as_the_disk_and_a_place_in_it() {
    let bench = Bench::new();
    let log = |name: &str| LogFile { memory_file: MemoryFile::None, ..bench.log(name) };
    let open = |image: &str, name: &str| {
        let options = Qcow2Options { log: Some(log(name)), ..Qcow2Options::new(bench.at(image)) };
        StorageSpec::Qcow2(options).open().and_then(Opened::start).map_err(|error| error.to_string())
    };
    let mut solo = Solo::new().unwrap();
    let storage = open("image", "log").unwrap();
    kit::write(&mut solo, storage.as_ref(), 8192, &[1; 4096]).unwrap();
    storage.volume().unwrap().sync_now().unwrap();
    kit::write(&mut solo, storage.as_ref(), 8192, &[2; 4096]).unwrap();
    write(storage.as_ref(), 2);
    bench.copy(&[("image", "cut"), ("log", "cut.log")]);
    drop(storage);
    // Where the third cluster is there is the L1 table.
    let mut bytes = std::fs::read(bench.at("cut")).unwrap();
    let l1 = image::header::Header::parse(&bytes).unwrap().l1_offset as usize;
    let l2 = (u64::from_be_bytes(bytes[l1..l1 + 8].try_into().unwrap()) & !image::entry::COPIED) as usize;
    bytes[l2 + 16..l2 + 24].copy_from_slice(&(l1 as u64 | image::entry::COPIED).to_be_bytes());
    std::fs::write(bench.at("cut"), bytes).unwrap();
    let Err(refusal) = open("cut", "cut.log") else { panic!("a damaged image is replayed") };
    assert!(refusal.starts_with(&format!("{}: ", bench.at("cut").display())), "{refusal}");
    assert!(refusal.contains("at byte 8192,") && refusal.contains("cut.log"), "{refusal}");
}

#[test]
fn a_log_that_was_not_closed_is_overwritten_only_with_what_is_lost() {
    let bench = Bench::new();
    let storage = bench.open("image", Some("log")).unwrap();
    write(storage.as_ref(), 7);
    bench.copy(&[("log", "cut.log")]);
    let make = |name: &str, lost: bool| {
        let made = volume::tools::create_log(&bench.log(name), 64 << 10, true, lost, "a test", &mut |_| {});
        made.map(|_| ()).map_err(|error| error.to_string())
    };
    let before = std::fs::read(bench.at("cut.log")).unwrap();
    let refusal = make("cut.log", false).unwrap_err();
    assert!(refusal.contains("vringd image log replay") && refusal.contains("--lost"), "{refusal}");
    // Nor by what makes something else.
    let over = volume::tools::CreateOptions {
        size_bytes: SIZE,
        log_bytes: 64 << 10,
        force: true,
        created_by: "a test".to_owned(),
    };
    let refused = volume::tools::create(&VolumeOptions::new(bench.at("cut.log")), &over, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("vringd image log replay"), "{refused}");
    let beside = VolumeOptions { log: Some(bench.at("cut.log")), ..VolumeOptions::new(bench.at("volume")) };
    volume::tools::create(&beside, &over, &mut |_| {}).unwrap_err();
    assert!(std::fs::read(bench.at("cut.log")).unwrap() == before && !bench.at("volume").exists(), "it is changed");
    // Whether it is one cannot be said.
    let mut damaged = before.clone();
    [100, 4196].iter().for_each(|at: &usize| damaged[*at] ^= 1);
    std::fs::write(bench.at("damaged"), &damaged).unwrap();
    let refusal = make("damaged", false).unwrap_err();
    assert!(refusal.contains("--lost") && std::fs::read(bench.at("damaged")).unwrap() == damaged, "{refusal}");
    make("damaged", true).unwrap();
    // Not while it is served.
    make("log", true).unwrap_err();
    drop(storage);
    make("cut.log", true).unwrap();
    make("log", false).unwrap();
    make("cut.log", false).unwrap();
}

#[test]
fn what_is_no_log_is_named() {
    let bench = Bench::new();
    std::fs::write(bench.at("noise"), vec![7; 1 << 20]).unwrap();
    assert!(bench.refusal("image", Some("noise")).contains("not a volume"));
    let volume = VolumeOptions::new(bench.at("volume"));
    let options =
        volume::tools::CreateOptions { size_bytes: SIZE, log_bytes: 1 << 20, force: false, created_by: String::new() };
    volume::tools::create(&volume, &options, &mut |_| {}).unwrap();
    assert!(bench.refusal("image", Some("volume")).contains("vringd image log create"));
    let refused = VolumeOptions::new(bench.at("log")).open().unwrap_err().to_string();
    assert!(refused.contains("intent log of a disk"), "{refused}");
    let refused = volume::tools::resize(&VolumeOptions::new(bench.at("log")), 2 << 20).unwrap_err().to_string();
    assert!(refused.contains("intent log of a disk"), "{refused}");
    let read_only = StorageSpec::Qcow2(Qcow2Options {
        read_only: true,
        log: Some(bench.log("log")),
        ..Qcow2Options::new(bench.at("image"))
    });
    assert_eq!(read_only.check(512).unwrap_err().field, "storage.log");
    assert_eq!(bench.spec("image", Some("log")).needs().len(), 3);
}

/// Handed over as an upgrade does, with the image's dirty bitmaps; and through a kill, of which the memory file is left.
#[test]
fn another_program_goes_on_with_both() {
    let bench = Bench::new();
    let add = tools::BitmapChange::Add { name: "b", granularity_bytes: 65536 };
    tools::change_bitmaps(&bench.at("image"), add, &mut |_, _| {}).unwrap();
    let spec = bench.spec("image", Some("log"));
    let before = spec.open().unwrap().start().unwrap();
    write(before.as_ref(), 1);
    kit::write(&mut Solo::new().unwrap(), before.as_ref(), 4096, &[9; 512]).unwrap();
    let handed = before.hand_over().unwrap();
    // As behind `execve`, of the program before nothing is left that runs.
    std::mem::forget(before);
    let after = spec.adopt(handed).unwrap();
    assert_eq!(first(after.as_ref()), 1);
    assert_eq!(kit::read(&mut Solo::new().unwrap(), after.as_ref(), 4096, 512), [9; 512]);
    write(after.as_ref(), 2);
    drop(after);
    assert!(!bench.is_marked("image"));
    let bitmaps = tools::bitmaps(&bench.at("image")).unwrap();
    assert!(bitmaps.len() == 1 && !bitmaps[0].in_use, "{bitmaps:?}");
    // The one that was forgotten still has its locks.
    bench.copy(&[("image", "closed")]);
    assert_eq!(first(bench.open("closed", None).unwrap().as_ref()), 2);
}

/// Nothing of the last moments is in the memory file when the image is told that nobody misses it: a cut there is like none.
#[test]
fn what_was_synchronized_leaves_nothing_in_memory() {
    let bench = Bench::new();
    let storage = bench.open("image", Some("log")).unwrap();
    write(storage.as_ref(), 5);
    kit::write(&mut Solo::new().unwrap(), storage.as_ref(), 8192, &[6; 512]).unwrap();
    storage.volume().unwrap().sync_now().unwrap();
    let memory = std::fs::File::options().read(true).write(true).open(bench.at("memory")).unwrap();
    assert_eq!(volume::cache::peek(std::os::fd::OwnedFd::from(memory)).unwrap().current, 0);
}

/// A snapshot goes on without a log that fails: what is handed over then is an image, nobody misses the memory, and a log that is one goes
/// before any image.
#[test]
fn an_image_goes_on_without_a_log_that_fails() {
    for noise in [false, true] {
        let bench = Bench::new();
        let storage = bench.open("image", Some("log")).unwrap();
        write(storage.as_ref(), 7);
        let control = storage.in_front().unwrap();
        control.leave().unwrap();
        let image = control.disk();
        let options = MemoryOptions { size: Some(ByteSize(SIZE)), ..MemoryOptions::default() };
        let mut next = StorageSpec::Memory(options).open().and_then(Opened::start).unwrap();
        if noise {
            let log = std::fs::File::options().write(true).open(bench.at("log")).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&log, &[9; 64 << 10], 0).unwrap();
            next = image.clone();
        }
        assert!(matches!(control.go_before(next), Err(storage::GoBeforeError::Log(_))));
        assert!(!bench.at("memory").exists() && !bench.is_marked("image"));
        let spec = bench.spec("image", Some("log"));
        let handed = image.hand_over().unwrap();
        assert!(spec.adopt(handed).is_err());
        let without = spec.without_log();
        assert_eq!(without, bench.spec("image", None));
        let after = without.adopt(image.hand_over().unwrap()).unwrap();
        assert_eq!(first(after.as_ref()), 7);
        std::mem::forget(after);
        // So it is where it cannot say that it misses none, whoever opens it then.
        image
            .marked()
            .unwrap()
            .set_log_mark(Some(storage::LogMark { log: uuid::Uuid::from_bytes([1; 16]), from: 1, epoch: 1 }))
            .unwrap();
        let after = without.adopt(image.hand_over().unwrap()).unwrap();
        assert_eq!(first(after.as_ref()), 7);
        std::mem::forget(after);
        bench.copy(&[("image", "copy")]);
        assert!(bench.refusal("copy", None).contains("intent log"));
        image.marked().unwrap().set_log_mark(None).unwrap();
        drop((storage, image));
        // The one that was forgotten still has its locks.
        bench.copy(&[("image", "closed"), ("log", "log.closed")]);
        assert_eq!(bench.open("closed", Some("log.closed")).is_ok(), !noise);
        assert_eq!(first(bench.open("closed", None).unwrap().as_ref()), 7);
    }
}

#[test]
fn a_disk_grows_with_its_image() {
    let bench = Bench::new();
    let storage = bench.open("image", Some("log")).unwrap();
    write(storage.as_ref(), 5);
    let error = storage.resize(SIZE / 2).unwrap_err();
    assert!(matches!(error, StorageError::Grow { .. } | StorageError::Shrink { .. }), "{error}");
    storage.resize(SIZE + 512).unwrap();
    assert_eq!(storage.capacity_bytes(), SIZE + 512);
    kit::write(&mut Solo::new().unwrap(), storage.as_ref(), SIZE, &[8; 512]).unwrap();
    drop(storage);
    let alone = bench.open("image", None).unwrap();
    assert_eq!(kit::read(&mut Solo::new().unwrap(), alone.as_ref(), SIZE, 512), [8; 512]);
}

/// A resize that fails between the two leaves the image larger; the same resize ends that.
#[test]
fn a_disk_that_did_not_grow_with_its_image_grows_later() {
    let bench = Bench::new();
    let storage = bench.open("image", Some("log")).unwrap();
    storage.in_front().unwrap().disk().resize(SIZE + 4096).unwrap();
    assert_eq!(storage.capacity_bytes(), SIZE);
    storage.resize(SIZE + 4096).unwrap();
    assert_eq!(
        (storage.capacity_bytes(), storage.in_front().unwrap().disk().capacity_bytes()),
        (SIZE + 4096, SIZE + 4096)
    );
}
