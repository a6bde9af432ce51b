use super::{Has, Migratable};
use crate::{FileOptions, Qcow2Options, StorageSpec, VolumeOptions};
use engine::{Completion, Io, Solo, Token};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use storage::kit::Through;
use storage::{
    Action, Custody, Description, Execution, Handed, OpenError, Step, Storage, StorageError, Task, VolumeControl,
    VolumeStatus,
};
use tempfile::TempDir;
use testkit::storage::{read, write};
use values::SyncMode;

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A raw image, a qcow2 image, a volume, and one with a log elsewhere, of 4 MiB each.
fn images(directory: &TempDir) -> [StorageSpec; 4] {
    let names = ["disk.raw", "disk.qcow2", "disk.vol", "other.vol", "other.log"];
    let [raw, qcow2, volume, other, log] = names.map(|name| directory.path().join(name));
    File::create(&raw).unwrap().set_len(4 * MIB).unwrap();
    let options = image::tools::CreateOptions { size_bytes: Some(4 * MIB), ..Default::default() };
    image::tools::create(&qcow2, &options).unwrap();
    [
        StorageSpec::File(FileOptions { migratable: true, ..FileOptions::new(raw) }),
        StorageSpec::Qcow2(Qcow2Options { migratable: true, ..Qcow2Options::new(qcow2) }),
        made(VolumeOptions { migratable: true, ..VolumeOptions::new(volume) }),
        made(VolumeOptions { migratable: true, log: Some(log), ..VolumeOptions::new(other) }),
    ]
}

/// The memory is a file beside the volume, which is on tmpfs for that.
fn made(at: VolumeOptions) -> StorageSpec {
    let options = volume::tools::CreateOptions {
        size_bytes: 4 * MIB,
        log_bytes: 8 * MIB,
        force: false,
        created_by: "a test".to_owned(),
    };
    volume::tools::create(&at, &options, &mut |_| {}).unwrap();
    let memory_file = values::MemoryFile::Path(at.path.with_extension("memory"));
    StorageSpec::Volume(VolumeOptions { memory_file, dirty_memory: values::ByteSize(2 * MIB), ..at })
}

/// In memory, where a volume's memory file has to be.
fn place() -> TempDir {
    TempDir::new_in(testkit::storage::shm()).unwrap()
}

fn raw(directory: &TempDir) -> StorageSpec {
    let [raw, ..] = images(directory);
    raw
}

/// The same image for somebody who keeps it.
fn plain(spec: &StorageSpec) -> StorageSpec {
    match spec.clone() {
        StorageSpec::File(file) => StorageSpec::File(FileOptions { migratable: false, ..file }),
        StorageSpec::Qcow2(image) => StorageSpec::Qcow2(Qcow2Options { migratable: false, ..image }),
        StorageSpec::Volume(volume) => StorageSpec::Volume(VolumeOptions { migratable: false, ..volume }),
        other => other,
    }
}

fn opened(spec: &StorageSpec) -> Arc<dyn Storage> {
    spec.open().unwrap().start().unwrap()
}

fn custody(storage: &Arc<dyn Storage>) -> &dyn Custody {
    storage.custody().unwrap()
}

#[test]
fn two_have_an_image_one_after_the_other() {
    let directory = place();
    let mut solo = Solo::new().unwrap();
    for spec in images(&directory) {
        let sides = [opened(&spec), opened(&spec)];
        for round in 0..6_u8 {
            let (here, there) = (&sides[usize::from(round % 2)], &sides[usize::from(round % 2 == 0)]);
            let disk = custody(here).take(&|| true).unwrap();
            assert!(Arc::ptr_eq(&disk, &custody(here).take(&|| true).unwrap()), "it has it already");
            // What the other side wrote is there, in clusters that this one has never seen.
            for before in 1..=round {
                let at = u64::from(before - 1) * 600 * 1024;
                assert_eq!(read(&mut solo, &*disk, at, 4096), [before; 4096], "{round}");
            }
            write(&mut solo, &*disk, u64::from(round) * 600 * 1024, &[round + 1; 4096]).unwrap();
            assert!(custody(here).is_held() && !custody(there).is_held());
            assert!(matches!(plain(&spec).open(), Err(OpenError::Locked { .. })), "nobody else comes in");
            drop(disk);
            custody(here).give_up(PATIENCE).unwrap();
            custody(here).give_up(PATIENCE).unwrap();
            drop(plain(&spec).open().unwrap());
        }
    }
}

