//! Names and nodes.

use crate::common::{Fixture, SELF, c, everywhere, is_root};
use crate::operations::{RDWR, kind, xattr};
use passthrough::{Options, ROOT};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileTypeExt;

#[test]
fn a_name_is_found_again_under_one_number_until_it_is_forgotten() {
    everywhere(&Options::default(), |at| {
        at.write("file", "hello");
        let first = at.lookup("file");
        assert_eq!((first.attributes.size, kind(&first.attributes), first.submount), (5, libc::S_IFREG, false));
        fs::hard_link(at.path("file"), at.path("link")).unwrap();
        let second = at.lookup("link");
        assert_eq!(second.node, first.node);
        assert_eq!(second.attributes.links, 2);
        at.tree.forget(first.node, 1);
        assert_eq!(at.tree.attributes(first.node, None).unwrap().ino, first.attributes.ino);
        at.tree.forget(first.node, 1);
        assert_eq!(at.tree.attributes(first.node, None), Err(Errno::STALE));
        assert_ne!(at.lookup("file").node, first.node, "no number is used twice");
        assert_eq!(at.tree.lookup(ROOT, c"missing").err(), Some(Errno::NOENT));
        assert_eq!(at.tree.lookup(ROOT, c".").unwrap().node, ROOT);
        assert_eq!(at.tree.lookup(ROOT, c"..").unwrap().node, ROOT);
        at.tree.forget(ROOT, u64::MAX);
        assert_eq!(at.tree.describe().nodes, 2);
    });
}

#[test]
fn another_file_with_the_number_of_a_removed_one_is_another_node() {
    everywhere(&Options::default(), |at| {
        // Inode numbers come again soon on ext4, later elsewhere.
        let mut nodes = Vec::new();
        for round in 0..50 {
            at.write("file", &"x".repeat(round));
            let entry = at.lookup("file");
            assert_eq!(entry.attributes.size, round as u64);
            fs::remove_file(at.path("file")).unwrap();
            nodes.push(entry.node);
        }
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 50);
    });
}

#[test]
fn files_are_made_written_and_removed() {
    everywhere(&Options::default(), |at| {
        let (entry, opened) =
            at.tree.create(SELF, ROOT, c"new", RDWR | libc::O_CREAT, 0o666, 0o027, false, None).unwrap();
        assert_eq!(entry.attributes.mode, libc::S_IFREG | 0o640);
        let file = at.tree.file(opened.handle).unwrap();
        assert_eq!(file.node(), entry.node);
        rustix::io::pwrite(&*file, b"abcdef", 0).unwrap();
        assert_eq!(at.tree.attributes(entry.node, None).unwrap().size, 6);
        assert_eq!(at.tree.attributes(entry.node, Some(opened.handle)).unwrap().size, 6);

        let again = at.tree.create(SELF, ROOT, c"new", libc::O_EXCL | RDWR, 0o666, 0, false, None);
        assert_eq!(again.err(), Some(Errno::EXIST));
        let (same, other) = at.tree.create(SELF, ROOT, c"new", RDWR | libc::O_TRUNC, 0o666, 0, false, None).unwrap();
        assert_eq!((same.node, same.attributes.size), (entry.node, 0));
        at.tree.release(other.handle, None);
        at.tree.forget(entry.node, 1);

        at.tree.unlink(ROOT, c"new").unwrap();
        assert_eq!(at.tree.unlink(ROOT, c"new"), Err(Errno::NOENT));
        // Removed while open: the node lives as long as the file is open.
        rustix::io::pwrite(&*file, b"abc", 0).unwrap();
        drop(file);
        let left = at.tree.attributes(entry.node, None).unwrap();
        assert_eq!((left.size, left.links), (3, 0));
        at.tree.release(opened.handle, None);
        assert_eq!(at.tree.file(opened.handle).err(), Some(Errno::BADF));
        at.tree.forget(entry.node, 1);
        let after = at.tree.describe();
        assert_eq!((after.nodes, after.handles, after.descriptors), (1, 0, 1));
    });
}

