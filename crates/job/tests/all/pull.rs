//! Pulls that are cancelled, that fail, and what they save.

use crate::tools::{CLUSTER, Ends, Gate, churn, contents, fill, memory, put, soon};
use engine::{Solo, Token};
use job::{JobError, Pull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;
use storage::{Action, Extent, FileOptions, FileStorage, Operation, Step, Storage, StorageError, Task};
use testkit::Rng;
use testkit::storage::{Arena, assert_same, image, run, shm, write};

const BYTES: u64 = 16 << 20;

/// What a read of everything answers.
fn read_all(view: &dyn Storage) -> Result<Vec<u8>, StorageError> {
    let mut arena = Arena::new(BYTES as usize);
    let mut task = Task::new();
    task.buffers = arena.buffers(0, BYTES as usize, &[4096, 100 << 10]);
    task.begin(Operation::Read { offset: 0 });
    run(&mut Solo::new().unwrap(), view, &mut task)?;
    Ok(arena.bytes(0, BYTES as usize).to_vec())
}

#[test]
fn only_what_guests_write_over_is_saved_and_once() {
    let (from, scratch) = (Gate::new(memory(BYTES)), Gate::new(memory(BYTES)));
    let before = fill(&*from, &mut Rng(3));
    from.read_bytes.store(0, Ordering::SeqCst);
    let pull = Pull::new(from.clone(), scratch.clone()).unwrap();
    let (filter, view) = (pull.filter(), pull.view());
    let is_ready = AtomicBool::new(false);
    scope(|scope| {
        let _ends = Ends(&pull);
        let run = scope.spawn(|| pull.run(&mut || is_ready.store(true, Ordering::SeqCst)));
        for _ in 0..3 {
            for cluster in [1, 7, 8] {
                put(&*filter, cluster * CLUSTER + 512, &[0x77; 512]);
            }
        }
        assert_eq!(from.read_bytes.load(Ordering::SeqCst), 3 * CLUSTER);
        assert_same(&read_all(&*view).unwrap(), &before, 0);
        assert_eq!(pull.progress().done_bytes, 3 * CLUSTER);
        // What is saved is read where it was saved.
        from.reads_left.store(0, Ordering::SeqCst);
        let mut solo = Solo::new().unwrap();
        let saved = testkit::storage::read(&mut solo, &*view, 7 * CLUSTER, 2 * CLUSTER as usize);
        assert_same(&saved, &before[7 * CLUSTER as usize..][..2 * CLUSTER as usize], 0);
        from.reads_left.store(u64::MAX, Ordering::SeqCst);
        assert!(!run.is_finished());
        pull.complete();
        let copied = run.join().unwrap().unwrap();
        assert!(is_ready.load(Ordering::SeqCst));
        assert_eq!(copied.data_bytes + copied.zero_bytes, 3 * CLUSTER);
    });
    assert_eq!(scratch.flushes.load(Ordering::SeqCst), 0);
    assert!(read_all(&*view).is_err(), "nothing keeps it any more");
    assert!(view.extents(0..BYTES, 100).is_err());
    // Guests go on without it.
    put(&*filter, 0, &[0x78; 512]);
    assert!(matches!(pull.run(&mut || {}), Err(JobError::Cancelled)), "once");
}

#[test]
fn nothing_is_written_through_the_view() {
    let from = memory(BYTES);
    let before = fill(&*from, &mut Rng(4));
    let pull = Pull::new(from.clone(), memory(BYTES)).unwrap();
    let (view, mut solo, mut task) = (pull.view(), Solo::new().unwrap(), Task::new());
    assert!(matches!(write(&mut solo, &*view, 0, &[1; 512]), Err(StorageError::ReadOnly(Action::Write))));
    for operation in [
        Operation::Discard { offset: 0, len: 512 },
        Operation::WriteZeroes { offset: 0, len: 512, unmap: true, durable: false },
    ] {
        task.begin(operation);
        assert!(matches!(run(&mut solo, &*view, &mut task), Err(StorageError::ReadOnly(_))));
    }
    task.begin(Operation::Flush);
    run(&mut solo, &*view, &mut task).unwrap();
    task.begin(Operation::Read { offset: BYTES });
    task.buffers = Arena::new(512).buffers(0, 512, &[512]);
    assert!(matches!(view.start(&mut task, Token::request(0), &mut solo.io()), Step::Done(Err(_))));
    assert!(view.describe().read_only && view.resize(2 * BYTES).is_err());
    assert_same(&contents(&*from), &before, 0);
}

#[test]
fn a_disk_that_grows_is_seen_as_large_as_it_was() {
    let from = memory(BYTES);
    let before = fill(&*from, &mut Rng(5));
    let pull = Pull::new(from, memory(BYTES)).unwrap();
    let (filter, view) = (pull.filter(), pull.view());
    filter.resize(2 * BYTES).unwrap();
    put(&*filter, BYTES, &[1; 512]);
    assert_eq!(view.capacity_bytes(), BYTES);
    assert_same(&contents(&*view), &before, 0);
    assert!(matches!(Pull::new(filter, memory(BYTES)), Err(StorageError::OutOfRange(_))));
}

/// A reader has what was there or an error, and a guest no error.
#[test]
fn a_full_scratch_storage_fails_the_pull_and_no_guest() {
    for after in [0, 1, 20] {
        let (from, scratch) = (memory(BYTES), Gate::new(memory(BYTES)));
        let before = fill(&*from, &mut Rng(9));
        scratch.writes_left.store(after, Ordering::SeqCst);
        let pull = Pull::new(from.clone(), scratch).unwrap();
        let (filter, view) = (pull.filter(), pull.view());
        scope(|scope| {
            let _ends = Ends(&pull);
            let job = scope.spawn(|| pull.run(&mut || {}));
            let guest = scope.spawn(|| churn(&*filter, 0..BYTES / 512, before.clone(), Rng(11), 300));
            while !guest.is_finished() {
                if let Ok(read) = read_all(&*view) {
                    assert_same(&read, &before, 0);
                }
            }
            assert_same(&contents(&*from), &guest.join().unwrap(), 0);
            let error = job.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("in the scratch directory"), "{error}");
        });
        assert!(read_all(&*view).is_err());
    }
}

