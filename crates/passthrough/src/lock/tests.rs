//! Owners against each other, against processes of the host, and against cancellation.

use super::owners::{FILE_MAX, Limits};
use super::*;
use crate::Result;
use crate::closing::{Closing, Sort};
use crate::share::{Share, Taken};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

const NODE: crate::Node = 7;

/// A file of a test's own.
struct Fixture {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, [0; 100]).unwrap();
        Fixture { _directory: directory, path }
    }

    fn open(&self) -> impl FnMut(OFlags) -> Result<Closing<Taken>> + '_ {
        |flags| {
            let fd = rustix::fs::open(&self.path, flags | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
            Ok(Closing::new(fd, Share::of_process().take().unwrap(), Sort::of(flags)))
        }
    }

    /// How many descriptors this process has for the file.
    fn descriptors(&self) -> usize {
        let targets =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| target == &self.path).count()
    }

    fn set(&self, locks: &Locks, owner: u64, lock: Lock) -> Result<()> {
        locks.set(NODE, owner, lock, self.open())
    }

    fn wait(&self, locks: &Locks, owner: u64, lock: Lock) -> (Wait, Receiver<Result<()>>) {
        let (sender, receiver) = channel();
        let wait = locks.wait(NODE, owner, lock, self.open(), move |answer| sender.send(answer).unwrap());
        (wait, receiver)
    }
}

fn locks() -> Locks {
    Locks::new(Limits::default(), Share::of_process())
}

fn lock(kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { kind, start, end, pid: 0 }
}

fn write_lock() -> Lock {
    lock(LockKind::Write, 0, Lock::END)
}

fn unlock() -> Lock {
    lock(LockKind::Unlock, 0, Lock::END)
}

#[test]
fn owners_contend_by_the_byte() {
    let (file, locks) = (Fixture::new(), locks());
    file.set(&locks, 1, lock(LockKind::Write, 0, 9)).unwrap();
    file.set(&locks, 2, lock(LockKind::Write, 10, 19)).unwrap();
    assert_eq!(file.set(&locks, 2, lock(LockKind::Read, 9, 9)), Err(Errno::AGAIN));
    assert_eq!(file.set(&locks, 1, lock(LockKind::Read, 5, u64::MAX)), Err(Errno::AGAIN));
    file.set(&locks, 1, lock(LockKind::Read, 0, 9)).unwrap();
    file.set(&locks, 2, lock(LockKind::Read, 9, 9)).unwrap();
    assert_eq!(file.set(&locks, 1, lock(LockKind::Write, 9, 9)), Err(Errno::AGAIN));
    file.set(&locks, 2, unlock()).unwrap();
    file.set(&locks, 1, write_lock()).unwrap();
}

#[test]
fn an_owner_is_told_who_is_in_the_way() {
    let (file, locks) = (Fixture::new(), locks());
    let held = Lock { kind: LockKind::Write, start: 10, end: 19, pid: 4321 };
    file.set(&locks, 1, held).unwrap();
    let get = |owner, lock| locks.get(NODE, owner, lock, file.open());
    assert_eq!(get(2, lock(LockKind::Read, 0, 50)), Ok(held));
    assert_eq!(get(1, lock(LockKind::Read, 0, 50)).unwrap().kind, LockKind::Unlock, "own locks are never in the way");
    assert_eq!(get(2, lock(LockKind::Read, 0, 9)).unwrap().kind, LockKind::Unlock);
    file.set(&locks, 1, unlock()).unwrap();
    file.set(&locks, 1, lock(LockKind::Read, 5, u64::MAX)).unwrap();
    assert_eq!(get(2, write_lock()), Ok(lock(LockKind::Read, 5, Lock::END)));
    assert_eq!(file.descriptors(), 1, "asking keeps nothing");
}

/// Names the file to the second process of the test below.
const HELD_BY_OTHER: &str = "TREE_TEST_HELD_BY_OTHER";

