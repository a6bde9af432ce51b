//! Volumes: what a guest reads, and what a flush promises.

use crate::common::{figures, fresh, memory, serial};
use engine::{Completion, Io, Solo, Token};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use storage::kit::Through;
use storage::{
    Distribution, Execution, Extent, FileOptions, FileStorage, Operation, SimOptions, Step, Storage, StorageError, Task,
};
use testkit::probe::{Probe, Seen};
use testkit::storage::{Arena, moves, play, read, run, shm, write};
use values::{ByteSize, Span, SyncMode};
use volume::{LoggedOptions, LoggedStorage, tools};

const SECTORS: u64 = 600;
const BLOCK: usize = 4096;

/// A volume in a file, behind a probe.
struct InFile {
    _directory: tempfile::TempDir,
    probe: Arc<Probe>,
    data_offset: u64,
}

impl InFile {
    fn new(size_bytes: u64, log_bytes: u64) -> InFile {
        let directory = tempfile::tempdir_in(shm()).unwrap();
        let path = directory.path().join("volume");
        let options = tools::CreateOptions { size_bytes, log_bytes, force: false, created_by: "a test".to_owned() };
        let info = tools::create(&volume::VolumeOptions::new(&path), &options, &mut |_| {}).unwrap();
        let below = FileStorage::open(&FileOptions { lock: false, ..FileOptions::new(&path) }).unwrap();
        InFile { _directory: directory, probe: Probe::new(Arc::new(below)), data_offset: info.data_offset }
    }

    fn open(&self) -> LoggedStorage {
        LoggedStorage::open(self.probe.clone(), None, &LoggedOptions::default()).unwrap()
    }

    /// Writes to the log among what was seen: those that ended well, by their offsets.
    fn logged(&self, seen: &[Seen]) -> usize {
        seen.iter().filter(|seen| matches!(seen, Seen::Ends(offset, true) if self.in_log(*offset))).count()
    }

    fn in_log(&self, offset: u64) -> bool {
        (8192..self.data_offset).contains(&offset)
    }
}

/// Has no room for so many writes of data.
struct Full {
    below: Arc<dyn Storage>,
    data_offset: u64,
    refuses: AtomicU64,
}

impl Through for Full {
    fn below(&self) -> &dyn Storage {
        &*self.below
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let refuses =
            || self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        match task.operation {
            Operation::Write { offset, .. } if offset >= self.data_offset && refuses() => {
                Step::Done(Err(StorageError::errno(storage::Action::Write, libc::ENOSPC)))
            }
            _ => self.below.start(task, token, io),
        }
    }

    fn resume_through(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.below.resume(task, completion, io)
    }
}

fn flush(solo: &mut Solo, storage: &dyn Storage) -> Result<(), StorageError> {
    let mut task = Task::new();
    task.begin(Operation::Flush);
    run(solo, storage, &mut task)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_volume_reads_what_was_written(history in moves(vec![Execution::Auto, Execution::Inline], SECTORS)) {
        play(fresh(memory(SECTORS * 512), 64 << 10, 1 << 20).as_ref(), &history);
    }

    #[test]
    fn so_it_does_in_a_file(history in moves(vec![Execution::Auto, Execution::Uring], SECTORS)) {
        play(&InFile::new(SECTORS * 512, 64 << 10).open(), &history);
    }

    #[test]
    fn so_it_does_on_a_slow_device(history in moves(vec![Execution::Auto, Execution::Uring], SECTORS)) {
        let latency = Span(Duration::from_micros(20));
        let options = SimOptions {
            size: ByteSize(SECTORS * 512),
            read_latency: latency,
            write_latency: latency,
            distribution: Distribution::Exponential,
            flush_cost: latency,
            ..SimOptions::default()
        };
        play(fresh(Box::new(options), 64 << 10, 1 << 20).as_ref(), &history);
    }

    #[test]
    fn so_it_does_when_every_write_is_stable(history in moves(vec![Execution::Auto], SECTORS)) {
        let storage = fresh(memory(SECTORS * 512), 128 << 10, 1 << 20);
        storage.volume().unwrap().set_sync(SyncMode::Always);
        play(storage.as_ref(), &history);
    }
}

