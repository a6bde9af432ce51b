//! The life of a volume: opened, killed, replayed, closed, handed over, resized; full logs and failing storage.

use crate::common::{Plain, log};
use engine::Solo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use storage::kit::Through;
use storage::{
    Kind, MemoryOptions, MemoryStorage, NullOptions, Operation, SimOptions, Storage, Task, VolumeControl, open,
};
use testkit::storage::{disk, read, run, shm, write};
use values::{ByteSize, MemoryFile, SyncMode};
use volume::Blocks;
use volume::format::{self, Uuid};
use volume::tools::CreateOptions;
use volume::{LoggedOptions, LoggedStorage, VolumeOptions, adopt_made, open_made, tools};

const SIZE: u64 = 8 << 20;
const LOG: u64 = 256 << 10;

fn plan(size_bytes: u64, log_path: Option<&str>) -> format::CreateOptions {
    format::CreateOptions {
        capacity_bytes: size_bytes,
        log_bytes: LOG,
        volume: Uuid::new_v4(),
        log: Uuid::new_v4(),
        log_path: log_path.map(str::to_owned),
        apart: false,
        created_by: "a test".to_owned(),
    }
}

fn memory(size_bytes: u64) -> Arc<dyn Storage> {
    Arc::new(
        MemoryStorage::open(&MemoryOptions { size: Some(ByteSize(size_bytes)), ..MemoryOptions::default() }).unwrap(),
    )
}

/// A fresh volume in memory, and its log there too if `external`.
fn fresh(external: bool) -> (Arc<dyn Storage>, Option<Arc<dyn Storage>>) {
    let plan = plan(SIZE, external.then_some("elsewhere"));
    let data = memory(plan.storage_bytes().unwrap());
    let log = external.then(|| memory(LOG + 4096));
    let mut log_blocks = log.clone().map(Plain);
    let log_blocks = log_blocks.as_mut().map(|log| log as &mut dyn Blocks);
    format::create(&mut Plain(data.clone()), log_blocks, &plan, &mut |_| {}).unwrap();
    (data, log)
}

fn small() -> LoggedOptions {
    LoggedOptions { dirty_bytes: 1 << 20, ..LoggedOptions::default() }
}

fn reopen(data: &Arc<dyn Storage>, log: Option<&Arc<dyn Storage>>) -> LoggedStorage {
    LoggedStorage::open(data.clone(), log.cloned(), &small()).unwrap()
}

fn flush(solo: &mut Solo, storage: &dyn Storage) {
    let mut task = Task::new();
    task.begin(Operation::Flush);
    run(solo, storage, &mut task).unwrap();
}

/// Numbers that look random and are not.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Some writes, zeroes and flushes on a storage and on a vector.
fn churn(storage: &dyn Storage, model: &mut [u8], dice: &mut Dice, steps: u32) {
    let mut solo = Solo::new().unwrap();
    let sectors = model.len() as u64 / 512;
    for _ in 0..steps {
        let at = dice.below(sectors);
        let len = (1 + dice.below(40)).min(sectors - at);
        let range = (at * 512) as usize..((at + len) * 512) as usize;
        match dice.below(8) {
            0 => flush(&mut solo, storage),
            1 => {
                let mut task = Task::new();
                let (offset, len) = (range.start as u64, range.len() as u64);
                task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: dice.below(4) == 0 });
                run(&mut solo, storage, &mut task).unwrap();
                model[range].fill(0);
            }
            _ => {
                let fill = dice.below(256) as u8;
                model[range.clone()].fill(fill);
                write(&mut solo, storage, range.start as u64, &model[range]).unwrap();
            }
        }
    }
}

fn contents(storage: &dyn Storage) -> Vec<u8> {
    read(&mut Solo::new().unwrap(), storage, 0, storage.capacity_bytes() as usize)
}

/// What is closed is all in the data, and nothing is left to replay.
#[test]
fn a_closed_volume_is_whole() {
    for external in [false, true] {
        let (data, log) = fresh(external);
        let mut model = vec![0; SIZE as usize];
        let mut dice = Dice(7);
        for round in 0..5 {
            let volume = reopen(&data, log.as_ref());
            assert_eq!(volume.capacity_bytes(), SIZE);
            assert!(contents(&volume) == model, "round {round}, external {external}");
            churn(&volume, &mut model, &mut dice, 60);
            assert!(contents(&volume) == model, "round {round}, external {external}");
            if round % 2 == 0 {
                volume.close().unwrap();
                volume.close().unwrap();
            }
            drop(volume);
            let superblock = format::read_superblock(&mut Plain(data.clone())).unwrap();
            assert!(superblock.clean);
            let raw = read(&mut Solo::new().unwrap(), &*data, superblock.data_offset, SIZE as usize);
            assert!(raw == model, "round {round}, external {external}");
        }
    }
}