#[test]
fn locks_of_the_hosts_processes_count() {
    // A process's own locks go when it closes any descriptor of the file, so another process has to hold this one: the test
    // runs itself once more, takes a lock as any program does, and keeps it until its input ends.
    if let Some(path) = std::env::var_os(HELD_BY_OTHER) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        println!("\nheld");
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        return;
    }
    let (file, locks) = (Fixture::new(), locks());
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lock::tests::locks_of_the_hosts_processes_count", "--nocapture"])
        .env(HELD_BY_OTHER, &file.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "held"), "the other process has the lock");

    assert_eq!(file.set(&locks, 1, lock(LockKind::Read, 0, 0)), Err(Errno::AGAIN));
    let found = locks.get(NODE, 1, lock(LockKind::Read, 0, 0), file.open()).unwrap();
    assert_eq!((found.kind, found.pid), (LockKind::Write, 0), "a process of the host has no number for the client");
    let (_wait, answer) = file.wait(&locks, 1, lock(LockKind::Read, 0, 0));
    assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
    assert_eq!(answer.recv(), Ok(Ok(())));
}

#[test]
fn another_daemon_contends() {
    let (file, locks, others) = (Fixture::new(), locks(), locks());
    file.set(&locks, 1, write_lock()).unwrap();
    assert_eq!(others.set(99, 1, lock(LockKind::Read, 3, 4), file.open()), Err(Errno::AGAIN));
    let (_wait, answer) = file.wait(&others, 1, lock(LockKind::Read, 3, 4));
    assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
    drop(locks);
    assert_eq!(answer.recv(), Ok(Ok(())));
}

#[test]
fn the_description_closes_with_the_last_lock() {
    let (file, locks) = (Fixture::new(), locks());
    file.set(&locks, 1, lock(LockKind::Write, 0, 9)).unwrap();
    file.set(&locks, 1, lock(LockKind::Read, 20, 29)).unwrap();
    assert_eq!((locks.owners(), file.descriptors()), (1, 1));
    file.set(&locks, 1, lock(LockKind::Unlock, 0, 15)).unwrap();
    assert_eq!(file.descriptors(), 1);
    file.set(&locks, 1, lock(LockKind::Unlock, 20, 29)).unwrap();
    assert_eq!((locks.owners(), file.descriptors()), (0, 0));

    file.set(&locks, 1, write_lock()).unwrap();
    assert_eq!(file.set(&locks, 2, write_lock()), Err(Errno::AGAIN));
    assert_eq!((locks.owners(), file.descriptors()), (1, 1), "who was refused holds nothing");
    locks.drop_owner(NODE, 2);
    assert_eq!(file.set(&locks, 2, write_lock()), Err(Errno::AGAIN));
    locks.drop_owner(NODE, 1);
    assert_eq!((locks.owners(), file.descriptors()), (0, 0));
    file.set(&locks, 2, write_lock()).unwrap();
    locks.clear();
    assert_eq!((locks.owners(), file.descriptors()), (0, 0));
    file.set(&locks, 1, unlock()).unwrap();
    assert_eq!(file.descriptors(), 0, "unlocking opens nothing");
}

#[test]
fn what_can_only_be_read_is_locked_for_reading() {
    let (file, locks) = (Fixture::new(), locks());
    let read_only = |flags: OFlags| if flags == OFlags::RDONLY { file.open()(flags) } else { Err(Errno::ROFS) };
    locks.set(NODE, 1, lock(LockKind::Read, 0, 9), read_only).unwrap();
    assert_eq!(locks.set(NODE, 1, lock(LockKind::Write, 0, 9), read_only), Err(Errno::BADF));
    let gone = |_flags| Err(Errno::STALE);
    assert_eq!(locks.set(NODE, 2, write_lock(), gone), Err(Errno::STALE));
}