/// In the cache at first, and then below.
#[test]
fn what_was_written_is_data_wherever_it_is() {
    const SIZE: u64 = 4 << 20;
    let volume = InFile::new(SIZE, 64 << 10).open();
    let mut solo = Solo::new().unwrap();
    let extents = || volume.extents(0..SIZE, 10).unwrap();
    assert_eq!(extents(), [Extent { bytes: SIZE, data: false }]);
    write(&mut solo, &volume, 1 << 20, &[1; 512]).unwrap();
    // In pieces of what is looked at in the cache.
    let piece = Extent { bytes: 64 << 10, data: true };
    let hole = |bytes| Extent { bytes, data: false };
    assert_eq!(extents(), [hole(1 << 20), piece, hole(SIZE - (1 << 20) - piece.bytes)]);
    volume.volume().unwrap().sync_now().unwrap();
    assert_eq!(read(&mut solo, &volume, 1 << 20, 512), [1; 512]);
    let below = extents();
    assert_eq!(below.iter().map(|extent| extent.bytes).sum::<u64>(), SIZE);
    assert!(below.len() == 3 && below[1].data && below[0].bytes + below[1].bytes > 1 << 20, "{below:?}");
}

/// A few tasks of one thread, each on blocks of its own; what it has written last is what it must read.
struct Lane {
    task: Task,
    arena: Arena,
    block: u64,
    /// What the block's sectors hold.
    model: [u8; 8],
    /// What the operation in flight does.
    doing: Doing,
    random: u64,
}

#[derive(Clone, Copy)]
enum Doing {
    Write { first: usize, count: usize, byte: u8 },
    Zero,
    Read,
    Flush,
}

impl Lane {
    fn new(block: u64) -> Lane {
        let arena = Arena::new(BLOCK);
        Lane { task: Task::new(), arena, block, model: [0; 8], doing: Doing::Flush, random: block * 77 + 1 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn begin(&mut self, flushes: u64) {
        let offset = self.block * BLOCK as u64;
        let choice = self.draw(100);
        self.doing = if choice < flushes {
            Doing::Flush
        } else if choice < 60 {
            let first = self.draw(8) as usize;
            let count = self.draw(8 - first as u64) as usize + 1;
            Doing::Write { first, count, byte: self.draw(255) as u8 + 1 }
        } else if choice < 65 {
            Doing::Zero
        } else {
            Doing::Read
        };
        match self.doing {
            Doing::Write { first, count, byte } => {
                self.arena.bytes(0, BLOCK).fill(byte);
                self.task.buffers = self.arena.buffers(0, count * 512, &[512, 1024]);
                let durable = self.draw(4) == 0;
                self.task.begin(Operation::Write { offset: offset + first as u64 * 512, durable });
            }
            Doing::Zero => {
                let len = BLOCK as u64;
                self.task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: false });
            }
            Doing::Read => {
                self.arena.bytes(0, BLOCK).fill(0x5a);
                self.task.buffers = self.arena.buffers(0, BLOCK, &[BLOCK]);
                self.task.begin(Operation::Read { offset });
            }
            Doing::Flush => self.task.begin(Operation::Flush),
        }
    }

    fn end(&mut self) {
        match self.doing {
            Doing::Write { first, count, byte } => self.model[first..first + count].fill(byte),
            Doing::Zero => self.model = [0; 8],
            Doing::Read => {
                let block = self.block;
                for (sector, bytes) in self.arena.bytes(0, BLOCK).chunks(512).enumerate() {
                    let expected = self.model[sector];
                    assert!(
                        bytes.iter().all(|byte| *byte == expected),
                        "block {block}, sector {sector}: {} and not {expected}",
                        bytes[0]
                    );
                }
            }
            Doing::Flush => {}
        }
    }
}

