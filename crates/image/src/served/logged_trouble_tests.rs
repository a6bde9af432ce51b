//! Images with an intent log in front of them, on storage that is full, hangs or fails.

use super::logged_powercut_tests::{IMAGE, LOG, Machine, SIZE, Without, cases, fresh};
use crate::features;
use crate::header::Header;
use crate::testing::examine;
use engine::Solo;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::{GoBeforeError, Operation, Storage, Task};
use testkit::storage as kit;

const BLOCKS: u64 = SIZE as u64 / 4096;

fn machine() -> Machine {
    Machine::new(fresh(&cases()[1]), 5, 0, Without::default())
}

fn flush(solo: &mut Solo, storage: &dyn Storage) {
    let mut task = Task::new();
    task.begin(Operation::Flush);
    kit::run(solo, storage, &mut task).unwrap();
}

fn is_marked(machine: &Machine) -> bool {
    Header::parse(&machine.contents(IMAGE)).unwrap().has(features::LOGGED)
}

/// What was flushed is answered, and is in the log until there is room again. Whoever waits for the image is told.
#[test]
fn an_image_without_room_is_written_back_when_there_is_some() {
    let machine = machine();
    let storage = machine.open(Without::default()).unwrap();
    let mut solo = Solo::new().unwrap();
    machine.files[IMAGE].is_full.store(true, Ordering::SeqCst);
    for at in 0..3u64 {
        kit::write(&mut solo, &storage, at * (64 << 10), &[at as u8 + 1; 4096]).unwrap();
    }
    flush(&mut solo, &storage);
    let control = storage.in_front().unwrap();
    for refused in [control.sync_now(), control.leave(), control.sync_now()] {
        assert!(refused.unwrap_err().is_full());
    }
    assert!(is_marked(&machine));
    machine.files[IMAGE].is_full.store(false, Ordering::SeqCst);
    control.sync_now().unwrap();
    storage.close().unwrap();
    drop(storage);
    assert!(examine(&machine.contents(IMAGE)).corruptions.is_empty());
    let alone = machine.image();
    for at in 0..3u64 {
        assert_eq!(kit::read(&mut solo, &*alone, at * (64 << 10), 4096), [at as u8 + 1; 4096]);
    }
}

/// Each pass takes clusters for what it writes, and gives them back.
#[test]
fn an_image_on_a_full_file_system_does_not_grow_with_each_pass() {
    let machine = machine();
    let before = machine.contents(IMAGE).len();
    let storage = machine.open(Without::default()).unwrap();
    let mut solo = Solo::new().unwrap();
    machine.files[IMAGE].full_from.store(before as u64, Ordering::SeqCst);
    for block in 0..BLOCKS {
        kit::write(&mut solo, &storage, block * 4096, &[block as u8; 512]).unwrap();
    }
    let sync = || assert!(storage.volume().unwrap().sync_now().unwrap_err().is_full());
    sync();
    // Each of them once, in each of a few passes.
    let errors = storage.figures().write_back_errors;
    assert!(errors < 8 * BLOCKS, "{errors} errors");
    sync();
    sync();
    // It stays open, and no pass is under way any more.
    let image = storage.in_front().unwrap().disk();
    storage.abandon();
    let grown = (machine.contents(IMAGE).len() - before) as u64 / 4096;
    // What is ready to be used counts as well.
    let leaks = examine(&machine.contents(IMAGE)).leaks;
    assert!(leaks + BLOCKS <= grown, "{leaks} leaks in {grown} clusters");
    drop(image);
}

/// Guests wait meanwhile.
#[test]
fn a_disk_that_hangs_is_not_left_and_stays_as_it_was() {
    let machine = machine();
    let storage = machine.open(Without::default()).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[7; 4096]).unwrap();
    machine.files[IMAGE].hang(true);
    let late = storage.volume().unwrap().sync_within(Duration::from_millis(100)).unwrap_err();
    assert!(late.is_timeout(), "{late}");
    let error = storage.in_front().unwrap().leave().unwrap_err().to_string();
    assert!(is_marked(&machine) && error.contains("does not take what is written back"), "{error}");
    machine.files[IMAGE].hang(false);
    kit::write(&mut solo, &storage, 4096, &[8; 4096]).unwrap();
    storage.in_front().unwrap().leave().unwrap();
    assert!(!is_marked(&machine));
    storage.in_front().unwrap().come_back().unwrap();
    assert!(is_marked(&machine));
}

/// What may be without its mark is not written with a log in front of it.
#[test]
fn a_disk_that_may_be_left_serves_nothing() {
    let machine = machine();
    let storage = machine.open(Without::default()).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[7; 4096]).unwrap();
    storage.volume().unwrap().sync_now().unwrap();
    machine.files[IMAGE].flushes_left.store(0, Ordering::SeqCst);
    let error = storage.in_front().unwrap().leave().unwrap_err().to_string();
    assert!(error.contains("has all that the log had, and cannot say so"), "{error}");
    let failure = storage.volume().unwrap().status().failure;
    assert!(failure.is_some_and(|why| why.contains("cannot be marked again")));
    assert!(kit::write(&mut solo, &storage, 0, &[8; 4096]).is_err());
}