/// Killed behind a flush: all that was flushed is there, though the memory is gone.
#[test]
fn what_was_flushed_survives_without_memory() {
    for external in [false, true] {
        let (data, log) = fresh(external);
        let mut model = vec![0; SIZE as usize];
        let mut dice = Dice(11);
        for round in 0..8 {
            let volume = reopen(&data, log.as_ref());
            assert!(contents(&volume) == model, "round {round}, external {external}");
            churn(&volume, &mut model, &mut dice, 40);
            flush(&mut Solo::new().unwrap(), &volume);
            volume.abandon();
            assert!(!format::read_superblock(&mut Plain(data.clone())).unwrap().clean);
        }
        assert!(contents(&reopen(&data, log.as_ref())) == model);
    }
}

/// With `always`, every completed write is flushed.
#[test]
fn always_needs_no_flush() {
    let (data, _) = fresh(false);
    let volume = LoggedStorage::open(data.clone(), None, &LoggedOptions { sync: SyncMode::Always, ..small() }).unwrap();
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &volume, 4096, &[7; 8192]).unwrap();
    volume.abandon();
    assert_eq!(read(&mut solo, &reopen(&data, None), 4096, 8192), [7; 8192]);
}

/// The log is written many times over, by more than the memory holds, and killed again and again in between.
#[test]
fn a_log_goes_around() {
    let (data, _) = fresh(false);
    let mut model = vec![0; SIZE as usize];
    let mut dice = Dice(3);
    let mut bytes = 0;
    for _ in 0..4 {
        let volume = reopen(&data, None);
        let mut solo = Solo::new().unwrap();
        for _ in 0..150 {
            let at = dice.below(SIZE / 4096 - 8) as usize * 4096;
            let fill = dice.below(256) as u8;
            model[at..at + 8 * 4096].fill(fill);
            write(&mut solo, &volume, at as u64, &[fill; 8 * 4096]).unwrap();
            flush(&mut solo, &volume);
        }
        bytes += volume.figures().committed_bytes;
        volume.abandon();
    }
    assert!(bytes > 8 * LOG, "{bytes} bytes are not many laps");
    assert!(contents(&reopen(&data, None)) == model);
}

/// A storage that refuses some operations, and whose panic can be asked for.
struct Failing {
    lower: Arc<dyn Storage>,
    /// Every so many writes, one fails; 0 for none.
    every: AtomicU64,
    writes: AtomicU64,
    flushes_fail: AtomicBool,
    panics: AtomicBool,
}

impl Failing {
    fn new(lower: Arc<dyn Storage>) -> Arc<Failing> {
        Arc::new(Failing {
            lower,
            every: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes_fail: AtomicBool::new(false),
            panics: AtomicBool::new(false),
        })
    }
}

impl Through for Failing {
    fn below(&self) -> &dyn Storage {
        &*self.lower
    }

    fn start_through(&self, task: &mut Task, token: engine::Token, io: &mut engine::Io<'_>) -> storage::Step {
        let injected = |action| storage::Step::Done(Err(storage::StorageError::Injected(action)));
        assert!(!self.panics.load(Ordering::Relaxed), "as the test wishes");
        match task.operation {
            Operation::Write { .. } | Operation::WriteZeroes { .. } => {
                let every = self.every.load(Ordering::Relaxed);
                if every > 0 && self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(every) {
                    return injected(storage::Action::Write);
                }
            }
            Operation::Flush if self.flushes_fail.load(Ordering::Relaxed) => return injected(storage::Action::Flush),
            _ => {}
        }
        self.lower.start(task, token, io)
    }
}

/// The data's storage fails now and then; the log is elsewhere and does not. Guests see nothing of it.
#[test]
fn writes_back_that_fail_are_tried_again() {
    let (data, log) = fresh(true);
    let failing = Failing::new(data.clone());
    let volume = LoggedStorage::open(failing.clone(), log.clone(), &small()).unwrap();
    let mut model = vec![0; SIZE as usize];
    for every in [3, 1, 0] {
        failing.every.store(every, Ordering::Relaxed);
        // While every write fails only as much is written as memory and log take.
        let steps = if every == 1 { 6 } else { 200 };
        churn(&volume, &mut model, &mut Dice(every), steps);
        if every == 3 {
            volume.sync_now().unwrap();
            assert!(volume.figures().write_back_errors > 0);
        }
    }
    volume.sync_now().unwrap();
    failing.flushes_fail.store(true, Ordering::Relaxed);
    churn(&volume, &mut model, &mut Dice(9), 6);
    failing.flushes_fail.store(false, Ordering::Relaxed);
    assert!(contents(&volume) == model);
    volume.close().unwrap();
    drop(volume);
    assert!(contents(&reopen(&data, log.as_ref())) == model);
}