/// Serves `lanes` on this thread until each has done `rounds` operations.
fn serve(storage: &dyn Storage, lanes: &mut [Lane], rounds: usize, flushes: u64) {
    let mut solo = Solo::new().unwrap();
    let mut done = vec![0; lanes.len()];
    let mut ready: Vec<usize> = (0..lanes.len()).collect();
    let mut pending = 0;
    loop {
        while let Some(index) = ready.pop() {
            let lane = &mut lanes[index];
            if done[index] == rounds {
                continue;
            }
            lane.begin(flushes);
            match storage.start(&mut lane.task, Token::request(index as u16), &mut solo.io()) {
                Step::Pending => pending += 1,
                Step::Done(result) => {
                    result.unwrap();
                    lane.end();
                    done[index] += 1;
                    ready.push(index);
                }
            }
        }
        if pending == 0 {
            return;
        }
        let completion = solo.wait().unwrap();
        let index = completion.index();
        let lane = &mut lanes[index];
        if let Step::Done(result) = storage.resume(&mut lane.task, completion, &mut solo.io()) {
            result.unwrap();
            lane.end();
            done[index] += 1;
            pending -= 1;
            ready.push(index);
        }
    }
}

fn on_threads(storage: &Arc<dyn Storage>, threads: u64, lanes: u64, rounds: usize, flushes: u64) -> Vec<Lane> {
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let storage = storage.clone();
            std::thread::spawn(move || {
                // Neighbours on other threads, so that runs of write-back and records mix them.
                let mut mine: Vec<_> = (0..lanes).map(|lane| Lane::new(lane * threads + thread)).collect();
                serve(storage.as_ref(), &mut mine, rounds, flushes);
                mine
            })
        })
        .collect();
    workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
}

fn assert_lanes(storage: &dyn Storage, lanes: &[Lane]) {
    let mut solo = Solo::new().unwrap();
    for lane in lanes {
        let found = read(&mut solo, storage, lane.block * BLOCK as u64, BLOCK);
        for (sector, bytes) in found.chunks(512).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == lane.model[sector]), "block {}, sector {sector}", lane.block);
        }
    }
}

#[test]
fn threads_read_what_they_wrote_while_it_is_written_back() {
    for lower in [memory(4 << 20), serial(4 << 20, Duration::from_micros(50))] {
        let storage = fresh(lower, 256 << 10, 1 << 20);
        let done = AtomicBool::new(false);
        let lanes = std::thread::scope(|scope| {
            // Sweeps all the time, besides those that the volume thinks of.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    storage.volume().unwrap().sync_now().unwrap();
                }
            });
            let lanes = on_threads(&storage, 2, 40, 2000, 5);
            done.store(true, Ordering::Relaxed);
            lanes
        });
        assert_lanes(storage.as_ref(), &lanes);
        let figures = figures(storage.as_ref());
        assert!(figures.commits > 0 && figures.sweeps > 0, "{figures:?}");
        storage.volume().unwrap().sync_now().unwrap();
        assert_lanes(storage.as_ref(), &lanes);
    }
}

#[test]
fn a_full_cache_and_a_full_log_hold_writers_up_and_let_them_go() {
    // Twice the cache, eight times and more the log, from two threads; nothing is flushed on one volume, much on the other.
    for flushes in [0, 20] {
        let storage = fresh(memory(8 << 20), 64 << 10, 1 << 20);
        let lanes = on_threads(&storage, 2, 300, 60, flushes);
        let figures = figures(storage.as_ref());
        assert!(figures.parked_writers > 0, "{figures:?}");
        assert!(figures.parked_commits > 0, "{figures:?}");
        assert_eq!(figures.parked_writers_now, 0);
        assert_lanes(storage.as_ref(), &lanes);
    }
}