#[test]
fn directories_links_and_special_files_are_made() {
    everywhere(&Options::default(), |at| {
        let dir = at.tree.mkdir(SELF, ROOT, c"dir", 0o777, 0o022, None).unwrap();
        assert_eq!(dir.attributes.mode, libc::S_IFDIR | 0o755);
        assert_eq!(at.tree.mkdir(SELF, ROOT, c"dir", 0o777, 0, None).err(), Some(Errno::EXIST));
        let link = at.tree.symlink(SELF, dir.node, c"link", c"/etc/passwd", None).unwrap();
        assert_eq!(kind(&link.attributes), libc::S_IFLNK);
        let mut target = b"before".to_vec();
        at.tree.read_link(link.node, &mut target).unwrap();
        assert_eq!(target, b"/etc/passwd");
        assert_eq!(at.tree.read_link(dir.node, &mut target), Err(Errno::INVAL));

        let fifo = at.tree.mknod(SELF, dir.node, c"fifo", libc::S_IFIFO | 0o666, (0, 0), 0o022, None).unwrap();
        assert_eq!(fifo.attributes.mode, libc::S_IFIFO | 0o644);
        let file = at.tree.mknod(SELF, dir.node, c"file", libc::S_IFREG | 0o600, (0, 0), 0, None).unwrap();
        assert_eq!(kind(&file.attributes), libc::S_IFREG);
        at.tree.mknod(SELF, dir.node, c"socket", libc::S_IFSOCK | 0o600, (0, 0), 0, None).unwrap();
        assert!(fs::metadata(at.path("dir/socket")).unwrap().file_type().is_socket());
        let bad = at.tree.mknod(SELF, dir.node, c"bad", libc::S_IFDIR | 0o600, (0, 0), 0, None);
        assert_eq!(bad.err(), Some(Errno::INVAL));
        if is_root() {
            let device = at.tree.mknod(SELF, dir.node, c"null", libc::S_IFCHR | 0o666, (1, 3), 0, None).unwrap();
            assert_eq!(device.attributes.rdev, (1, 3));
        }

        let again = at.tree.link(file.node, ROOT, c"again").unwrap();
        assert_eq!((again.node, again.attributes.links), (file.node, 2));
        at.tree.link(link.node, ROOT, c"link2").unwrap();
        assert_eq!(fs::read_link(at.path("link2")).unwrap().to_str(), Some("/etc/passwd"));
        assert_eq!(at.tree.link(file.node, ROOT, c"again").err(), Some(Errno::EXIST));
        assert_eq!(at.tree.rmdir(ROOT, c"dir"), Err(Errno::NOTEMPTY));
        assert_eq!(at.tree.unlink(ROOT, c"dir"), Err(Errno::ISDIR));
        at.tree.mkdir(SELF, ROOT, c"empty", 0o700, 0, None).unwrap();
        at.tree.rmdir(ROOT, c"empty").unwrap();
        assert_eq!(at.tree.lookup(ROOT, c"empty").err(), Some(Errno::NOENT));
    });
}

#[test]
fn a_file_without_a_name_gets_one() {
    everywhere(&Options::default(), |at| {
        let (entry, opened) = at.tree.tmpfile(SELF, ROOT, RDWR, 0o666, 0o022, None).unwrap();
        assert_eq!((entry.attributes.links, entry.attributes.mode), (0, libc::S_IFREG | 0o644));
        assert!(at.names(ROOT).is_empty());
        rustix::io::pwrite(&*at.tree.file(opened.handle).unwrap(), b"text", 0).unwrap();
        let linked = at.tree.link(entry.node, ROOT, c"named").unwrap();
        assert_eq!((linked.node, linked.attributes.links), (entry.node, 1));
        at.tree.release(opened.handle, None);
        assert_eq!(fs::read(at.path("named")).unwrap(), b"text");
        assert_eq!(at.lookup("named").node, entry.node);
    });
}

#[test]
fn names_move() {
    everywhere(&Options::default(), |at| {
        at.write("a", "a");
        at.write("b", "b");
        let dir = at.tree.mkdir(SELF, ROOT, c"dir", 0o700, 0, None).unwrap().node;
        let (a, b) = (at.node("a"), at.node("b"));
        at.tree.rename(ROOT, c"a", dir, c"c", 0).unwrap();
        assert_eq!(at.tree.lookup(dir, c"c").unwrap().node, a);
        assert_eq!(at.tree.rename(ROOT, c"b", dir, c"c", libc::RENAME_NOREPLACE), Err(Errno::EXIST));
        at.tree.rename(ROOT, c"b", dir, c"c", libc::RENAME_EXCHANGE).unwrap();
        assert_eq!((at.node("b"), at.tree.lookup(dir, c"c").unwrap().node), (a, b));
        assert_eq!(at.tree.rename(ROOT, c"b", dir, c"c", 64), Err(Errno::INVAL));
        at.tree.rename(ROOT, c"b", dir, c"c", 0).unwrap();
        assert_eq!(at.names(dir), ["c"]);
        assert_eq!(at.tree.attributes(b, None).map_or(0, |found| found.links), 0);
    });
}

