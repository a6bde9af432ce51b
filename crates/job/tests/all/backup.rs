//! Backups that are cancelled, that fail, and that nobody runs; what they read and write; limits.

use crate::tools::{CLUSTER, Gate, churn, contents, fill, memory, put, soon};
use engine::{Solo, Token};
use job::{Backup, Copied, JobError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use storage::{Action, FileOptions, FileStorage, Operation, Step, Storage, StorageError, Task};
use testkit::Rng;
use testkit::storage::{Arena, assert_same, image, run_together, shm};

const BYTES: u64 = 16 << 20;

/// A guest that writes to many clusters at once. Panics if one of its requests fails; `true` for those that have to wait.
struct Guest {
    solo: Solo,
    tasks: Vec<Task>,
    waiting: Vec<bool>,
    _arena: Arena,
}

impl Guest {
    fn start(storage: &dyn Storage, offsets: impl Iterator<Item = u64>) -> Guest {
        let (mut solo, mut arena) = (Solo::new().unwrap(), Arena::new(512));
        arena.bytes(0, 512).fill(0x77);
        let mut tasks = Vec::new();
        for offset in offsets {
            let mut task = Task::new();
            task.buffers = arena.buffers(0, 512, &[512]);
            task.begin(Operation::Write { offset, durable: false });
            tasks.push(task);
        }
        let mut waiting = Vec::new();
        for (token, task) in tasks.iter_mut().enumerate() {
            let step = storage.start(task, Token::request(token as u16), &mut solo.io());
            waiting.push(matches!(step, Step::Pending));
            assert!(!matches!(step, Step::Done(Err(_))), "{step:?}");
        }
        Guest { solo, tasks, waiting, _arena: arena }
    }

    fn finish(&mut self, storage: &dyn Storage) {
        while self.waiting.contains(&true) {
            let completion = self.solo.wait().unwrap();
            let place = completion.index();
            match storage.resume(&mut self.tasks[place], completion, &mut self.solo.io()) {
                Step::Pending => {}
                Step::Done(result) => {
                    result.unwrap();
                    self.waiting[place] = false;
                }
            }
        }
    }
}

fn every_cluster() -> impl Iterator<Item = u64> {
    (0..BYTES / CLUSTER).map(|cluster| cluster * CLUSTER + 512)
}

fn assert_written(storage: &dyn Storage) {
    let bytes = contents(storage);
    assert!(every_cluster().all(|at| bytes[at as usize..at as usize + 512] == [0x77; 512]));
}

#[test]
fn who_waits_for_a_backup_that_nobody_runs_goes_on_when_it_is_dropped() {
    let (from, to) = (memory(BYTES), memory(BYTES));
    let backup = Backup::new(from.clone(), to, true).unwrap();
    let filter = backup.filter();
    let mut guest = Guest::start(&*filter, every_cluster());
    assert!(guest.waiting.iter().all(|waits| *waits));
    drop(backup);
    guest.finish(&*filter);
    assert_written(&*from);
    assert!(Guest::start(&*filter, every_cluster()).waiting.iter().all(|waits| !waits));
}

#[test]
fn a_cancelled_backup_does_not_run() {
    let (from, to) = (memory(BYTES), memory(BYTES));
    let backup = Backup::new(from, to, true).unwrap();
    let filter = backup.filter();
    let mut guest = Guest::start(&*filter, every_cluster());
    backup.cancel();
    guest.finish(&*filter);
    assert!(matches!(backup.run(), Err(JobError::Cancelled)));
}

#[test]
fn a_backup_runs_once() {
    let backup = Backup::new(memory(BYTES), memory(BYTES), true).unwrap();
    assert_eq!(backup.run().unwrap(), Copied { data_bytes: 0, zero_bytes: BYTES });
    assert!(backup.run().is_err());
}

#[test]
fn only_what_has_changed_is_copied_and_guarded() {
    let (from, to) = (memory(BYTES + 512), memory(BYTES + 512));
    let before = fill(&*from, &mut Rng(7));
    put(&*to, 0, &before);
    // What nobody says has changed is not looked at.
    let changes =
        [CLUSTER..CLUSTER + 512, 5 * CLUSTER - 512..6 * CLUSTER + 512, BYTES..BYTES + 512, 9 * CLUSTER..9 * CLUSTER];
    for at in [CLUSTER, 5 * CLUSTER - 512, 6 * CLUSTER, 20 * CLUSTER, BYTES] {
        put(&*from, at, &[0xcc; 512]);
    }
    put(&*from, 5 * CLUSTER, &[0; CLUSTER as usize]);
    let mut oracle = contents(&*from);
    oracle[20 * CLUSTER as usize..21 * CLUSTER as usize]
        .copy_from_slice(&before[20 * CLUSTER as usize..21 * CLUSTER as usize]);
    let backup = Backup::of_changes(from.clone(), to.clone(), changes).unwrap();
    let mut guest = Guest::start(&*backup.filter(), (0..8).map(|cluster| cluster * CLUSTER));
    assert_eq!(guest.waiting, [false, true, false, false, true, true, true, false]);
    scope(|scope| {
        scope.spawn(|| backup.run().unwrap());
        guest.finish(&*backup.filter());
    });
    for at in [0, 2, 3, 7].map(|cluster| cluster * CLUSTER as usize) {
        oracle[at..at + 512].copy_from_slice(&before[at..at + 512]);
    }
    assert_same(&contents(&*to), &oracle, 0);
    let progress = backup.progress();
    assert_eq!((progress.done_bytes, progress.total_bytes), (4 * CLUSTER + 512, 4 * CLUSTER + 512));
}

#[test]
fn a_target_that_hangs_keeps_no_guest_for_longer_than_it_may() {
    let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
    fill(&*from, &mut Rng(6));
    let backup = Backup::new(from.clone(), to.clone(), false).unwrap();
    backup.set_patience(Duration::from_millis(100));
    let filter = backup.filter();
    to.shut();
    scope(|scope| {
        let run = scope.spawn(|| backup.run());
        soon("all lanes hang", || to.held() == 8);
        let mut guest = Guest::start(&*filter, every_cluster());
        assert!(guest.waiting.contains(&true));
        guest.finish(&*filter);
        assert_written(&*from);
        to.open();
        assert!(matches!(run.join().unwrap(), Err(JobError::Slow { ms: 100.. })));
    });
}

#[test]
fn discards_of_what_is_guarded_wait_for_nobody_and_do_nothing() {
    let (from, to) = (memory(BYTES), memory(BYTES));
    let before = fill(&*from, &mut Rng(8));
    let backup = Backup::new(from.clone(), to.clone(), true).unwrap();
    let (filter, mut solo, mut task) = (backup.filter(), Solo::new().unwrap(), Task::new());
    task.begin(Operation::Discard { offset: 0, len: BYTES });
    assert!(matches!(filter.start(&mut task, Token::request(0), &mut solo.io()), Step::Done(Ok(()))));
    task.begin(Operation::Discard { offset: BYTES, len: 512 });
    assert!(matches!(filter.start(&mut task, Token::request(0), &mut solo.io()), Step::Done(Err(_))));
    backup.run().unwrap();
    assert_same(&contents(&*to), &before, 0);
    assert_same(&contents(&*from), &before, 0);
}

#[test]
fn a_target_that_hangs_keeps_no_guest_once_the_backup_is_cancelled() {
    let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
    fill(&*from, &mut Rng(5));
    let backup = Backup::new(from.clone(), to.clone(), false).unwrap();
    let filter = backup.filter();
    to.shut();
    scope(|scope| {
        let run = scope.spawn(|| backup.run());
        soon("all lanes hang", || to.held() == 8);
        let mut guest = Guest::start(&*filter, every_cluster());
        assert!(guest.waiting.contains(&true) && guest.waiting.contains(&false));
        sleep(Duration::from_millis(20));
        backup.cancel();
        guest.finish(&*filter);
        assert_written(&*from);
        assert!(!run.is_finished(), "the target has its buffers");
        to.open();
        assert!(matches!(run.join().unwrap(), Err(JobError::Cancelled)));
    });
}

#[test]
fn no_guest_waits_for_what_hangs_beside_what_has_failed() {
    let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
    put(&*from, 0, &vec![1; BYTES as usize]);
    let backup = Backup::new(from.clone(), to.clone(), false).unwrap();
    let filter = backup.filter();
    to.writes_left.store(5, Ordering::SeqCst);
    to.shut();
    let mut guest = Guest::start(&*filter, every_cluster());
    scope(|scope| {
        let run = scope.spawn(|| backup.run());
        guest.finish(&*filter);
        assert_eq!(to.held(), 5);
        assert!(!run.is_finished(), "the target has its buffers");
        to.open();
        assert!(matches!(run.join().unwrap(), Err(JobError::Storage { .. })));
    });
    assert_written(&*from);
}

#[test]
fn guests_that_wait_go_on_when_the_backup_is_cancelled_in_the_middle() {
    for round in 0..12 {
        let (from, to) = (memory(BYTES), memory(BYTES));
        fill(&*from, &mut Rng(7));
        let backup = Backup::new(from.clone(), to, false).unwrap();
        let filter = backup.filter();
        scope(|scope| {
            let run = scope.spawn(|| backup.run());
            let guest = scope.spawn(|| Guest::start(&*filter, every_cluster()).finish(&*filter));
            sleep(Duration::from_micros(round * 300));
            backup.cancel();
            guest.join().unwrap();
            // It may have been done before.
            assert!(matches!(run.join().unwrap(), Ok(_) | Err(JobError::Cancelled)));
        });
        assert_written(&*from);
    }
}

#[test]
fn a_storage_that_fails_fails_the_backup_and_no_guest() {
    let expect = |error: &JobError, reads: bool| match error {
        JobError::Storage { what, source: StorageError::Injected(_) } => {
            assert_eq!(*what, if reads { "read the disk" } else { "write the copy" });
        }
        other => panic!("{other}"),
    };
    for (reads, after) in [(false, 0), (false, 1), (false, 7), (false, 30), (true, 0), (true, 5)] {
        let (from, to) = (Gate::new(memory(BYTES)), Gate::new(memory(BYTES)));
        let before = fill(&*from, &mut Rng(9));
        let gate = if reads { &from.reads_left } else { &to.writes_left };
        gate.store(after, Ordering::SeqCst);
        let backup = Backup::new(from.clone(), to.clone(), false).unwrap();
        let filter = backup.filter();
        let error = scope(|scope| {
            let run = scope.spawn(|| backup.run());
            if reads {
                // This guest does not read, which would fail.
                Guest::start(&*filter, every_cluster()).finish(&*filter);
            } else {
                let after = churn(&*filter, 0..BYTES / 512, before, Rng(11), 200);
                assert_same(&contents(&*from), &after, 0);
            }
            run.join().unwrap().unwrap_err()
        });
        expect(&error, reads);
        assert!(Guest::start(&*filter, every_cluster()).waiting.iter().all(|waits| !waits));
    }
}

#[test]
fn a_panic_of_the_job_keeps_no_guest() {
    for after in [0, 5] {
        let (from, to) = (memory(BYTES), Gate::new(memory(BYTES)));
        fill(&*from, &mut Rng(13));
        to.writes_left.store(after, Ordering::SeqCst);
        to.panics.store(true, Ordering::SeqCst);
        let backup = Backup::new(from.clone(), to, false).unwrap();
        let filter = backup.filter();
        let mut guest = Guest::start(&*filter, every_cluster());
        scope(|scope| assert!(scope.spawn(|| backup.run()).join().is_err()));
        guest.finish(&*filter);
        assert_written(&*from);
    }
}

#[test]
fn a_guest_is_faster_than_the_limit() {
    let (from, to) = (memory(BYTES), memory(BYTES));
    let before = fill(&*from, &mut Rng(15));
    let backup = Backup::new(from, to.clone(), false).unwrap();
    let filter = backup.filter();
    backup.set_limit(Some(0));
    scope(|scope| {
        let run = scope.spawn(|| backup.run());
        Guest::start(&*filter, every_cluster().step_by(5)).finish(&*filter);
        // The job sleeps now, and one request after the other wakes it.
        for offset in every_cluster().skip(1).step_by(7) {
            Guest::start(&*filter, std::iter::once(offset)).finish(&*filter);
        }
        assert!(backup.progress().done_bytes < BYTES);
        // What is asked for by many, and all of it, too.
        let mut zeroes: Vec<Task> = (0..3).map(|_| Task::new()).collect();
        for task in &mut zeroes {
            task.begin(Operation::WriteZeroes { offset: 0, len: BYTES, unmap: true, durable: false });
        }
        run_together(&mut Solo::new().unwrap(), &*filter, &mut zeroes);
        assert!(run.join().unwrap().is_ok(), "nothing is left for the walk");
    });
    assert_same(&contents(&*to), &before, 0);
}

#[test]
fn the_walk_keeps_to_its_limit() {
    let (from, to) = (memory(4 << 20), memory(4 << 20));
    put(&*from, 0, &vec![1; 4 << 20]);
    let backup = Backup::new(from, to, true).unwrap();
    backup.set_limit(Some(8 << 20));
    let begin = Instant::now();
    backup.run().unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    // The last piece is not waited for, and there may be a burst.
    assert!((0.27..5.0).contains(&seconds), "4 MiB at 8 MiB a second took {seconds} s");
}

#[test]
fn what_is_not_there_is_neither_read_nor_written() {
    let (source, target) = (image(shm(), 200 << 20), image(shm(), 200 << 20));
    let open = |image: &tempfile::NamedTempFile| -> Arc<dyn Storage> {
        Arc::new(FileStorage::open(&FileOptions::new(image.path())).unwrap())
    };
    let (from, to) = (Gate::new(open(&source)), Gate::new(open(&target)));
    for (offset, len) in [(512, 512), (70 << 20, 5000 * 512), ((200 << 20) - 512, 512)] {
        put(&*from, offset, &vec![3; len]);
    }
    let before = contents(&*from);
    from.read_bytes.store(0, Ordering::SeqCst);
    let copied = Backup::new(from.clone(), to.clone(), true).unwrap().run().unwrap();
    assert_same(&contents(&*to), &before, 0);
    assert!(from.read_bytes.load(Ordering::SeqCst) < 4 << 20);
    assert!(copied.data_bytes < 4 << 20 && copied.data_bytes + copied.zero_bytes == 200 << 20, "{copied:?}");
    assert_eq!(to.zeroes.load(Ordering::SeqCst), 0);
    assert_eq!(to.flushes.load(Ordering::SeqCst), 1);
    // A target with something in it has zeroes written.
    put(&*to, 0, &vec![9; 200 << 20]);
    Backup::new(from, to.clone(), false).unwrap().run().unwrap();
    assert_same(&contents(&*to), &before, 0);
}

#[test]
fn a_disk_that_grows_is_copied_as_large_as_it_was() {
    let size = BYTES - 512;
    let (from, to) = (memory(size), memory(size));
    let before = fill(&*from, &mut Rng(17));
    let backup = Backup::new(from.clone(), to.clone(), false).unwrap();
    let filter = backup.filter();
    filter.resize(size + 4096).unwrap();
    let guest = Guest::start(&*filter, (0..8).map(|sector| size + sector * 512));
    assert!(!guest.waiting.contains(&true), "nothing there is copied");
    let mut guest = Guest::start(&*filter, std::iter::once(size - 512));
    assert!(guest.waiting[0]);
    scope(|scope| {
        let run = scope.spawn(|| backup.run());
        guest.finish(&*filter);
        run.join().unwrap().unwrap();
    });
    assert_same(&contents(&*to), &before, 0);
    assert!(contents(&*from)[size as usize - 512..] == [0x77; 9 * 512]);
}

#[test]
fn a_target_that_cannot_hold_the_copy_is_refused() {
    let small = Backup::new(memory(BYTES), memory(BYTES - 512), true).err().unwrap();
    assert!(matches!(small, StorageError::OutOfRange(Action::Write)), "{small}");
    let file = image(shm(), BYTES);
    let options = FileOptions { read_only: true, ..FileOptions::new(file.path()) };
    let to = Arc::new(FileStorage::open(&options).unwrap());
    let error = Backup::new(memory(BYTES), to, true).err().unwrap();
    assert!(matches!(error, StorageError::ReadOnly(Action::Write)), "{error}");
}
