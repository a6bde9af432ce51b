//! What becomes of records whose files are linked, moved, removed and written.

use crate::common::{SELF, c};
use crate::mapped::{RDWR, SOMEBODY, credentials, everywhere, expect_record, is_file_model, mapped_file, only};
use passthrough::{Caller, Change, Node, ROOT};
use rustix::fs::CWD;
use rustix::io::Errno;
use std::fs;

#[test]
fn a_file_without_a_name_keeps_its_record() {
    everywhere(|at| {
        let tree = &at.tree;
        let (entry, opened) = tree.create(SOMEBODY, ROOT, c"file", RDWR, 0o644, 0, false, None).unwrap();
        tree.unlink(ROOT, c"file").unwrap();
        let change = Change { mode: Some(0o600), uid: Some(3), ..Change::default() };
        tree.set_attributes(entry.node, None, &change).unwrap();
        for handle in [None, Some(opened.handle)] {
            let seen = tree.attributes(entry.node, handle).unwrap();
            assert_eq!((seen.mode, seen.uid, seen.gid, seen.links), (libc::S_IFREG | 0o600, 3, 100, 0));
        }
        tree.release(opened.handle, None);
        tree.forget(entry.node, 1);
        if is_file_model(at) {
            assert_eq!(fs::read_dir(at.path(".virtfs_metadata")).unwrap().count(), 0);
        }

        // Made without a name, changed, and given one.
        let (entry, opened) = match tree.tmpfile(SOMEBODY, ROOT, RDWR, 0o640, 0, None) {
            Err(Errno::OPNOTSUPP) => return,
            made => made.unwrap(),
        };
        assert_eq!(credentials(&entry.attributes), (libc::S_IFREG | 0o640, 1000, 100, (0, 0)));
        let change = Change { gid: Some(9), ..Change::default() };
        tree.set_attributes(entry.node, Some(opened.handle), &change).unwrap();
        let linked = tree.link(entry.node, ROOT, c"named").unwrap();
        assert_eq!(credentials(&linked.attributes), (libc::S_IFREG | 0o640, 1000, 9, (0, 0)));
        expect_record(at, "named", 1000, 9, Some(0o100_640), None);
    });
}

