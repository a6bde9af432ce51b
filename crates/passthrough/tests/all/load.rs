//! Many threads, many nodes: counts stay exact and bounds hold.

use crate::common::{Fixture, SELF, c, descriptors_under, everywhere};
use passthrough::{Lock, LockKind, Options, ROOT};
use rustix::io::Errno;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;

#[test]
fn threads_that_hammer_one_tree_leave_nothing_behind() {
    everywhere(&Options { descriptors_max: 6, ..Options::default() }, |at| {
        let handles = at.tree.describe().options.file_handles != passthrough::FileHandles::Never;
        if !handles || !at.tree.describe().by_file_handles {
            return;
        }
        hammer(at);
    });
    everywhere(&Options { descriptors_max: 10_000, ..Options::default() }, hammer);
}

fn hammer(at: &Fixture) {
    let tree = &at.tree;
    let names: Vec<_> = (0..6).map(|number| c(&format!("name-{number}"))).collect();
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let (names, start) = (&names, &start);
            scope.spawn(move || {
                let dir = tree.mkdir(SELF, ROOT, &c(&format!("dir-{thread}")), 0o700, 0, None).unwrap().node;
                start.wait();
                for round in 0..1500_usize {
                    let name = &names[(round * (thread + 1)) % names.len()];
                    let other = &names[(round / 3 + thread) % names.len()];
                    match round % 7 {
                        0 | 1 => {
                            let made = tree.create(SELF, ROOT, name, libc::O_RDWR, 0o600, 0, false, None);
                            match made {
                                Ok((entry, opened)) => {
                                    let by_handle = tree.attributes(entry.node, Some(opened.handle)).unwrap();
                                    let by_node = tree.attributes(entry.node, None).unwrap();
                                    assert_eq!(by_handle.ino, by_node.ino);
                                    tree.release(opened.handle, None);
                                    tree.forget(entry.node, 1);
                                }
                                // Somebody makes and removes the name all the time, or has removed the file again.
                                Err(error) => {
                                    assert!(matches!(error, Errno::EXIST | Errno::STALE | Errno::NOENT), "{error}");
                                }
                            }
                        }
                        2 => drop(tree.unlink(ROOT, name)),
                        3 => drop(tree.rename(ROOT, name, ROOT, other, 0)),
                        4 => drop(tree.rename(ROOT, name, dir, other, 0)),
                        5 => {
                            if let Ok(entry) = tree.lookup(dir, name) {
                                tree.forget(entry.node, 1);
                            }
                        }
                        _ => {
                            if let Ok(entry) = tree.lookup(ROOT, name) {
                                // Gone from the host perhaps, but never unknown while it is referenced.
                                match tree.attributes(entry.node, None) {
                                    Ok(again) => assert_eq!(again.ino, entry.attributes.ino),
                                    Err(error) => assert_eq!(error, Errno::STALE),
                                }
                                tree.forget(entry.node, 1);
                            }
                        }
                    }
                }
                tree.forget(dir, 1);
            });
        }
    });
    let after = tree.describe();
    assert_eq!((after.nodes, after.handles, after.descriptors), (1, 0, 1));
    // The root, and what the mount was explored with.
    assert_eq!(descriptors_under(at.dir.path()), 2);
}

#[test]
fn many_nodes_need_few_descriptors() {
    everywhere(&Options { descriptors_max: 50, ..Options::default() }, |at| {
        let count = 3000_u64;
        for number in 0..count {
            at.write(&format!("file-{number}"), "");
        }
        if !at.tree.describe().by_file_handles {
            let refused = (0..count).find_map(|number| at.tree.lookup(ROOT, &c(&format!("file-{number}"))).err());
            if at.tree.describe().options.file_handles == passthrough::FileHandles::Never {
                assert_eq!(refused, Some(Errno::NFILE));
                assert_eq!(at.tree.describe().descriptors, 50);
                // What cannot be given a number is not made.
                assert_eq!(at.tree.mkdir(SELF, ROOT, c"dir", 0o700, 0, None).err(), Some(Errno::NFILE));
                let file = at.tree.create(SELF, ROOT, c"new", libc::O_RDWR, 0o600, 0, false, None);
                assert_eq!(file.err(), Some(Errno::NFILE));
                assert!(!at.path("dir").exists() && !at.path("new").exists());
            }
            return;
        }
        let nodes: Vec<_> = (0..count).map(|number| at.node(&format!("file-{number}"))).collect();
        for _ in 0..2 {
            for &node in &nodes {
                at.tree.attributes(node, None).unwrap();
                at.tree.node_file(node).unwrap();
                assert!(at.tree.describe().descriptors <= 52);
            }
        }
        let reads = |&&node: &&u64| at.tree.node_file(node).is_ok();
        assert_eq!(nodes.iter().filter(reads).count(), nodes.len());
        assert!(descriptors_under(at.dir.path()) <= 53);
        for node in nodes {
            at.tree.forget(node, 1);
        }
        assert_eq!(at.tree.describe().descriptors, 1);
        assert_eq!(descriptors_under(at.dir.path()), 2);
    });
}