/// A flush of much more than one record holds, on a storage that writes at once and on one that does not.
#[test]
fn a_flush_may_take_many_records() {
    for lower in [memory(16 << 20), serial(16 << 20, Duration::from_micros(100))] {
        let storage = fresh(lower, 64 << 20, 32 << 20);
        let mut solo = Solo::new().unwrap();
        let data: Vec<u8> = (0..12 << 20).map(|i| (i / 4096 % 251) as u8).collect();
        write(&mut solo, storage.as_ref(), 0, &data).unwrap();
        flush(&mut solo, storage.as_ref()).unwrap();
        let figures = figures(storage.as_ref());
        assert_eq!((figures.commits, figures.committed_requests, figures.committed_blocks), (4, 1, 3072));
        testkit::storage::assert_same(&read(&mut solo, storage.as_ref(), 0, data.len()), &data, 0);
    }
}

/// What does not fit the log is written back while the flush waits for room, and need not be logged any more.
#[test]
fn a_flush_of_more_than_the_log_holds_is_no_pass_for_each_of_its_fills() {
    let storage = fresh(memory(16 << 20), 64 << 10, 8 << 20);
    let mut solo = Solo::new().unwrap();
    let data: Vec<u8> = (0..4 << 20).map(|i| (i / 4096 % 251) as u8).collect();
    write(&mut solo, storage.as_ref(), 0, &data).unwrap();
    flush(&mut solo, storage.as_ref()).unwrap();
    let figures = figures(storage.as_ref());
    assert!(figures.sweeps < 8 && figures.written_back_bytes < 32 << 20, "{figures:?}");
    testkit::storage::assert_same(&read(&mut solo, storage.as_ref(), 0, data.len()), &data, 0);
}

#[test]
fn one_write_may_be_larger_than_the_cache() {
    let storage = fresh(memory(8 << 20), 64 << 10, 1 << 20);
    let mut solo = Solo::new().unwrap();
    let data: Vec<u8> = (0..4 << 20).map(|i| (i / 512 % 251) as u8).collect();
    write(&mut solo, storage.as_ref(), 512, &data).unwrap();
    testkit::storage::assert_same(&read(&mut solo, storage.as_ref(), 512, data.len()), &data, 512);
    flush(&mut solo, storage.as_ref()).unwrap();
    let mut task = Task::new();
    task.begin(Operation::WriteZeroes { offset: 0, len: 8 << 20, unmap: true, durable: true });
    run(&mut solo, storage.as_ref(), &mut task).unwrap();
    assert!(read(&mut solo, storage.as_ref(), 0, 8 << 20).iter().all(|byte| *byte == 0));
}

#[test]
fn a_lone_writer_pays_one_log_write_a_flush_and_waits_for_nobody() {
    let volume = InFile::new(1 << 20, 1 << 20);
    let storage = volume.open();
    let mut solo = Solo::new().unwrap();
    volume.probe.take();
    for round in 0..50u64 {
        write(&mut solo, &storage, round * 4096, &[round as u8 + 1; 4096]).unwrap();
        flush(&mut solo, &storage).unwrap();
        flush(&mut solo, &storage).unwrap();
    }
    let figures = storage.figures();
    assert_eq!((figures.commits, figures.committed_requests, figures.committed_blocks), (50, 50, 50));
    assert_eq!(figures.flushes_for_nothing, 50, "what is in the log is not logged again");
    assert_eq!(figures.company_wait.count, 0);
    assert_eq!(figures.committed_bytes, 50 * 8192);
    let seen = volume.probe.take();
    assert_eq!(volume.logged(&seen), 50);
    let durable = |seen: &&Seen| matches!(seen, Seen::Begins(offset, 8192, true) if volume.in_log(*offset));
    assert_eq!(seen.iter().filter(durable).count(), 50, "header and block, made stable with the write");
}

#[test]
fn nothing_is_logged_that_nobody_flushes() {
    let volume = InFile::new(1 << 20, 1 << 20);
    let storage = volume.open();
    let mut solo = Solo::new().unwrap();
    volume.probe.take();
    for round in 0..100u64 {
        write(&mut solo, &storage, round % 10 * 4096, &[round as u8; 4096]).unwrap();
    }
    storage.close().unwrap();
    let seen = volume.probe.take();
    assert_eq!(volume.logged(&seen), 0);
    assert_eq!(storage.figures().commits, 0);
}