/// What cannot be written back in the end is said, stays in the log, and comes back.
#[test]
fn a_volume_that_cannot_be_closed_is_replayed() {
    let (data, log) = fresh(true);
    let failing = Failing::new(data.clone());
    let volume = LoggedStorage::open(failing.clone(), log.clone(), &small()).unwrap();
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &volume, 0, &[5; 4096]).unwrap();
    flush(&mut solo, &volume);
    failing.every.store(1, Ordering::Relaxed);
    let error = volume.close().unwrap_err().to_string();
    assert!(error.contains("1 blocks could not be written back"), "{error}");
    drop(volume);
    assert!(!format::read_superblock(&mut Plain(data.clone())).unwrap().clean);
    assert_eq!(read(&mut solo, &reopen(&data, log.as_ref()), 0, 4096), [5; 4096]);
}

/// A panic of the write-back ends the volume: errors, and nobody waits for ever.
#[test]
fn a_write_back_that_breaks_is_seen() {
    let (data, log) = fresh(true);
    let failing = Failing::new(data);
    let volume = LoggedStorage::open(failing.clone(), log, &small()).unwrap();
    failing.panics.store(true, Ordering::Relaxed);
    let mut solo = Solo::new().unwrap();
    let mut task = Task::new();
    let mut block = [7u8; 4096];
    task.buffers = vec![libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: 4096 }];
    // More than there are slots: some writer has to be told.
    let refused = (0..1000).any(|number| {
        task.begin(Operation::Write { offset: number * 4096, durable: false });
        run(&mut solo, &volume, &mut task).is_err()
    });
    assert!(refused);
    let error = volume.sync_now().unwrap_err().to_string();
    assert!(error.contains("as the test wishes"), "{error}");
    assert!(volume.status().failure.is_some());
    assert!(volume.close().is_err());
}

#[test]
fn a_disk_grows_while_it_is_written() {
    let (data, _) = fresh(false);
    let volume = Arc::new(reopen(&data, None));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (volume, stop) = (volume.clone(), stop.clone());
        move || {
            let mut model = vec![0; SIZE as usize];
            let mut dice = Dice(5);
            while !stop.load(Ordering::Relaxed) {
                churn(&*volume, &mut model, &mut dice, 20);
            }
            model
        }
    });
    let mut solo = Solo::new().unwrap();
    let mut size = SIZE;
    for step in [512, 4096, 3 << 20, 512, 1 << 20] {
        size += step;
        volume.resize(size).unwrap();
        assert_eq!(volume.capacity_bytes(), size);
        assert_eq!(read(&mut solo, &*volume, size - 512, 512), [0; 512]);
        write(&mut solo, &*volume, size - 512, &[step as u8 | 1; 512]).unwrap();
        flush(&mut solo, &*volume);
    }
    assert!(volume.resize(size - 512).is_err(), "it does not shrink");
    assert!(volume.resize(size + 1).is_err());
    stop.store(true, Ordering::Relaxed);
    let mut model = writer.join().unwrap();
    flush(&mut solo, &*volume);
    Arc::into_inner(volume).unwrap().abandon();
    let again = reopen(&data, None);
    assert_eq!(again.capacity_bytes(), size);
    model.resize(size as usize, 0);
    let mut end = SIZE as usize;
    for step in [512, 4096, 3 << 20, 512, 1 << 20] {
        end += step;
        model[end - 512..end].fill(step as u8 | 1);
    }
    assert!(contents(&again) == model);
}