#[test]
fn ranges_that_are_none_are_refused() {
    let (file, locks) = (Fixture::new(), locks());
    for (start, end) in [(5, 4), (Lock::END + 1, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0)] {
        for kind in [LockKind::Read, LockKind::Write, LockKind::Unlock] {
            let lock = lock(kind, start, end);
            assert_eq!(file.set(&locks, 1, lock), Err(Errno::INVAL));
            assert_eq!(locks.get(NODE, 1, lock, file.open()), Err(Errno::INVAL));
            assert_eq!(file.wait(&locks, 1, lock).1.recv(), Ok(Err(Errno::INVAL)));
        }
    }
    assert_eq!(locks.get(NODE, 1, unlock(), file.open()), Err(Errno::INVAL));
    file.set(&locks, 1, lock(LockKind::Write, Lock::END, Lock::END)).unwrap();
}

#[test]
fn bounds_hold() {
    let file = Fixture::new();
    let locks = Locks::new(Limits { owners: 2, ranges: 6, waits: 0, ..Limits::default() }, Share::of_process());
    for owner in 0..2 {
        file.set(&locks, owner, lock(LockKind::Read, 0, 9)).unwrap();
    }
    assert_eq!(file.set(&locks, 2, lock(LockKind::Read, 0, 9)), Err(Errno::NOLCK));
    assert_eq!(file.wait(&locks, 1, lock(LockKind::Write, 0, 9)).1.recv(), Ok(Err(Errno::NOLCK)));
    file.set(&locks, 1, unlock()).unwrap();
    // Single bytes given back from the middle of one lock.
    file.set(&locks, 0, write_lock()).unwrap();
    let split = (1..100).map(|byte| file.set(&locks, 0, lock(LockKind::Unlock, byte * 2, byte * 2)));
    assert_eq!(split.filter(Result::is_ok).count(), 5);
    assert_eq!(file.set(&locks, 1, lock(LockKind::Read, 2, 2)), Err(Errno::NOLCK));
    file.set(&locks, 0, unlock()).unwrap();
    file.set(&locks, 1, lock(LockKind::Read, 2, 2)).unwrap();
}

#[test]
fn a_file_has_a_bounded_number_of_locks_whoever_holds_them() {
    let (file, other, locks) = (Fixture::new(), Fixture::new(), locks());
    let byte = |owner: u64, at: u64| lock(LockKind::Read, at * 2, at * 2 + owner % 2);
    // In turns, and backwards, which is dearest.
    let held = (0..60_000).rev().map(|at| file.set(&locks, at % 3, byte(at % 3, at))).take_while(Result::is_ok).count();
    assert!((4000..=FILE_MAX).contains(&held), "{held} ranges");
    assert_eq!(file.set(&locks, 9, byte(9, 0)), Err(Errno::NOLCK));
    assert_eq!(file.wait(&locks, 0, byte(0, 0)).1.recv(), Ok(Err(Errno::NOLCK)));
    let own = |owner, lock| locks.set(NODE + 1, owner, lock, other.open());
    own(0, write_lock()).unwrap();
    own(0, unlock()).unwrap();
    file.set(&locks, 0, unlock()).unwrap();
    file.set(&locks, 9, byte(9, 0)).unwrap();
    locks.clear();
    // One byte and many owners.
    let held = (0..5000).map(|owner| file.set(&locks, owner, byte(0, 0))).take_while(Result::is_ok).count();
    assert_eq!(held, Limits::default().owners_of_file);
    own(0, write_lock()).unwrap();
    locks.drop_owner(NODE, 17);
    file.set(&locks, 9999, byte(0, 0)).unwrap();
}

#[test]
fn a_wait_ends_with_the_lock() {
    let (file, locks) = (Fixture::new(), locks());
    let (_, answer) = file.wait(&locks, 1, write_lock());
    assert_eq!(answer.try_recv(), Ok(Ok(())), "what is free is granted on the spot");
    let (_wait, answer) = file.wait(&locks, 2, lock(LockKind::Write, 5, 5));
    assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
    std::thread::scope(|scope| {
        scope.spawn(|| file.set(&locks, 1, unlock()).unwrap());
    });
    assert_eq!(answer.recv(), Ok(Ok(())));
    assert_eq!(file.set(&locks, 1, lock(LockKind::Read, 5, 5)), Err(Errno::AGAIN));
    locks.drop_owner(NODE, 2);
    assert_eq!((locks.owners(), file.descriptors()), (0, 0));
}