#[test]
fn a_flush_is_answered_after_its_log_write_and_survives() {
    let volume = InFile::new(4 << 20, 1 << 20);
    let mut expected: HashMap<u64, u8> = HashMap::new();
    let mut solo = Solo::new().unwrap();
    for life in 0..5u8 {
        let storage = volume.open();
        for (block, byte) in &expected {
            let found = read(&mut solo, &storage, block * 4096, 4096);
            assert!(found.iter().all(|found| found == byte), "life {life}, block {block}");
        }
        for round in 0..20u64 {
            let (block, byte) = (u64::from(life) * 7 + round * 3, life * 20 + round as u8 + 1);
            write(&mut solo, &storage, block * 4096, &[byte; 4096]).unwrap();
            expected.insert(block, byte);
            volume.probe.take();
            flush(&mut solo, &storage).unwrap();
            let seen = volume.probe.take();
            assert_eq!(volume.logged(&seen), 1, "{seen:?}");
        }
        // Killed, with its memory.
        storage.abandon();
    }
}

#[test]
fn durable_writes_are_stable_without_a_flush() {
    let volume = InFile::new(1 << 20, 1 << 20);
    let mut solo = Solo::new().unwrap();
    let storage = volume.open();
    let mut arena = Arena::new(4096);
    arena.bytes(0, 4096).fill(7);
    let mut task = Task::new();
    task.buffers = arena.buffers(0, 4096, &[512]);
    task.begin(Operation::Write { offset: 8192 + 512, durable: true });
    run(&mut solo, &storage, &mut task).unwrap();
    task.begin(Operation::WriteZeroes { offset: 8192 + 1024, len: 512, unmap: false, durable: true });
    run(&mut solo, &storage, &mut task).unwrap();
    storage.abandon();
    let storage = volume.open();
    let found = read(&mut solo, &storage, 8192, 8192);
    let expected: Vec<u8> = [(0, 512), (7, 512), (0, 512), (7, 3072), (0, 3584)]
        .into_iter()
        .flat_map(|(byte, count)| std::iter::repeat_n(byte, count))
        .collect();
    testkit::storage::assert_same(&found, &expected, 8192);
}

#[test]
fn sync_modes_change_what_is_waited_for() {
    let volume = InFile::new(1 << 20, 1 << 20);
    let storage = volume.open();
    let control = storage.volume().unwrap();
    let mut solo = Solo::new().unwrap();
    control.set_sync(SyncMode::Always);
    write(&mut solo, &storage, 0, &[1; 512]).unwrap();
    assert_eq!(storage.figures().commits, 1);
    control.set_sync(SyncMode::Disabled);
    write(&mut solo, &storage, 0, &[2; 512]).unwrap();
    flush(&mut solo, &storage).unwrap();
    assert_eq!(storage.figures().commits, 1);
    control.set_sync(SyncMode::Standard);
    assert_eq!(control.status().sync, SyncMode::Standard);
    flush(&mut solo, &storage).unwrap();
    assert_eq!(storage.figures().commits, 2, "what was written meanwhile is covered again");
    storage.abandon();
    let storage = volume.open();
    assert_eq!(read(&mut solo, &storage, 0, 512), [2; 512]);
}