#[test]
fn directories_are_read_in_pieces_that_fit() {
    everywhere(&Options::default(), |at| {
        let count = 3000;
        for number in 0..count {
            at.write(&format!("a-file-with-a-longer-name-{number:05}"), "");
        }
        let dir = at.tree.open_dir(ROOT).unwrap().handle;
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            // Seven fit, the eighth comes again.
            let mut room = 7;
            let before = names.len();
            at.tree
                .read_dir(dir, offset, &mut |entry| {
                    if room == 0 {
                        return false;
                    }
                    room -= 1;
                    offset = entry.offset;
                    names.push((entry.name.to_vec(), entry.offset));
                    true
                })
                .unwrap();
            if names.len() == before {
                break;
            }
        }
        assert_eq!(names.len(), count + 2);
        // Any offset can be gone back to, and the directory can be read anew.
        let (_, middle) = names[1000];
        let mut next = None;
        at.tree
            .read_dir(dir, middle, &mut |entry| {
                next = Some(entry.name.to_vec());
                false
            })
            .unwrap();
        assert_eq!(next.as_ref(), Some(&names[1001].0));
        at.write("late", "");
        let mut found = false;
        at.tree
            .read_dir(dir, 0, &mut |entry| {
                found |= entry.name == b"late";
                true
            })
            .unwrap();
        assert!(found);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count + 2);
        assert_eq!(at.tree.read_dir(dir, u64::MAX, &mut |_| true), Err(Errno::INVAL));

        // With attributes, twice: new names first, known ones then.
        for _ in 0..2 {
            for (name, _) in names.iter().filter(|(name, _)| name.starts_with(b"a-")).take(100) {
                let entry = at.tree.read_dir_entry(dir, &c(std::str::from_utf8(name).unwrap())).unwrap();
                assert_eq!(entry.node, at.node(std::str::from_utf8(name).unwrap()));
            }
        }
        assert_eq!(at.tree.describe().nodes, 101);
        assert_eq!(at.tree.read_dir_entry(dir, c"missing").err(), Some(Errno::NOENT));
        assert_eq!(at.tree.open(ROOT, libc::O_RDONLY, false).err(), Some(Errno::ISDIR));
        assert_eq!(at.tree.open_dir(at.node("late")).err(), Some(Errno::NOTDIR));
        let file = at.tree.open(at.node("late"), libc::O_RDONLY, false).unwrap().handle;
        assert_eq!(at.tree.read_dir(file, 0, &mut |_| true), Err(Errno::NOTDIR));
        assert_eq!(at.tree.sync_dir(file, false), Err(Errno::NOTDIR));
        at.tree.sync_dir(dir, false).unwrap();
    });
}

#[test]
fn everything_is_gone_when_the_client_is() {
    everywhere(&Options::default(), |at| {
        at.write("file", "");
        let node = at.node("file");
        let handle = at.tree.open(node, RDWR, false).unwrap().handle;
        let dir = at.tree.open_dir(ROOT).unwrap().handle;
        at.tree.node_file(ROOT).unwrap();
        at.tree.node_file(node).unwrap();
        at.tree.clear();
        assert_eq!(at.tree.file(handle).err(), Some(Errno::BADF));
        assert_eq!(at.tree.file(dir).err(), Some(Errno::BADF));
        assert_eq!(at.tree.attributes(node, None), Err(Errno::STALE));
        let after = at.tree.describe();
        assert_eq!((after.nodes, after.handles, after.descriptors, after.lock_owners), (1, 0, 1, 0));
        assert_ne!(at.node("file"), node);
    });
}

#[test]
fn every_operation_refuses_what_is_no_name_or_no_node() {
    let at = Fixture::new(xattr());
    at.write("file", "");
    let file = at.node("file");
    let tree = &at.tree;
    for bad in [c"", c".", c"..", c"a/b", c"/", c"/etc", c"../etc", c"file/"] {
        let inval = Some(Errno::INVAL);
        if bad != c"." && bad != c".." {
            assert_eq!(tree.lookup(ROOT, bad).err(), inval, "{bad:?}");
        }
        assert_eq!(tree.create(SELF, ROOT, bad, RDWR, 0o600, 0, false, None).err(), inval);
        assert_eq!(tree.mkdir(SELF, ROOT, bad, 0o700, 0, None).err(), inval);
        assert_eq!(tree.symlink(SELF, ROOT, bad, c"x", None).err(), inval);
        assert_eq!(tree.mknod(SELF, ROOT, bad, libc::S_IFREG, (0, 0), 0, None).err(), inval);
        assert_eq!(tree.link(file, ROOT, bad).err(), inval);
        assert_eq!(tree.unlink(ROOT, bad).err(), inval);
        assert_eq!(tree.rmdir(ROOT, bad).err(), inval);
        assert_eq!(tree.rename(ROOT, bad, ROOT, c"new", 0).err(), inval);
        assert_eq!(tree.rename(ROOT, c"file", ROOT, bad, 0).err(), inval);
    }
    for bad in [0, 99, u64::MAX] {
        assert_eq!(tree.lookup(bad, c"file").err(), Some(Errno::STALE));
        assert_eq!(tree.attributes(bad, None).err(), Some(Errno::STALE));
        assert_eq!(tree.open(bad, RDWR, false).err(), Some(Errno::STALE));
        assert_eq!(tree.statfs(bad).err(), Some(Errno::STALE));
        assert_eq!(tree.file(bad).err(), Some(Errno::BADF));
        assert_eq!(tree.read_dir(bad, 0, &mut |_| true).err(), Some(Errno::BADF));
        tree.forget(bad, 1);
        tree.release(bad, Some(1));
        tree.release_dir(bad);
    }
    assert_eq!(tree.lookup(file, c"x").err(), Some(Errno::NOTDIR));
    assert_eq!(tree.mkdir(SELF, file, c"x", 0o700, 0, None).err(), Some(Errno::NOTDIR));
    assert_eq!(tree.unlink(file, c"x").err(), Some(Errno::NOTDIR));
}