#[test]
fn a_cancelled_wait_leaves_no_lock() {
    let (file, locks) = (Fixture::new(), locks());
    for _ in 0..100 {
        file.set(&locks, 1, write_lock()).unwrap();
        let (wait, answer) = file.wait(&locks, 2, lock(LockKind::Read, 0, 3));
        wait.cancel();
        wait.cancel();
        assert_eq!(answer.recv(), Ok(Err(Errno::INTR)));
        wait.cancel();
        file.set(&locks, 1, unlock()).unwrap();
        assert_eq!((locks.owners(), file.descriptors()), (0, 0));
    }
}

#[test]
fn a_wait_that_is_cancelled_and_granted_at_once_is_one_of_both() {
    let (file, locks) = (Fixture::new(), locks());
    for _ in 0..300 {
        file.set(&locks, 1, write_lock()).unwrap();
        let (wait, answer) = file.wait(&locks, 2, write_lock());
        std::thread::scope(|scope| {
            scope.spawn(|| wait.cancel());
            file.set(&locks, 1, unlock()).unwrap();
        });
        match answer.recv().unwrap() {
            Ok(()) => {
                assert_eq!(file.set(&locks, 1, write_lock()), Err(Errno::AGAIN));
                locks.drop_owner(NODE, 2);
            }
            Err(error) => assert_eq!(error, Errno::INTR),
        }
        assert_eq!(locks.owners(), 0);
    }
}

#[test]
fn as_many_wait_as_may_and_no_more() {
    let (file, locks) = (Fixture::new(), locks());
    let max = Limits::default().waits;
    file.set(&locks, 1000, write_lock()).unwrap();
    let waits: Vec<_> = (0..max as u64).map(|owner| file.wait(&locks, owner, write_lock())).collect();
    let (_, answer) = file.wait(&locks, 2000, write_lock());
    assert_eq!(answer.recv(), Ok(Err(Errno::NOLCK)));
    assert_eq!((locks.owners(), file.descriptors()), (max + 1, max + 1));
    let (first, first_answer) = &waits[0];
    first.cancel();
    assert_eq!(first_answer.recv(), Ok(Err(Errno::INTR)));
    let (another, another_answer) = file.wait(&locks, 2000, write_lock());
    assert_eq!(another_answer.try_recv(), Err(TryRecvError::Empty), "a place was free again");
    another.cancel();
    for (wait, _) in &waits {
        wait.cancel();
    }
    for (_, answer) in &waits[1..] {
        assert_eq!(answer.recv(), Ok(Err(Errno::INTR)));
    }
    assert_eq!(another_answer.recv(), Ok(Err(Errno::INTR)));
    assert_eq!((locks.owners(), file.descriptors()), (1, 1));
}

#[test]
fn closing_a_file_does_not_end_the_owners_waits() {
    let (file, locks) = (Fixture::new(), locks());
    file.set(&locks, 1, lock(LockKind::Write, 0, 9)).unwrap();
    file.set(&locks, 2, lock(LockKind::Write, 20, 29)).unwrap();
    let (_wait, answer) = file.wait(&locks, 2, lock(LockKind::Write, 0, 9));
    locks.drop_owner(NODE, 2);
    file.set(&locks, 1, lock(LockKind::Write, 20, 29)).unwrap();
    assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
    file.set(&locks, 1, lock(LockKind::Unlock, 0, 9)).unwrap();
    assert_eq!(answer.recv(), Ok(Ok(())));
    assert_eq!(file.set(&locks, 1, lock(LockKind::Read, 0, 0)), Err(Errno::AGAIN));
}