#[test]
fn a_failed_log_write_is_an_error_once_and_loses_nothing() {
    let volume = InFile::new(1 << 20, 1 << 20);
    let mut solo = Solo::new().unwrap();
    let mut expected: HashMap<u64, u8> = HashMap::new();
    for life in 0..4u8 {
        let storage = volume.open();
        for (block, byte) in &expected {
            let found = read(&mut solo, &storage, block * 4096, 4096);
            assert!(found.iter().all(|found| found == byte), "life {life}, block {block}");
        }
        for round in 0..8u64 {
            let (block, byte) = (round * 5 % 8, life * 50 + round as u8 + 1);
            write(&mut solo, &storage, block * 4096, &[byte; 4096]).unwrap();
            if round % 3 == 1 {
                volume.probe.fail_next(1);
                assert!(flush(&mut solo, &storage).is_err());
                // It stays readable, and newer data may come before the next try.
                let found = read(&mut solo, &storage, block * 4096, 512);
                assert_eq!(found, [byte; 512]);
                if life % 2 == 0 {
                    write(&mut solo, &storage, block * 4096, &[byte + 100; 4096]).unwrap();
                    expected.insert(block, byte + 100);
                } else {
                    expected.insert(block, byte);
                }
            } else {
                expected.insert(block, byte);
            }
            flush(&mut solo, &storage).unwrap();
        }
        assert_eq!(storage.figures().log_errors, 3, "in rounds 1, 4 and 7");
        storage.abandon();
    }
}

#[test]
fn log_writes_that_fail_now_and_then_lose_nothing() {
    let volume = InFile::new(4 << 20, 256 << 10);
    let mut solo = Solo::new().unwrap();
    let storage = volume.open();
    let mut model = [0u8; 64];
    let mut errors = 0;
    for round in 0..600usize {
        // Several that flush at once share the error of their commit.
        let mut tasks: Vec<Task> = (0..4).map(|_| Task::new()).collect();
        for lane in 0..4 {
            let block = (round * 7 + lane * 16) % 64;
            let byte = (round % 251) as u8 + 1;
            write(&mut solo, &storage, (block * BLOCK) as u64, &[byte; BLOCK]).unwrap();
            model[block] = byte;
        }
        if round % 11 == 5 {
            volume.probe.fail_next(1);
        }
        let mut pending = 0;
        let mut ended = |result: Result<(), StorageError>| errors += usize::from(result.is_err());
        for (token, task) in tasks.iter_mut().enumerate() {
            task.begin(Operation::Flush);
            match storage.start(task, Token::request(token as u16), &mut solo.io()) {
                Step::Pending => pending += 1,
                Step::Done(result) => ended(result),
            }
        }
        while pending > 0 {
            let completion = solo.wait().unwrap();
            if let Step::Done(result) = storage.resume(&mut tasks[completion.index()], completion, &mut solo.io()) {
                ended(result);
                pending -= 1;
            }
        }
    }
    assert!(errors > 0);
    volume.probe.fail_next(0);
    flush(&mut solo, &storage).unwrap();
    storage.abandon();
    let storage = volume.open();
    for (block, byte) in model.iter().enumerate() {
        let found = read(&mut solo, &storage, (block * BLOCK) as u64, BLOCK);
        assert!(found.iter().all(|found| found == byte), "block {block}");
    }
}

/// The pass behind one that found no room may find some, as what that took is given back.
#[test]
fn who_waits_for_write_back_is_told_that_there_is_no_room_if_that_stays_so() {
    let file = InFile::new(1 << 20, 64 << 10);
    let full = Full { below: file.probe.clone(), data_offset: file.data_offset, refuses: AtomicU64::new(0) };
    let full = Arc::new(full);
    let volume = LoggedStorage::open(full.clone(), None, &LoggedOptions::default()).unwrap();
    let mut solo = Solo::new().unwrap();
    for (refuses, is_told) in [(1, false), (u64::MAX, true), (1, false)] {
        write(&mut solo, &volume, 0, &[refuses as u8; BLOCK]).unwrap();
        full.refuses.store(refuses, Ordering::SeqCst);
        let synced = volume.volume().unwrap().sync_now();
        assert_eq!(synced.map_err(|error| error.is_full()), if is_told { Err(true) } else { Ok(()) }, "{refuses}");
        full.refuses.store(0, Ordering::SeqCst);
        volume.volume().unwrap().sync_now().unwrap();
    }
}