#[test]
fn nodes_are_bounded() {
    everywhere(&Options { nodes_max: 4, ..Options::default() }, |at| {
        for name in ["a", "b", "c", "d"] {
            at.write(name, "");
        }
        let known = ["a", "b", "c"].map(|name| at.node(name));
        assert_eq!(at.tree.lookup(ROOT, c"d").err(), Some(Errno::NFILE));
        assert_eq!(at.tree.describe().nodes, 4);
        // What is known is found again, and what cannot be given a number is not made.
        assert_eq!(at.node("b"), known[1]);
        assert_eq!(at.tree.mkdir(SELF, ROOT, c"dir", 0o700, 0, None).err(), Some(Errno::NFILE));
        let file = at.tree.create(SELF, ROOT, c"new", libc::O_RDWR, 0o600, 0, false, None);
        assert_eq!(file.err(), Some(Errno::NFILE));
        assert!(!at.path("dir").exists() && !at.path("new").exists());
        // Whoever forgets has room again, for as many as it forgot.
        at.tree.forget(known[0], 1);
        let known = at.node("d");
        assert_eq!(at.tree.lookup(ROOT, c"a").err(), Some(Errno::NFILE));
        at.tree.clear();
        assert!(at.tree.attributes(known, None).is_err());
        assert_eq!(["a", "b", "c"].map(|name| at.tree.lookup(ROOT, &c(name)).is_ok()), [true; 3]);
        assert_eq!(at.tree.lookup(ROOT, c"d").err(), Some(Errno::NFILE));
    });
}

#[test]
fn open_files_are_bounded() {
    let at = Fixture::new(Options { open_files_max: 3, ..Options::default() });
    at.write("file", "");
    let node = at.node("file");
    let open: Vec<_> = (0..3).map(|_| at.tree.open(node, libc::O_RDONLY, false).unwrap().handle).collect();
    assert_eq!(at.tree.open(node, libc::O_RDONLY, false).err(), Some(Errno::NFILE));
    assert_eq!(at.tree.open_dir(ROOT).err(), Some(Errno::NFILE));
    assert_eq!(at.tree.create(SELF, ROOT, c"x", libc::O_RDWR, 0o600, 0, false, None).err(), Some(Errno::NFILE));
    assert!(!at.path("x").exists());
    at.tree.release(open[0], None);
    at.tree.open_dir(ROOT).unwrap();
}

#[test]
fn a_file_without_a_name_is_reached_by_whichever_file_is_open() {
    everywhere(&Options { descriptors_max: 1, ..Options::default() }, |at| {
        if at.tree.describe().options.file_handles == passthrough::FileHandles::Never {
            return;
        }
        at.write("file", "text");
        at.write("other", "");
        let node = at.node("file");
        let open = || at.tree.open(node, libc::O_RDWR, false).unwrap().handle;
        let (first, second, third) = (open(), open(), open());
        at.tree.unlink(ROOT, c"file").unwrap();
        // Somebody else needs the one descriptor that there is.
        at.tree.attributes(at.node("other"), None).unwrap();
        at.tree.release(third, None);
        assert_eq!(at.tree.attributes(node, None).unwrap().size, 4);
        at.tree.release(first, None);
        assert_eq!(at.tree.attributes(node, None).unwrap().size, 4);
        at.tree.release(second, None);
    });
}

/// Counts how often `attempt` succeeds, and expects that the bound on what one file has is why it does not go on.
fn until_too_many(what: &str, attempt: impl FnMut(u64) -> Result<(), Errno>) {
    let mut why = Ok(());
    let held = (0..10_000).map(attempt).take_while(|answer| {
        why = *answer;
        why.is_ok()
    });
    let held = held.count();
    assert!((4000..=4096).contains(&held), "{held} {what}");
    assert_eq!(why, Err(Errno::NOLCK), "{what}");
}