#[test]
fn volumes_over_models_begin_empty_and_go_along() {
    let sim = SimOptions { size: ByteSize(SIZE), ..SimOptions::default() };
    let flaky = SimOptions { error_rate: 0.05, flush_error_rate: Some(0.0), read_error_rate: Some(0.0), ..sim.clone() };
    let memory = MemoryOptions { size: Some(ByteSize(SIZE)), ..MemoryOptions::default() };
    let log = log(LOG, 1 << 20);
    let lowers: [Box<dyn Fn() -> Box<dyn Kind>>; 3] = [
        Box::new(move || Box::new(sim.clone())),
        Box::new(move || Box::new(flaky.clone())),
        Box::new(move || Box::new(memory.clone())),
    ];
    for lower in lowers {
        let first = open_made(&log, lower()).unwrap();
        assert_eq!(first.capacity_bytes(), SIZE);
        let mut solo = Solo::new().unwrap();
        assert_eq!(read(&mut solo, &*first, SIZE - 4096, 4096), [0; 4096]);
        write(&mut solo, &*first, 512, &[9; 4096]).unwrap();
        first.resize(SIZE + 4096).unwrap();
        let handed = first.hand_over().unwrap();
        // As by an execve, and not as by a drop.
        std::mem::forget(first);
        let second = adopt_made(&log, lower(), handed).unwrap();
        assert_eq!(second.capacity_bytes(), SIZE + 4096, "{:?}", lower());
        assert_eq!(read(&mut solo, &*second, 512, 4096), [9; 4096]);
        write(&mut solo, &*second, SIZE, &[8; 4096]).unwrap();
    }
    let null = || -> Box<dyn Kind> { Box::new(NullOptions { size: ByteSize(SIZE), ..NullOptions::default() }) };
    let first = open_made(&log, null()).unwrap();
    write(&mut Solo::new().unwrap(), &*first, 0, &[1; 4096]).unwrap();
    let handed = first.hand_over().unwrap();
    drop(first);
    assert_eq!(adopt_made(&log, null(), handed).unwrap().capacity_bytes(), SIZE);
    let found: Box<dyn Kind> = Box::new(storage::FileOptions::new("/nonexistent"));
    let refused = open_made(&log, found).err().unwrap().to_string();
    assert!(refused.contains("intent_log"), "{refused}");
}

/// A directory with a volume, and another on tmpfs for its memory.
struct Place {
    directory: tempfile::TempDir,
    memory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir_in(disk()).unwrap(), memory: tempfile::tempdir_in(shm()).unwrap() }
    }

    fn at(&self) -> VolumeOptions {
        let memory_file = MemoryFile::Path(self.memory.path().join("memory"));
        VolumeOptions { memory_file, ..VolumeOptions::new(self.directory.path().join("volume")) }
    }

    fn with_log(&self) -> VolumeOptions {
        VolumeOptions { log: Some(self.directory.path().join("log")), ..self.at() }
    }
}

fn options() -> CreateOptions {
    CreateOptions { size_bytes: SIZE, log_bytes: LOG, force: false, created_by: "a test".to_owned() }
}

fn spec(at: &VolumeOptions) -> VolumeOptions {
    VolumeOptions { dirty_memory: ByteSize(1 << 20), ..at.clone() }
}

#[test]
fn a_volume_in_files_is_handed_over() {
    for external in [false, true] {
        let place = Place::new();
        let at = if external { place.with_log() } else { place.at() };
        tools::create(&at, &options(), &mut |_| {}).unwrap();
        let first = open(&spec(&at)).unwrap();
        assert_eq!(first.describe().kind, "volume");
        let mut solo = Solo::new().unwrap();
        write(&mut solo, &*first, 4096, &[1; 4096]).unwrap();
        flush(&mut solo, &*first);
        write(&mut solo, &*first, 8192, &[2; 512]).unwrap();
        first.resize(SIZE + 512).unwrap();
        // A look that comes to nothing, and then the real thing.
        drop(first.hand_over().unwrap());
        write(&mut solo, &*first, SIZE, &[3; 512]).unwrap();
        let handed = first.hand_over().unwrap();
        let locked = || open(&spec(&at)).err().unwrap().to_string();
        assert!(locked().contains("is in use"), "{}", locked());
        std::mem::forget(first);
        let second = spec(&at).adopt(handed).unwrap();
        assert!(locked().contains("is in use"), "{}", locked());
        assert_eq!(second.capacity_bytes(), SIZE + 512);
        assert_eq!(read(&mut solo, &*second, 4096, 4096), [1; 4096]);
        assert_eq!(read(&mut solo, &*second, 8192, 512), [2; 512]);
        assert_eq!(read(&mut solo, &*second, SIZE, 512), [3; 512]);
        write(&mut solo, &*second, 0, &[4; 512]).unwrap();
        drop(second);
        assert_eq!(std::fs::read_dir(place.memory.path()).unwrap().count(), 0, "the memory file has gone");
        // The first was forgotten with its locks.
        let unlocked = VolumeOptions { lock: false, ..at };
        assert!(tools::info(&unlocked).unwrap().clean);
    }
}