#[test]
fn who_comes_early_waits_and_who_waits_too_long_is_told_so() {
    let directory = place();
    for spec in images(&directory) {
        let [here, there] = [opened(&spec), opened(&spec)];
        drop(custody(&here).take(&|| true).unwrap());
        scope(|scope| {
            let waiting = scope.spawn(|| drop(custody(&there).take(&|| true).unwrap()));
            sleep(Duration::from_millis(100));
            assert!(!waiting.is_finished());
            custody(&here).give_up(PATIENCE).unwrap();
        });
        let refused = custody(&here).take(&|| true).map(drop).unwrap_err().to_string();
        assert!(refused.contains("is still in use after 5 s") && !refused.contains("--no-lock"), "{refused}");
        assert!(!custody(&here).is_held());
    }
}

#[test]
fn who_is_not_wanted_waits_no_longer() {
    let directory = place();
    let spec = raw(&directory);
    let [here, there] = [opened(&spec), opened(&spec)];
    drop(custody(&here).take(&|| true).unwrap());
    let asked = AtomicU32::new(0);
    let refused = custody(&there).take(&|| asked.fetch_add(1, Ordering::Relaxed) < 3).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::Unwanted { .. }), "{refused}");
    assert!(!custody(&there).is_held() && !custody(&there).is_changing());
    // And who need not wait is not asked.
    custody(&here).give_up(PATIENCE).unwrap();
    drop(custody(&there).take(&|| false).unwrap());
}

#[test]
fn nothing_is_given_up_that_is_used_or_not_on_stable_storage() {
    let directory = place();
    let here = opened(&raw(&directory));
    let disk = custody(&here).take(&|| true).unwrap();
    assert!(custody(&here).is_used());
    assert_eq!(custody(&here).give_up(PATIENCE).unwrap_err().raw_errno(), libc::EBUSY);
    assert!(custody(&here).is_held());
    drop(disk);
    assert!(!custody(&here).is_used());
    custody(&here).give_up(PATIENCE).unwrap();

    let directory = place();
    let spec = raw(&directory);
    let below = opened(&plain(&spec));
    let failing = Migratable::new(spec, Has::Open(Arc::new(FailsOnce { below, flushes: AtomicU32::new(0) })));
    // As the kernel tells of it: once, to whoever asks first.
    for _ in 0..3 {
        assert_eq!(failing.give_up(PATIENCE).unwrap_err().raw_errno(), libc::EIO);
        assert!(failing.is_held() && failing.hand_over().is_err());
    }
}

/// A disk whose first flush fails.
struct FailsOnce {
    below: Arc<dyn Storage>,
    flushes: AtomicU32,
}

impl Through for FailsOnce {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        match self.flushes.fetch_add(1, Ordering::Relaxed) {
            0 => Step::Done(Err(StorageError::errno(task.operation.action(), libc::EIO))),
            _ => self.below.start(task, token, io),
        }
    }
}

#[test]
fn who_changes_something_else_does_not_wait_for_what_hangs() {
    let directory = place();
    let spec = raw(&directory);
    let disk = opened(&plain(&spec));
    let here = Migratable::new(spec, Has::Open(disk.clone()));
    scope(|scope| {
        // It waits for the one who has the disk.
        let giving = scope.spawn(|| here.give_up(PATIENCE));
        while here.changing.try_lock().is_ok() {
            sleep(Duration::from_millis(1));
        }
        let asked = Instant::now();
        assert_eq!(here.set_execution(Execution::Pool(2)).unwrap_err().raw_errno(), libc::EBUSY);
        assert!(here.resize(8 * MIB).unwrap_err().to_string().contains("is changing hands"));
        assert!(!giving.is_finished() && asked.elapsed() < Duration::from_secs(4));
        drop(disk);
        assert!(giving.join().unwrap().unwrap());
    });
}