#[test]
fn a_file_has_a_bounded_number_of_locks_by_whatever_number_it_is_known() {
    let at = Fixture::new(Options::default());
    at.write("file", "text");
    let byte = |at: u64| Lock { kind: LockKind::Read, start: at * 2, end: at * 2, pid: 7 };
    // Whoever forgets the file and finds it again has another number for it.
    let mut open = None;
    until_too_many("ranges", |number| {
        if number % 1000 == 0 {
            let node = at.node("file");
            let handle = at.tree.open(node, libc::O_RDWR, false).unwrap().handle;
            at.tree.forget(node, u64::MAX);
            let again = at.node("file");
            assert_ne!(node, again);
            open = Some((again, at.tree.open(again, libc::O_RDWR, false).unwrap().handle, handle));
        }
        let (node, handle, _) = open.unwrap();
        at.tree.set_lock(node, handle, 1, byte(number))
    });
    let other = Fixture::new(Options::default());
    other.write("file", "text");
    let handles: Vec<_> =
        (0..5000).map(|_| other.tree.open(other.node("file"), libc::O_RDONLY, false).unwrap().handle).collect();
    until_too_many("open files with a flock", |number| other.tree.flock(handles[number as usize], 1, LockKind::Read));
    // Asking again is nothing new, and what is unlocked, closed or refused makes room.
    let [first, second, more, last] = [0, 1, 4500, 4600].map(|place: usize| handles[place]);
    other.tree.flock(first, 1, LockKind::Read).unwrap();
    assert_eq!(other.tree.flock(first, 1, LockKind::Write), Err(Errno::AGAIN));
    other.tree.flock(second, 1, LockKind::Unlock).unwrap();
    assert_eq!(other.tree.flock(last, 1, LockKind::Write), Err(Errno::AGAIN));
    other.tree.flock(more, 1, LockKind::Read).unwrap();
    assert_eq!(other.tree.flock(last, 1, LockKind::Read), Err(Errno::NOLCK));
    other.tree.release(more, None);
    other.tree.flock(last, 1, LockKind::Read).unwrap();
}

#[test]
fn owners_lock_through_the_tree() {
    let at = Fixture::new(Options::default());
    at.write("file", "text");
    let Fixture { dir: _dir, tree } = at;
    let tree = Arc::new(tree);
    let node = tree.lookup(ROOT, c"file").unwrap().node;
    let handle = tree.open(node, libc::O_RDWR, false).unwrap().handle;
    let lock = |kind| Lock { kind, start: 0, end: 9, pid: 7 };
    tree.set_lock(node, handle, 1, lock(LockKind::Write)).unwrap();
    assert_eq!(tree.set_lock(node, handle, 2, lock(LockKind::Read)), Err(Errno::AGAIN));
    let held = tree.get_lock(node, handle, 2, lock(LockKind::Read)).unwrap();
    assert_eq!((held.kind, held.start, held.end, held.pid), (LockKind::Write, 0, 9, 7));
    assert_eq!(tree.set_lock(node, 99, 3, lock(LockKind::Read)), Err(Errno::BADF));
    assert_eq!(tree.set_lock(ROOT, handle, 3, lock(LockKind::Read)), Err(Errno::BADF));
    assert_eq!(tree.describe().lock_owners, 1);

    let (told, hear) = mpsc::channel();
    let tell = |what: &'static str| {
        let told = told.clone();
        move |answer| told.send((what, answer)).unwrap()
    };
    let wait = tree.wait_lock(node, handle, 2, lock(LockKind::Write), tell("cancelled"));
    wait.cancel();
    assert_eq!(hear.recv().unwrap(), ("cancelled", Err(Errno::INTR)));
    let _wait = tree.wait_lock(node, handle, 2, lock(LockKind::Write), tell("granted"));
    tree.flush(node, handle, 1).unwrap();
    assert_eq!(hear.recv().unwrap(), ("granted", Ok(())));

    let second = tree.open(node, libc::O_RDWR, false).unwrap().handle;
    tree.flock(handle, 1, LockKind::Write).unwrap();
    assert_eq!(tree.flock(second, 2, LockKind::Read), Err(Errno::AGAIN));
    assert_eq!(tree.flock(99, 2, LockKind::Read), Err(Errno::BADF));
    let _wait = tree.wait_flock(99, 2, LockKind::Read, tell("unknown"));
    assert_eq!(hear.recv().unwrap(), ("unknown", Err(Errno::BADF)));
    let _wait = tree.wait_flock(second, 2, LockKind::Write, tell("flock"));
    // The owner locks by the file that stays: what came by the other goes with it.
    tree.set_lock(node, second, 2, lock(LockKind::Write)).unwrap();
    let busy = tree.file(handle).unwrap();
    tree.release(handle, Some(1));
    assert_eq!(hear.recv().unwrap(), ("flock", Ok(())), "though the file is still in use");
    drop(busy);
    let _wait = tree.wait_lock(node, second, 5, lock(LockKind::Write), tell("gone"));
    tree.clear();
    assert_eq!(hear.recv().unwrap(), ("gone", Err(Errno::INTR)));
    assert_eq!(tree.describe().lock_owners, 0);
}