/// Wherever that fails: the disk that the log could not go before has all, and does not say that it misses a log.
#[test]
fn a_log_that_cannot_go_before_another_disk_is_missed_by_none() {
    let mut solo = Solo::new().unwrap();
    let fails = (0..20).take_while(|flushes| {
        let machine = machine();
        let storage = machine.open(Without::default()).unwrap();
        kit::write(&mut solo, &storage, 0, &[7; 4096]).unwrap();
        let control = storage.in_front().unwrap();
        control.leave().unwrap();
        machine.files[LOG].flushes_left.store(*flushes, Ordering::SeqCst);
        let disk = control.disk();
        let went = control.go_before(disk.clone());
        let fails = went.is_err();
        assert!(!matches!(went, Err(GoBeforeError::Disk(_))), "behind {flushes} flushes");
        assert_eq!(is_marked(&machine), !fails, "behind {flushes} flushes");
        assert_eq!(kit::read(&mut solo, &*disk, 0, 4096), [7; 4096]);
        machine.files[LOG].flushes_left.store(u64::MAX, Ordering::SeqCst);
        fails
    });
    assert!((1..20).contains(&fails.count()));
}

/// What is there again a moment later costs nothing.
#[test]
fn a_log_that_runs_short_of_something_goes_before_another_disk_all_the_same() {
    let mut solo = Solo::new().unwrap();
    for lacks in 1..6 {
        let machine = machine();
        let storage = machine.open(Without::default()).unwrap();
        kit::write(&mut solo, &storage, 0, &[7; 4096]).unwrap();
        let control = storage.in_front().unwrap();
        control.leave().unwrap();
        machine.files[LOG].lacks.store(lacks, Ordering::SeqCst);
        let moved = control.go_before(control.disk()).unwrap();
        assert_eq!(machine.files[LOG].lacks.load(Ordering::SeqCst), 0);
        assert!(is_marked(&machine), "behind {lacks}");
        kit::write(&mut solo, &*moved, 4096, &[8; 4096]).unwrap();
        flush(&mut solo, &*moved);
        drop((moved, storage));
        assert!(!is_marked(&machine));
        assert_eq!(kit::read(&mut solo, &*machine.image(), 4096, 4096), [8; 4096]);
    }
}

/// What a process has too little of is missed before the disk says that it misses no log.
#[test]
fn a_log_that_could_not_be_opened_once_more_stays_where_it_is() {
    testkit::child::run("served::logged_trouble_tests::child_leaves_with_few_descriptors");
}

#[test]
#[ignore = "limits its process"]
fn child_leaves_with_few_descriptors() {
    let machine = machine();
    let storage = machine.open(Without::default()).unwrap();
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[7; 4096]).unwrap();
    let control = storage.in_front().unwrap();
    let limit = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap();
    for left in 1..5 {
        let few = Rlimit { current: Some(next.as_raw_fd() as u64 + left), ..limit };
        setrlimit(Resource::Nofile, few).unwrap();
        let left = control.leave();
        setrlimit(Resource::Nofile, limit).unwrap();
        let error = left.unwrap_err().to_string();
        assert!(error.contains("cannot be opened once more") && error.contains("RLIMIT_NOFILE"), "{error}");
        assert!(is_marked(&machine) && control.status().failure.is_none());
    }
    kit::write(&mut solo, &storage, 0, &[8; 4096]).unwrap();
    control.leave().unwrap();
    testkit::child::end();
}

/// Wherever that fails: whether the other disk is at fault is seen, and then the log goes on before the one that it was before.
#[test]
fn a_log_comes_back_from_a_disk_that_cannot_be_marked() {
    let mut solo = Solo::new().unwrap();
    let fails = (0..20).take_while(|flushes| {
        let (machine, other) = (machine(), machine());
        let storage = machine.open(Without::default()).unwrap();
        kit::write(&mut solo, &storage, 0, &[7; 4096]).unwrap();
        let control = storage.in_front().unwrap();
        control.leave().unwrap();
        let disk = other.image();
        other.files[IMAGE].flushes_left.store(*flushes, Ordering::SeqCst);
        let Err(error) = control.go_before(disk.clone()) else { return false };
        assert!(matches!(error, GoBeforeError::Disk(_)), "behind {flushes} flushes: {error}");
        disk.marked().unwrap().set_log_mark(None).unwrap_err();
        let back = control.go_before(control.disk()).map_err(|again| format!("{error}; {again}")).unwrap();
        assert!(is_marked(&machine));
        kit::write(&mut solo, &*back, 4096, &[8; 4096]).unwrap();
        flush(&mut solo, &*back);
        drop((back, storage));
        assert!(!is_marked(&machine));
        let alone = machine.image();
        assert_eq!(kit::read(&mut solo, &*alone, 0, 4096), [7; 4096]);
        assert_eq!(kit::read(&mut solo, &*alone, 4096, 4096), [8; 4096]);
        true
    });
    assert!((1..20).contains(&fails.count()));
}
