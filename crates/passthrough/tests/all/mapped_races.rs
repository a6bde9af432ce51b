//! Several calls of the host's are one to those who ask a mapped tree at the same time.

use crate::common::{Fixture, c};
use passthrough::{Caller, Change, Options, ROOT, Security};
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const WHO: Caller<'static> = Caller { uid: 1000, gid: 100, groups: &[] };

fn everywhere(test: impl Fn(&Fixture)) {
    let modes = (0o600, 0o700);
    for security in [
        Security::MappedXattr { fmode: modes.0, dmode: modes.1 },
        Security::MappedFile { fmode: modes.0, dmode: modes.1 },
    ] {
        crate::common::everywhere(&Options { security, ..Options::default() }, |at| {
            println!("{security:?}");
            test(at);
        });
    }
}

/// Ends the other thread, also when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `one` again and again, a few hundred times at least, while `work` runs.
fn while_doing(one: impl Fn(usize) + Sync, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while round < 300 || !stop.load(Ordering::Relaxed) {
                one(round);
                round += 1;
            }
        });
        let _stop = Stop(&stop);
        work();
    });
}

/// Names in the root that have a metadata file, and those that should.
fn expect_one_record_each(at: &Fixture) {
    if !matches!(at.tree.describe().options.security, Security::MappedFile { .. }) {
        return;
    }
    let names = |dir: &str| -> BTreeSet<_> {
        let all = fs::read_dir(at.path(dir)).unwrap().map(|entry| entry.unwrap().file_name());
        all.filter(|name| name != ".virtfs_metadata").collect()
    };
    assert_eq!(names(".virtfs_metadata"), names("."));
}

#[test]
fn a_name_and_its_record_are_those_of_one_file() {
    everywhere(|at| {
        let tree = &at.tree;
        for (name, uid) in [(c"one", 1), (c"other", 22)] {
            let who = Caller { uid, ..WHO };
            let node = tree.mknod(who, ROOT, name, libc::S_IFREG | uid, (0, 0), 0, None).unwrap().node;
            let size = Change { size: Some(u64::from(uid)), ..Change::default() };
            tree.set_attributes(node, None, &size).unwrap();
            tree.forget(node, 1);
        }
        let exchange = |_| tree.rename(ROOT, c"one", ROOT, c"other", libc::RENAME_EXCHANGE).unwrap();
        let mut seen = BTreeSet::new();
        while_doing(exchange, || {
            for _ in 0..2000 {
                let entry = at.lookup("one");
                let by_name = entry.attributes;
                assert_eq!(u64::from(by_name.uid), by_name.size);
                assert_eq!(by_name.mode & 0o7777, by_name.uid);
                // Where only a file handle holds it, another file may have come under the name; that is another test's.
                if let Ok(by_node) = tree.attributes(entry.node, None) {
                    assert_eq!((by_node.uid, by_node.size, by_node.ino), (by_name.uid, by_name.size, by_name.ino));
                }
                tree.forget(entry.node, 1);
                seen.insert(by_name.uid);
            }
        });
        println!("{seen:?}");
        expect_one_record_each(at);
    });
}

#[test]
fn nobody_sees_what_is_not_finished() {
    everywhere(|at| {
        let tree = &at.tree;
        let make_and_remove = |round: usize| {
            let made = match round % 4 {
                0 => tree.symlink(WHO, ROOT, c"name", c"target", None),
                1 => tree.mkdir(WHO, ROOT, c"name", 0o755, 0, None),
                2 => tree.mknod(WHO, ROOT, c"name", libc::S_IFCHR | 0o666, (1, 3), 0, None),
                _ => {
                    let made = tree.create(WHO, ROOT, c"name", libc::O_RDWR, 0o4711, 0, false, None).unwrap();
                    tree.release(made.1.handle, None);
                    Ok(made.0)
                }
            };
            tree.forget(made.unwrap().node, 1);
            if round % 4 == 1 {
                tree.rmdir(ROOT, c"name").unwrap();
            } else {
                tree.unlink(ROOT, c"name").unwrap();
            }
        };
        while_doing(make_and_remove, || {
            for _ in 0..4000 {
                let Ok(entry) = tree.lookup(ROOT, c"name") else { continue };
                let seen = entry.attributes;
                let finished = [
                    (libc::S_IFLNK | 0o777, (0, 0)),
                    (libc::S_IFDIR | 0o755, (0, 0)),
                    (libc::S_IFCHR | 0o666, (1, 3)),
                    (libc::S_IFREG | 0o4711, (0, 0)),
                ];
                assert!(finished.contains(&(seen.mode, seen.rdev)), "{seen:?}");
                assert_eq!((seen.uid, seen.gid), (1000, 100));
                tree.forget(entry.node, 1);
            }
        });
        expect_one_record_each(at);
    });
}

#[test]
fn owner_and_permissions_change_at_once() {
    everywhere(|at| {
        let tree = &at.tree;
        let node = tree.mknod(WHO, ROOT, c"a", libc::S_IFREG | 0o600, (0, 0), 0, None).unwrap().node;
        let states = [(1, 2, 0o600), (3, 4, 0o640), (0, 0, 0o755)];
        let set = |round: usize| {
            let (uid, gid, mode) = states[round % states.len()];
            let change = Change { uid: Some(uid), gid: Some(gid), mode: Some(mode), ..Change::default() };
            tree.set_attributes(node, None, &change).unwrap();
        };
        set(0);
        let names = ["a", "b"];
        let rename = |round: usize| {
            tree.rename(ROOT, &c(names[round % 2]), ROOT, &c(names[(round + 1) % 2]), 0).unwrap();
        };
        // One changes it, one moves it about, and one looks: nobody loses sight of it.
        while_doing(set, || {
            while_doing(rename, || {
                for _ in 0..2000 {
                    let seen = tree.attributes(node, None).unwrap();
                    assert!(states.contains(&(seen.uid, seen.gid, seen.mode & 0o7777)), "{seen:?}");
                    for name in names {
                        let Ok(entry) = tree.lookup(ROOT, &c(name)) else { continue };
                        let seen = entry.attributes;
                        assert!(states.contains(&(seen.uid, seen.gid, seen.mode & 0o7777)), "{seen:?}");
                        tree.forget(entry.node, 1);
                    }
                }
            });
        });
        expect_one_record_each(at);
        let after = tree.describe();
        assert_eq!((after.nodes, after.handles), (2, 0));
    });
}

#[test]
fn links_come_and_go_while_the_record_changes() {
    everywhere(|at| {
        let tree = &at.tree;
        let node = tree.mknod(WHO, ROOT, c"first", libc::S_IFREG | 0o600, (0, 0), 0, None).unwrap().node;
        let set = |round: usize| {
            let change = Change { mode: Some([0o600, 0o644][round % 2]), ..Change::default() };
            tree.set_attributes(node, None, &change).unwrap();
        };
        while_doing(set, || {
            for round in 0..500_usize {
                let name = c(&format!("link-{}", round % 3));
                let entry = tree.link(node, ROOT, &name).unwrap();
                assert_eq!((entry.node, entry.attributes.links), (node, 2));
                assert!(matches!(entry.attributes.mode & 0o7777, 0o600 | 0o644));
                tree.forget(entry.node, 1);
                tree.unlink(ROOT, &name).unwrap();
            }
        });
        expect_one_record_each(at);
    });
}