#[test]
fn a_scratch_storage_that_hangs_keeps_no_guest_for_longer_than_it_may() {
    let (from, scratch) = (memory(BYTES), Gate::new(memory(BYTES)));
    put(&*from, 0, &vec![1; BYTES as usize]);
    let pull = Pull::new(from.clone(), scratch.clone()).unwrap();
    // Long enough for readers on a machine that is busy.
    pull.set_patience(Duration::from_secs(2));
    let (filter, view) = (pull.filter(), pull.view());
    scratch.shut();
    scope(|scope| {
        let _ends = Ends(&pull);
        let run = scope.spawn(|| pull.run(&mut || {}));
        let guest = scope.spawn(|| put(&*filter, 512, &[0x77; 512]));
        soon("it hangs", || scratch.held() == 1);
        let seen = read_all(&*view);
        guest.join().unwrap();
        let seen_after = read_all(&*view);
        // Before anything is judged: the job waits for it.
        scratch.open();
        assert!(matches!(run.join().unwrap(), Err(JobError::SlowScratch { ms: 2000.. })));
        assert!(seen.is_ok(), "readers wait for nothing");
        assert!(seen_after.is_err());
    });
    assert_eq!(contents(&*from)[512..1024], [0x77; 512]);
}

#[test]
fn who_waits_goes_on_when_the_pull_is_cancelled_or_dropped() {
    for round in 0..12 {
        let from = memory(BYTES);
        let before = fill(&*from, &mut Rng(7));
        let pull = Pull::new(from.clone(), memory(BYTES)).unwrap();
        let filter = pull.filter();
        scope(|scope| {
            let _ends = Ends(&pull);
            let run = scope.spawn(|| pull.run(&mut || {}));
            let guest = scope.spawn(|| churn(&*filter, 0..BYTES / 512, before.clone(), Rng(12), 100));
            sleep(Duration::from_micros(round * 300));
            pull.cancel();
            let after = guest.join().unwrap();
            assert_same(&contents(&*from), &after, 0);
            assert!(matches!(run.join().unwrap(), Err(JobError::Cancelled)));
        });
    }
    let from = memory(BYTES);
    let pull = Pull::new(from.clone(), memory(BYTES)).unwrap();
    let filter = pull.filter();
    scope(|scope| {
        let guest = scope.spawn(|| put(&*filter, 0, &[1; 512]));
        sleep(Duration::from_millis(5));
        assert!(!guest.is_finished(), "nobody saves anything");
        drop(pull);
        guest.join().unwrap();
    });
}

#[test]
fn a_scratch_storage_that_hangs_keeps_no_guest_once_the_pull_is_completed() {
    let (from, scratch) = (memory(BYTES), Gate::new(memory(BYTES)));
    put(&*from, 0, &vec![1; BYTES as usize]);
    let pull = Pull::new(from.clone(), scratch.clone()).unwrap();
    let filter = pull.filter();
    scratch.shut();
    scope(|scope| {
        let _ends = Ends(&pull);
        let run = scope.spawn(|| pull.run(&mut || {}));
        let guest = scope.spawn(|| put(&*filter, 0, &vec![0x77; BYTES as usize]));
        soon("all lanes hang", || scratch.held() == 8);
        assert!(!guest.is_finished());
        pull.complete();
        guest.join().unwrap();
        assert!(!run.is_finished(), "the scratch storage has its buffers");
        scratch.open();
        assert!(run.join().unwrap().is_ok());
    });
    assert_eq!(contents(&*from), vec![0x77; BYTES as usize]);
}

/// Holes of the disk as it was are told, also where a guest has written since.
#[test]
fn holes_are_those_of_the_moment() {
    let open = |image: &tempfile::NamedTempFile| -> Arc<dyn Storage> {
        Arc::new(FileStorage::open(&FileOptions::new(image.path())).unwrap())
    };
    let (source, saved) = (image(shm(), BYTES), image(shm(), BYTES));
    let (from, scratch) = (open(&source), open(&saved));
    put(&*from, 2 * CLUSTER, &vec![1; 2 * CLUSTER as usize]);
    let pull = Pull::new(from.clone(), scratch).unwrap();
    let (filter, view) = (pull.filter(), pull.view());
    let extents = |list: &[(u64, bool)]| -> Vec<Extent> {
        list.iter().map(|(clusters, data)| Extent { bytes: clusters * CLUSTER, data: *data }).collect()
    };
    let all = extents(&[(2, false), (2, true), (BYTES / CLUSTER - 4, false)]);
    assert_eq!(view.extents(0..BYTES, 100).unwrap(), all);
    scope(|scope| {
        let _ends = Ends(&pull);
        let run = scope.spawn(|| pull.run(&mut || {}));
        put(&*filter, CLUSTER, &vec![2; 2 * CLUSTER as usize]);
        put(&*filter, 9 * CLUSTER, &vec![2; CLUSTER as usize]);
        assert_eq!(view.extents(0..BYTES, 100).unwrap(), all);
        assert_eq!(view.extents(0..BYTES, 2).unwrap(), all[..2]);
        assert_eq!(view.extents(CLUSTER..10 * CLUSTER, 100).unwrap(), extents(&[(1, false), (2, true), (6, false)]));
        pull.complete();
        run.join().unwrap().unwrap();
    });
}