#[test]
fn what_nobody_could_write_is_not_looked_at() {
    let directory = place();
    let [_, spec, ..] = images(&directory);
    let path = directory.path().join("disk.qcow2");
    // Bit 1 of the incompatible features, a big-endian word at 72: the image is corrupt.
    File::options().write(true).open(path).unwrap().write_all_at(&[2], 79).unwrap();
    let refused = spec.open().map(drop).unwrap_err().to_string();
    assert!(refused.contains("corrupt"), "{refused}");
}

/// What a volume has in memory is refused a place when it is told of, and not when a guest has stopped elsewhere.
#[test]
fn a_volume_that_would_have_no_place_for_its_memory_is_not_looked_at() {
    let directory = place();
    let [_, _, StorageSpec::Volume(volume), _] = images(&directory) else { unreachable!("it is a volume") };
    for (path, why) in [("/nonexistent/memory", "/nonexistent: cannot make a file in"), ("/var/tmp/memory", "tmpfs")] {
        let memory_file = values::MemoryFile::Path(path.into());
        let spec = StorageSpec::Volume(VolumeOptions { memory_file, ..volume.clone() });
        let refused = spec.open().map(drop).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let without = VolumeOptions { memory_file: values::MemoryFile::None, ..volume };
    let refused = StorageSpec::Volume(without).check(512).unwrap_err().to_string();
    assert!(refused.contains("storage.migratable") && refused.contains("memory_file"), "{refused}");
}

/// Nothing is left to be replayed, whenever writes become stable.
#[test]
fn a_volume_is_given_up_with_nothing_in_its_log() {
    let directory = place();
    let mut solo = Solo::new().unwrap();
    for spec in images(&directory).into_iter().skip(2) {
        let StorageSpec::Volume(at) = plain(&spec) else { unreachable!("it is a volume") };
        let here = opened(&spec);
        for (round, mode) in [SyncMode::Standard, SyncMode::Always, SyncMode::Disabled].into_iter().enumerate() {
            let control = here.volume().unwrap();
            control.set_sync(mode);
            let disk = custody(&here).take(&|| true).unwrap();
            assert_eq!((control.status().sync, disk.volume().unwrap().status().sync), (mode, mode));
            write(&mut solo, &*disk, 0, &[round as u8 + 1; 4096]).unwrap();
            assert_eq!(control.status().figures.dirty_bytes, 4096);
            drop(disk);
            custody(&here).give_up(PATIENCE).unwrap();
            assert_eq!((control.status().sync, control.status().figures.dirty_bytes), (mode, 0));
            assert!(control.sync_now().unwrap_err().to_string().contains("is not held"));
            let info = volume::tools::info(&at).unwrap();
            assert!(info.clean && !at.path.with_extension("memory").exists(), "{info:?}");
        }
    }
}

#[test]
fn what_cannot_be_had_alone_is_not_looked_at() {
    let directory = place();
    let spec = raw(&directory);
    let options = |change: fn(&mut FileOptions)| {
        let StorageSpec::File(mut file) = spec.clone() else { unreachable!("it is a file") };
        change(&mut file);
        StorageSpec::File(file).check(512).map_err(|error| error.to_string())
    };
    options(|_| {}).unwrap();
    for (change, word) in [
        ((|file| file.read_only = true) as fn(&mut FileOptions), "read_only"),
        (|file| file.lock = false, "lock = false"),
        (|file| file.luks = Some(values::Luks::new("key")), "luks"),
    ] {
        let refused = options(change).unwrap_err();
        assert!(refused.contains("storage.migratable") && refused.contains(word), "{refused}");
    }
    let missing = StorageSpec::File(FileOptions { migratable: true, ..FileOptions::new("/nonexistent/disk") });
    assert!(missing.open().unwrap_err().to_string().contains("/nonexistent/disk"));
}

#[test]
fn what_grew_is_larger_and_what_shrank_is_not_taken() {
    let directory = place();
    for spec in images(&directory) {
        let [here, there] = [opened(&spec), opened(&spec)];
        let disk = custody(&here).take(&|| true).unwrap();
        here.resize(8 * MIB).unwrap();
        drop(disk);
        custody(&here).give_up(PATIENCE).unwrap();
        assert_eq!((here.capacity_bytes(), there.capacity_bytes()), (8 * MIB, 4 * MIB));
        assert!(there.resize(8 * MIB).unwrap_err().to_string().contains("no guest runs"));
        drop(custody(&there).take(&|| true).unwrap());
        assert_eq!(there.capacity_bytes(), 8 * MIB);
        custody(&there).give_up(PATIENCE).unwrap();
    }
    let directory = place();
    let spec = raw(&directory);
    let here = opened(&spec);
    File::options().write(true).open(directory.path().join("disk.raw")).unwrap().set_len(MIB).unwrap();
    let refused = custody(&here).take(&|| true).map(drop).unwrap_err().to_string();
    assert!(refused.contains("has 1048576 bytes, and had 4194304"), "{refused}");
    drop(plain(&spec).open().unwrap());
}

#[test]
fn another_program_goes_on_with_what_is_held_and_with_what_is_not() {
    let directory = place();
    let mut solo = Solo::new().unwrap();
    for spec in images(&directory) {
        let before = opened(&spec);
        let handed = before.hand_over().unwrap();
        assert!(handed.data.is_none());
        // Nobody looks for it, as guests of others wait.
        let path = PathBuf::from(before.describe().target);
        std::fs::rename(&path, directory.path().join("away")).unwrap();
        let next = spec.adopt(handed).unwrap();
        std::fs::rename(directory.path().join("away"), &path).unwrap();
        assert_eq!((next.describe(), next.capacity_bytes()), (before.describe(), 4 * MIB));
        let disk = custody(&before).take(&|| true).unwrap();
        write(&mut solo, &*disk, 0, &[7; 512]).unwrap();
        let handed = before.hand_over().unwrap();
        // The program before is gone, without a word.
        std::mem::forget((before, disk));
        let next = spec.adopt(handed).unwrap();
        let disk = custody(&next).held().unwrap();
        assert_eq!(read(&mut solo, &*disk, 0, 512), [7; 512]);
        drop(disk);
        custody(&next).give_up(PATIENCE).unwrap();
    }
}

#[test]
fn it_is_described_as_it_will_be_when_it_is_open() {
    let directory = place();
    for mut spec in images(&directory) {
        for execution in [Execution::Auto, Execution::Pool(2)] {
            spec.set_execution(execution);
            let storage = opened(&spec);
            let seen = storage.describe();
            drop(custody(&storage).take(&|| true).unwrap());
            assert_eq!(seen, storage.describe());
            custody(&storage).give_up(PATIENCE).unwrap();
            assert_eq!(seen, storage.describe());
        }
        let storage = opened(&spec);
        storage.set_execution(Execution::Pool(3)).unwrap();
        let disk = custody(&storage).take(&|| true).unwrap();
        assert_eq!(disk.describe().execution, Execution::Pool(3));
    }
}

/// A guest that was promised discards finds them after an upgrade, whatever the file takes.
#[test]
fn what_was_promised_stays_so() {
    let directory = place();
    let spec = raw(&directory);
    let Description { discard, .. } = opened(&spec).describe();
    assert!(discard);
    let open: Arc<dyn Storage> = Arc::new(NoHoles(opened(&plain(&spec)), false));
    assert!(!open.describe().discard);
    let storage = Migratable::new(spec, Has::Open(open));
    assert!(storage.describe().discard);
    storage.give_up(PATIENCE).unwrap_err();
    assert!(storage.give_up(PATIENCE).unwrap());
    assert!(storage.describe().discard && storage.hand_over().unwrap().seen.unwrap().discard);
}

/// A file on a file system without holes, and whether nothing is written back there.
struct NoHoles(Arc<dyn Storage>, bool);

impl Storage for NoHoles {
    fn describe(&self) -> Description {
        Description { discard: false, ..self.0.describe() }
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.0.start(task, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.0.resume(task, completion, io)
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        self.0.resize(capacity_bytes)
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        self.0.hand_over()
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.0.set_execution(execution)
    }

    fn volume(&self) -> Option<&dyn VolumeControl> {
        Some(self)
    }
}

/// And a volume there, whose end fails.
impl VolumeControl for NoHoles {
    fn status(&self) -> VolumeStatus {
        VolumeStatus::default()
    }

    fn opening(&self) -> u64 {
        self.0.volume().map_or(0, VolumeControl::opening)
    }

    fn set_sync(&self, _mode: SyncMode) {}

    fn sync_now(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn sync_within(&self, patience: Duration) -> Result<(), StorageError> {
        if !self.1 {
            return Ok(());
        }
        sleep(patience);
        Err(StorageError::Io { action: Action::Flush, source: std::io::ErrorKind::TimedOut.into() })
    }

    fn close(&self) -> Result<(), StorageError> {
        Err(StorageError::errno(Action::Write, libc::ENOSPC))
    }
}

/// A volume whose end hangs has its locks until then, and nobody waits for it longer than he has patience.
#[test]
fn a_close_that_hangs_holds_nobody_up() {
    let directory = place();
    let [_, _, spec, _] = images(&directory);
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let below = opened(&plain(&spec));
    let here = Migratable::new(spec.clone(), Has::Open(Arc::new(Hangs { below, end: std::sync::Mutex::new(end) })));
    let wait = || here.give_up(Duration::ZERO).map_err(|error| error.to_string());
    for _ in 0..2 {
        let refused = wait().unwrap_err();
        assert!(refused.contains("is not closed yet") && here.is_held() && !here.is_changing(), "{refused}");
        assert!(here.held().is_none() && here.hand_over().is_err());
    }
    assert!(matches!(plain(&spec).open(), Err(OpenError::Locked { .. })));
    // Its own guest waits for it as for another daemon.
    let refused = here.take(&|| true).map(drop).unwrap_err().to_string();
    assert!(refused.contains("still being closed after 5 s, by this daemon"), "{refused}");
    assert!(matches!(here.take(&|| false).map(drop), Err(OpenError::Unwanted { .. })));
    drop(ends);
    let by = Instant::now() + PATIENCE;
    while here.is_held() {
        assert!(Instant::now() < by, "it is closed");
        sleep(Duration::from_millis(5));
    }
    // Whoever looks does not take it from whoever has to let go of what workers have.
    assert!(here.is_to_be_given_up() && here.hand_over().is_ok());
    assert_eq!(wait(), Ok(true));
    assert!(!here.is_to_be_given_up());
    drop(custody(&opened(&spec)).take(&|| true).unwrap());
}

/// As that of any disk does.
#[test]
fn the_end_of_a_disk_waits_for_its_close() {
    let directory = place();
    let [_, _, spec, _] = images(&directory);
    let (here, ends) = hangs_in_its_close(&spec);
    scope(|scope| {
        let ending = scope.spawn(|| drop(here));
        sleep(Duration::from_millis(100));
        assert!(!ending.is_finished());
        drop(ends);
    });
    drop(plain(&spec).open().unwrap());
}

/// Locks of a device do not tell of a host that is closing it.
#[test]
fn what_another_host_has_is_waited_for() {
    let directory = place();
    let [_, _, spec, _] = images(&directory);
    let StorageSpec::Volume(at) = plain(&spec) else { unreachable!("it is a volume") };
    let superblocks = || std::fs::read(&at.path).unwrap()[..8192].to_vec();
    let write = |bytes: &[u8]| File::options().write(true).open(&at.path).unwrap().write_all_at(bytes, 0).unwrap();
    let elsewhere = StorageSpec::Volume(VolumeOptions { memory_file: values::MemoryFile::None, ..at.clone() });
    let open = opened(&elsewhere);
    let unclosed = superblocks();
    drop(open);
    let closed = superblocks();
    let here = opened(&spec);
    write(&unclosed);
    scope(|scope| {
        let waiting = scope.spawn(|| custody(&here).take(&|| true).map(drop));
        sleep(Duration::from_millis(300));
        assert!(!waiting.is_finished());
        write(&closed);
        waiting.join().unwrap().unwrap();
    });
    custody(&here).give_up(PATIENCE).unwrap();
    write(&unclosed);
    let (began, refused) = (Instant::now(), custody(&here).take(&|| true).map(drop).unwrap_err().to_string());
    assert!(refused.contains("was not given up") && began.elapsed() >= Duration::from_secs(5), "{refused}");
    assert!(matches!(custody(&here).take(&|| false).map(drop), Err(OpenError::Unwanted { .. })));
}

/// Guests of others wait for that.
#[test]
fn what_nobody_uses_is_handed_over_at_once_or_not_at_all() {
    let directory = place();
    let [_, _, spec, _] = images(&directory);
    let disk: Arc<dyn Storage> = Arc::new(NoHoles(opened(&plain(&spec)), true));
    let here = Migratable::new(spec, Has::Open(disk.clone()));
    let asked = Instant::now();
    // Its guest waits for itself.
    here.hand_over().unwrap();
    drop(disk);
    let refused = here.hand_over().map(drop).unwrap_err().to_string();
    assert!(refused.contains("does not answer in time") && asked.elapsed() < Duration::from_secs(5), "{refused}");
}

/// One that is being closed until the other part is dropped.
fn hangs_in_its_close(spec: &StorageSpec) -> (Migratable, std::sync::mpsc::Sender<()>) {
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let below = opened(&plain(spec));
    let here = Migratable::new(spec.clone(), Has::Open(Arc::new(Hangs { below, end: std::sync::Mutex::new(end) })));
    here.give_up(Duration::ZERO).unwrap_err();
    (here, ends)
}

struct Hangs {
    below: Arc<dyn Storage>,
    end: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Through for Hangs {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        let _ = self.end.lock().unwrap().recv();
    }
}

/// A request that is for nobody changes nothing.
#[test]
fn nothing_is_asked_of_what_is_not_held() {
    let directory = place();
    let mut solo = Solo::new().unwrap();
    let storage = opened(&raw(&directory));
    assert_eq!(write(&mut solo, &*storage, 0, &[1; 512]).unwrap_err().raw_errno(), libc::ENODEV);
    let Handed { data, lock, .. } = storage.hand_over().unwrap();
    assert!(data.is_none() && lock.is_none());
}

/// Whatever the one is at when the other tries.
#[test]
fn who_waits_has_it_when_it_is_given_up() {
    let directory = place();
    let mut solo = Solo::new().unwrap();
    for spec in images(&directory) {
        let [a, b] = [opened(&spec), opened(&spec)];
        drop(custody(&a).take(&|| true).unwrap());
        for round in 0..50_u8 {
            let (here, there) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let disk = scope(|scope| {
                let waiting = scope.spawn(|| custody(there).take(&|| true));
                sleep(Duration::from_micros(u64::from(round) * 97));
                assert!(custody(here).give_up(PATIENCE).unwrap());
                waiting.join().unwrap().unwrap()
            });
            let at = u64::from(round) * 64 * 1024;
            if let Some(before) = round.checked_sub(1) {
                assert_eq!(read(&mut solo, &*disk, at - 64 * 1024, 512), [before; 512], "{}, {round}", spec.kind());
            }
            write(&mut solo, &*disk, at, &[round; 512]).unwrap();
        }
    }
}

#[path = "migratable_close_tests.rs"]
mod closes;