#[test]
fn names_of_one_file_share_a_record() {
    everywhere(|at| {
        let tree = &at.tree;
        let dir = tree.mkdir(SELF, ROOT, c"dir", 0o700, 0, None).unwrap().node;
        let one = tree.mknod(SOMEBODY, ROOT, c"one", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap().node;
        // What another program left under the name is no part of it.
        if is_file_model(at) {
            fs::create_dir(at.path("dir/.virtfs_metadata")).unwrap();
            at.write("dir/.virtfs_metadata/two", "virtfs.uid=77\nvirtfs.mode=35309\n");
        }
        let two = tree.link(one, dir, c"two").unwrap();
        assert_eq!((two.node, two.attributes.links), (one, 2));
        assert_eq!(credentials(&two.attributes), (libc::S_IFREG | 0o644, 1000, 100, (0, 0)));
        let change = Change { mode: Some(0o4711), ..Change::default() };
        tree.set_attributes(one, None, &change).unwrap();
        let text = |name: &str| fs::read_to_string(at.path(name)).unwrap();
        if is_file_model(at) {
            assert_eq!(text("dir/.virtfs_metadata/two"), text(".virtfs_metadata/one"));
        }
        // The first goes: the second says it all, also to the node that is known by both.
        tree.unlink(ROOT, c"one").unwrap();
        let change = Change { uid: Some(1), ..Change::default() };
        tree.set_attributes(one, None, &change).unwrap();
        tree.forget(one, 2);
        let seen = tree.lookup(dir, c"two").unwrap();
        assert_eq!(credentials(&seen.attributes), (libc::S_IFREG | 0o711, 1, 100, (0, 0)));
        assert_eq!(tree.link(seen.node, ROOT, c"dir").err(), Some(Errno::EXIST));
        assert_eq!(credentials(&at.lookup("dir").attributes), (libc::S_IFDIR | 0o700, 0, 0, (0, 0)));
    });
}

#[test]
fn records_move_with_their_names() {
    everywhere(|at| {
        let tree = &at.tree;
        let dir = tree.mkdir(SELF, ROOT, c"dir", 0o700, 0, None).unwrap().node;
        let make = |name: &std::ffi::CStr, uid| {
            let who = Caller { uid, ..SOMEBODY };
            tree.mknod(who, ROOT, name, libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap().node
        };
        let uid = |parent: Node, name: &str| tree.lookup(parent, &c(name)).unwrap().attributes.uid;
        let (a, b) = (make(c"a", 1), make(c"b", 2));
        tree.rename(ROOT, c"a", dir, c"c", 0).unwrap();
        assert_eq!(uid(dir, "c"), 1);
        tree.rename(dir, c"c", ROOT, c"b", libc::RENAME_EXCHANGE).unwrap();
        assert_eq!((uid(dir, "c"), uid(ROOT, "b")), (2, 1));
        let noreplace = tree.rename(dir, c"c", ROOT, c"b", libc::RENAME_NOREPLACE);
        assert_eq!(noreplace, Err(Errno::EXIST));
        assert_eq!((uid(dir, "c"), uid(ROOT, "b")), (2, 1));
        // By node, wherever it is now.
        let change = Change { uid: Some(3), ..Change::default() };
        tree.set_attributes(a, None, &change).unwrap();
        assert_eq!((uid(dir, "c"), uid(ROOT, "b")), (2, 3));
        tree.rename(dir, c"c", ROOT, c"b", 0).unwrap();
        assert_eq!(uid(ROOT, "b"), 2);
        tree.set_attributes(b, None, &change).unwrap();
        assert_eq!((uid(ROOT, "b"), tree.attributes(b, None).unwrap().uid), (3, 3));

        // One without a record does not take over what was recorded of the name.
        at.write("bare", "x");
        tree.rename(ROOT, c"bare", ROOT, c"b", 0).unwrap();
        assert_eq!(uid(ROOT, "b"), rustix::process::geteuid().as_raw());
        // And back: one has a record and the other has none.
        let c_ = make(c"c", 4);
        tree.rename(ROOT, c"b", ROOT, c"c", libc::RENAME_EXCHANGE).unwrap();
        assert_eq!((uid(ROOT, "b"), uid(ROOT, "c")), (4, rustix::process::geteuid().as_raw()));
        tree.set_attributes(c_, None, &change).unwrap();
        assert_eq!(uid(ROOT, "b"), 3);
    });
}

#[test]
fn a_directory_that_is_empty_to_the_client_goes() {
    everywhere(|at| {
        let tree = &at.tree;
        let make = |name: &str| {
            let dir = tree.mkdir(SOMEBODY, ROOT, &c(name), 0o755, 0, None).unwrap().node;
            tree.mknod(SOMEBODY, dir, c"file", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap();
            dir
        };
        let one = make("one");
        make("two");
        make("three");
        assert_eq!(tree.rmdir(ROOT, c"one"), Err(Errno::NOTEMPTY));
        assert_eq!(tree.lookup(one, c"file").unwrap().attributes.uid, 1000);
        let full = tree.rename(ROOT, c"three", ROOT, c"one", 0);
        assert!(matches!(full, Err(Errno::NOTEMPTY | Errno::EXIST)), "{full:?}");
        assert_eq!(tree.lookup(one, c"file").unwrap().attributes.uid, 1000);
        tree.unlink(one, c"file").unwrap();
        // Another program takes a file away, whose record stays.
        fs::remove_file(at.path("two/file")).unwrap();
        tree.rename(ROOT, c"three", ROOT, c"one", 0).unwrap();
        tree.rmdir(ROOT, c"two").unwrap();
        assert_eq!(at.names(ROOT), ["one"]);
        assert_eq!(at.names(at.node("one")), ["file"]);
        assert_eq!(tree.rmdir(at.node("one"), c"file"), Err(Errno::NOTDIR));
        assert_eq!(tree.unlink(ROOT, c"one"), Err(Errno::ISDIR));
        assert_eq!(tree.rmdir(ROOT, c"none"), Err(Errno::NOENT));
        if is_file_model(at) {
            let left: Vec<_> =
                fs::read_dir(at.path(".virtfs_metadata")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["one"]);
        }
    });
}

#[test]
fn set_id_bits_go_when_somebody_without_power_writes() {
    everywhere(|at| {
        let tree = &at.tree;
        let mode = |node| tree.attributes(node, None).unwrap().mode & 0o7777;
        let (entry, opened) = tree.create(SOMEBODY, ROOT, c"file", RDWR, 0o6755, 0, false, None).unwrap();
        let file = tree.file(opened.handle).unwrap();
        rustix::io::pwrite(&*file, b"abc", 0).unwrap();
        assert_eq!(mode(entry.node), 0o6755);
        tree.killing_privileges(&file, || rustix::io::pwrite(&*file, b"abc", 0)).unwrap();
        assert_eq!(mode(entry.node), 0o755);
        let set =
            || tree.set_attributes(entry.node, None, &Change { mode: Some(0o6755), ..Change::default() }).unwrap();
        set();
        let cut = Change { size: Some(1), kill_suid_sgid: true, ..Change::default() };
        assert_eq!(tree.set_attributes(entry.node, None, &cut).unwrap().mode & 0o7777, 0o755);
        set();
        tree.release(tree.open(entry.node, RDWR | libc::O_TRUNC, false).unwrap().handle, None);
        assert_eq!(mode(entry.node), 0o6755);
        tree.release(tree.open(entry.node, RDWR | libc::O_TRUNC, true).unwrap().handle, None);
        assert_eq!(mode(entry.node), 0o755);
    });
}

#[test]
fn a_record_is_seen_again_when_its_name_is_looked_up() {
    only(&mapped_file(), |at| {
        let node = at.tree.mknod(SOMEBODY, ROOT, c"file", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap().node;
        at.write(".virtfs_metadata/file", "virtfs.uid=5\n");
        assert_eq!(at.lookup("file").attributes.uid, 5);
        assert_eq!(at.tree.attributes(node, None).unwrap().uid, 5);
        // Another program renames it: the client has to look it up again.
        rustix::fs::renameat(CWD, at.path("file"), CWD, at.path("other")).unwrap();
        let change = Change { uid: Some(6), ..Change::default() };
        assert_eq!(at.tree.set_attributes(node, None, &change), Err(Errno::STALE));
        assert_eq!(at.node("other"), node);
        assert_eq!(at.tree.set_attributes(node, None, &change).unwrap().uid, 6);
        assert_eq!(fs::read_to_string(at.path(".virtfs_metadata/other")).unwrap(), "virtfs.uid=6\n");
    });
}