#[test]
fn everything_ends_with_the_client() {
    let (file, locks, others) = (Fixture::new(), locks(), locks());
    file.set(&others, 1, lock(LockKind::Write, 0, 9)).unwrap();
    file.set(&locks, 1, lock(LockKind::Write, 20, 29)).unwrap();
    // One waits for a lock that stays, one for a lock that goes with the same call.
    let waits =
        [file.wait(&locks, 2, lock(LockKind::Write, 0, 9)), file.wait(&locks, 3, lock(LockKind::Write, 20, 29))];
    locks.clear();
    for (_wait, answer) in &waits {
        assert_eq!(answer.recv(), Ok(Err(Errno::INTR)));
    }
    assert_eq!(locks.owners(), 0);
    file.set(&others, 1, write_lock()).unwrap();
    let (_wait, answer) = file.wait(&locks, 2, write_lock());
    drop(locks);
    assert_eq!(answer.recv(), Ok(Err(Errno::INTR)));
}

#[test]
fn threads_that_hammer_one_file_exclude_each_other() {
    let (file, locks) = (Fixture::new(), locks());
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for owner in 0..4 {
            let (file, locks, inside) = (&file, &locks, &inside);
            scope.spawn(move || {
                for round in 0..200 {
                    let (_wait, answer) = file.wait(locks, owner, lock(LockKind::Write, 3, 5));
                    assert_eq!(answer.recv(), Ok(Ok(())));
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 {
                        file.set(locks, owner, lock(LockKind::Unlock, 0, 9)).unwrap();
                    } else {
                        locks.drop_owner(NODE, owner);
                    }
                }
            });
        }
    });
    assert_eq!((locks.owners(), file.descriptors()), (0, 0));
}

/// `flock` of the host, in a process of its own.
fn flock_command(path: &Path, kind: &str) -> bool {
    Command::new("flock").args(["--nonblock", kind]).arg(path).arg("true").status().unwrap().success()
}

#[test]
fn flock_is_shared_or_exclusive() {
    let file = Fixture::new();
    let open = || File::open(&file.path).unwrap();
    let (one, two) = (open(), open());
    flock(one.as_fd(), LockKind::Read).unwrap();
    flock(two.as_fd(), LockKind::Read).unwrap();
    assert_eq!(flock(two.as_fd(), LockKind::Write), Err(Errno::AGAIN));
    assert!(flock_command(&file.path, "--shared"));
    assert!(!flock_command(&file.path, "--exclusive"));
    // The failed change has dropped the second's lock, as the kernel does.
    flock(one.as_fd(), LockKind::Unlock).unwrap();
    assert!(flock_command(&file.path, "--exclusive"));
    flock(one.as_fd(), LockKind::Write).unwrap();
    assert!(!flock_command(&file.path, "--shared"));
}

#[test]
fn flock_waits_and_is_cancelled() {
    let (file, locks) = (Fixture::new(), locks());
    let open = || Arc::new(File::open(&file.path).unwrap());
    let wait = |file: &Arc<File>, kind| {
        let (sender, receiver) = channel();
        (locks.wait_flock(file, kind, move |answer| sender.send(answer).unwrap()), receiver)
    };
    let (one, two) = (open(), open());
    assert_eq!(wait(&one, LockKind::Write).1.try_recv(), Ok(Ok(())));
    let (waiting, answer) = wait(&two, LockKind::Read);
    assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
    waiting.cancel();
    assert_eq!(answer.recv(), Ok(Err(Errno::INTR)));
    let (_waiting, answer) = wait(&two, LockKind::Read);
    flock(one.as_fd(), LockKind::Unlock).unwrap();
    assert_eq!(answer.recv(), Ok(Ok(())));
    assert_eq!(flock(one.as_fd(), LockKind::Write), Err(Errno::AGAIN));
    assert!(!flock_command(&file.path, "--exclusive"));
}
