//! Every operation against real directories.

mod common;

use common::{Fixture, SELF, c, everywhere, is_root};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use tree::{Attributes, Caller, Change, IdMap, Options, ROOT, SecurityContext, SetTime, Time, Whence};

const RDWR: i32 = libc::O_RDWR;

fn xattr() -> Options {
    Options { xattr: true, ..Options::default() }
}

fn kind(attributes: &Attributes) -> u32 {
    attributes.mode & libc::S_IFMT
}

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

/// A client that caches writes sends the times of removed files when it syncs, and takes a refusal for lost data.
#[test]
fn times_of_what_is_gone_are_nobodys() {
    everywhere(&Options::default(), |at| {
        at.write("file", "0123456789");
        let node = at.node("file");
        fs::remove_file(at.path("file")).unwrap();
        let set = |change: Change| at.tree.set_attributes(node, None, &change);
        let gone = set(Change { mtime: Some(SetTime::Now), ..Change::default() }).unwrap();
        assert_eq!((kind(&gone), gone.links), (libc::S_IFREG, 0));
        // Where the tree holds a descriptor the inode is still there; where it does not, everything else is refused.
        let mode = set(Change { mode: Some(0o600), ..Change::default() }).map(|found| found.links);
        assert!(matches!(mode, Ok(0) | Err(Errno::STALE)), "{mode:?}");
        at.tree.forget(node, 1);
        assert_eq!(set(Change { mtime: Some(SetTime::Now), ..Change::default() }), Err(Errno::STALE));
    });
}

#[test]
fn attributes_change() {
    everywhere(&Options::default(), |at| {
        at.write("file", "0123456789");
        let node = at.node("file");
        let change = |change: Change| at.tree.set_attributes(node, None, &change);
        assert_eq!(change(Change { mode: Some(0o4711), ..Change::default() }).unwrap().mode & 0o7777, 0o4711);
        assert_eq!(change(Change { size: Some(3), ..Change::default() }).unwrap().size, 3);
        let at_time = Time { seconds: -5, nanoseconds: 7 };
        let times = Change { mtime: Some(SetTime::At(at_time)), ..Change::default() };
        let before = at.tree.attributes(node, None).unwrap();
        let after = change(times).unwrap();
        assert_eq!((after.mtime, after.atime), (at_time, before.atime));
        let now = Change { mtime: Some(SetTime::Now), atime: Some(SetTime::Now), ..Change::default() };
        assert!(change(now).unwrap().mtime.seconds > 1_000_000_000);
        // "now" and "leave it" cannot be smuggled in as nanoseconds.
        for nanoseconds in [1_000_000_000, 0x3fff_ffff, 0x3fff_fffe, u32::MAX] {
            let bad = Some(SetTime::At(Time { seconds: 0, nanoseconds }));
            assert_eq!(change(Change { mtime: bad, ..Change::default() }), Err(Errno::INVAL));
        }
        assert!(change(Change { size: Some(u64::MAX), ..Change::default() }).is_err());
        if is_root() {
            let owned = change(Change { uid: Some(12), gid: Some(34), ..Change::default() }).unwrap();
            assert_eq!((owned.uid, owned.gid), (12, 34));
        }
        assert_eq!(change(Change { uid: Some(u32::MAX), ..Change::default() }), Err(Errno::INVAL));

        let handle = at.tree.open(node, RDWR, false).unwrap().handle;
        let through = at.tree.set_attributes(node, Some(handle), &Change { size: Some(7), ..Change::default() });
        assert_eq!(through.unwrap().size, 7);
        assert_eq!(at.tree.set_attributes(ROOT, Some(handle), &Change::default()), Err(Errno::BADF));
        let dir = Change { size: Some(0), ..Change::default() };
        assert_eq!(at.tree.set_attributes(ROOT, None, &dir), Err(Errno::ISDIR));

        at.tree.symlink(SELF, ROOT, c"link", c"file", None).unwrap();
        let link = at.node("link");
        let owner = Change { uid: Some(rustix::process::geteuid().as_raw()), mtime: times.mtime, ..Change::default() };
        let changed = at.tree.set_attributes(link, None, &owner).unwrap();
        assert_eq!((kind(&changed), changed.mtime), (libc::S_IFLNK, at_time), "the link, not its target");
        assert_eq!(fs::metadata(at.path("file")).unwrap().len(), 7);
        assert_eq!(
            at.tree.set_attributes(link, None, &Change { size: Some(0), ..Change::default() }),
            Err(Errno::INVAL)
        );
    });
}

#[test]
fn privileges_are_killed_when_asked() {
    everywhere(&Options::default(), |at| {
        let suid = |mode| fs::set_permissions(at.path("file"), fs::Permissions::from_mode(mode)).unwrap();
        let mode = || fs::metadata(at.path("file")).unwrap().mode() & 0o7777;
        at.write("file", "text");
        let node = at.node("file");
        suid(0o6755);
        let change = Change { size: Some(1), kill_suid_sgid: true, ..Change::default() };
        at.tree.set_attributes(node, None, &change).unwrap();
        assert_eq!(mode(), 0o755);
        suid(0o6755);
        let opened = at.tree.open(node, RDWR | libc::O_TRUNC, true).unwrap();
        assert_eq!(mode(), 0o755);
        suid(0o6755);
        let file = at.tree.file(opened.handle).unwrap();
        at.tree.killing_privileges(&file, || rustix::io::pwrite(&*file, b"x", 0)).unwrap();
        assert_eq!(mode(), 0o755);
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
fn data_is_allocated_found_and_copied() {
    everywhere(&Options::default(), |at| {
        let make = |name| at.tree.create(SELF, ROOT, name, RDWR, 0o600, 0, false, None).unwrap();
        let ((one, from), (two, to)) = (make(c"one"), make(c"two"));
        at.tree.set_attributes(one.node, None, &Change { size: Some(1 << 20), ..Change::default() }).unwrap();
        let file = at.tree.file(from.handle).unwrap();
        rustix::io::pwrite(&*file, &[7; 4096], 512 * 1024).unwrap();
        assert_eq!(at.tree.seek(from.handle, 0, Whence::Data), Ok(512 * 1024));
        assert_eq!(at.tree.seek(from.handle, 512 * 1024, Whence::Hole), Ok(516 * 1024));
        assert_eq!(at.tree.seek(from.handle, 1 << 20, Whence::Data), Err(Errno::NXIO));
        assert_eq!(at.tree.seek(from.handle, u64::MAX, Whence::Data), Err(Errno::INVAL));
        assert_eq!(at.tree.copy_range(from.handle, 512 * 1024, to.handle, 10, 4096, 0), Ok(4096));
        assert_eq!(at.tree.attributes(two.node, None).unwrap().size, 4106);
        assert_eq!(at.tree.copy_range(from.handle, 0, to.handle, 0, 1, 1), Err(Errno::INVAL));
        at.tree.fallocate(to.handle, 0, 0, 1 << 20).unwrap();
        assert_eq!(at.tree.attributes(two.node, None).unwrap().size, 1 << 20);
        assert!(at.tree.fallocate(to.handle, 0, u64::MAX, 1).is_err());
        at.tree.sync_file(to.handle, true).unwrap();
        at.tree.sync_file(to.handle, false).unwrap();
        at.tree.sync_fs(ROOT).unwrap();
        at.tree.flush(two.node, to.handle, 1).unwrap();
        assert_eq!(at.tree.flush(one.node, to.handle, 1), Err(Errno::BADF));
        assert!(at.tree.statfs(two.node).unwrap().f_bsize > 0);
        let shared = at.tree.node_file(two.node).unwrap();
        let mut byte = [0];
        rustix::io::pread(&*shared, &mut byte, 10).unwrap();
        assert_eq!(byte, [7]);
        assert!(std::sync::Arc::ptr_eq(&shared, &at.tree.node_file(two.node).unwrap()));
    });
}

#[test]
fn extended_attributes_are_read_written_and_listed() {
    everywhere(&xattr(), |at| {
        at.write("file", "");
        at.tree.mknod(SELF, ROOT, c"fifo", libc::S_IFIFO | 0o600, (0, 0), 0, None).unwrap();
        let node = at.node("file");
        let mut out = b"old".to_vec();
        at.tree.set_xattr(node, c"user.a", b"value", 0, false).unwrap();
        assert_eq!(at.tree.get_xattr(node, c"user.a", &mut out, 0), Ok(5));
        assert!(out.is_empty());
        assert_eq!(at.tree.get_xattr(node, c"user.a", &mut out, 100), Ok(5));
        assert_eq!(out, b"value");
        assert_eq!(at.tree.get_xattr(node, c"user.a", &mut out, 4), Err(Errno::RANGE));
        assert_eq!(at.tree.get_xattr(node, c"user.b", &mut out, 4), Err(Errno::NODATA));
        let create = libc::XATTR_CREATE.cast_unsigned();
        assert_eq!(at.tree.set_xattr(node, c"user.a", b"", create, false), Err(Errno::EXIST));
        assert_eq!(at.tree.set_xattr(node, c"user.a", b"", 64, false), Err(Errno::INVAL));
        let len = at.tree.list_xattr(node, &mut out, 1000).unwrap();
        assert_eq!(len, out.len());
        assert!(out.split(|&byte| byte == 0).any(|name| name == b"user.a"));
        assert_eq!(at.tree.list_xattr(node, &mut out, 0), Ok(len));
        assert_eq!(at.tree.list_xattr(node, &mut out, 2), Err(Errno::RANGE));
        at.tree.remove_xattr(node, c"user.a").unwrap();
        assert_eq!(at.tree.remove_xattr(node, c"user.a"), Err(Errno::NODATA));
        // Special files and links have none of these, and are not opened to find out.
        assert_eq!(at.tree.set_xattr(at.node("fifo"), c"user.a", b"", 0, false), Err(Errno::PERM));
        at.tree.symlink(SELF, ROOT, c"link", c"file", None).unwrap();
        if is_root() {
            at.tree.set_xattr(at.node("link"), c"trusted.a", b"of the link", 0, false).unwrap();
            assert_eq!(at.tree.get_xattr(node, c"trusted.a", &mut out, 100), Err(Errno::NODATA));
            assert_eq!(at.tree.get_xattr(at.node("link"), c"trusted.a", &mut out, 100), Ok(11));
        }
        let acl = c"system.posix_acl_access";
        assert_eq!(at.tree.get_xattr(node, acl, &mut out, 100), Err(Errno::OPNOTSUPP));
    });
    let without = Fixture::new(Options::default());
    assert_eq!(without.tree.list_xattr(ROOT, &mut Vec::new(), 100), Err(Errno::OPNOTSUPP));
    assert_eq!(without.tree.set_xattr(ROOT, c"user.a", b"", 0, false), Err(Errno::OPNOTSUPP));
}

#[test]
fn names_of_attributes_are_mapped() {
    let at = Fixture::new(Options { xattr_map: ":map::user.virtiofs.:".parse().unwrap(), ..xattr() });
    at.write("file", "");
    let node = at.node("file");
    at.tree.set_xattr(node, c"security.anything", b"value", 0, false).unwrap();
    let mut buffer = [0; 100];
    let size = rustix::fs::getxattr(at.path("file"), c"user.virtiofs.security.anything", &mut buffer[..]).unwrap();
    assert_eq!(&buffer[..size], b"value");
    let mut names = Vec::new();
    at.tree.list_xattr(node, &mut names, 1000).unwrap();
    assert_eq!(names, b"security.anything\0");
}

#[test]
fn a_label_is_there_from_the_start_or_the_file_is_not() {
    everywhere(&xattr(), |at| {
        let label = Some(SecurityContext { name: c"user.label", value: b"secret" });
        let has = |name: &str| {
            let mut buffer = [0; 100];
            let size = rustix::fs::getxattr(at.path(name), c"user.label", &mut buffer[..]).unwrap();
            assert_eq!(&buffer[..size], b"secret");
        };
        let (_, opened) = at.tree.create(SELF, ROOT, c"file", RDWR, 0o600, 0, false, label).unwrap();
        has("file");
        at.tree.mkdir(SELF, ROOT, c"dir", 0o700, 0, label).unwrap();
        has("dir");
        let (_, nameless) = at.tree.tmpfile(SELF, ROOT, RDWR, 0o600, 0, label).unwrap();
        at.tree.release(opened.handle, None);
        at.tree.release(nameless.handle, None);
        let nodes = at.tree.describe().nodes;

        // Nothing but files and directories can have user attributes, and no file system has these.
        assert_eq!(at.tree.symlink(SELF, ROOT, c"link", c"file", label).err(), Some(Errno::PERM));
        assert_eq!(at.tree.mknod(SELF, ROOT, c"fifo", libc::S_IFIFO, (0, 0), 0, label).err(), Some(Errno::PERM));
        let bad = Some(SecurityContext { name: c"nobody.knows", value: b"" });
        assert!(at.tree.create(SELF, ROOT, c"bad", RDWR, 0o600, 0, false, bad).is_err());
        assert!(at.tree.mkdir(SELF, ROOT, c"bad", 0o600, 0, bad).is_err());
        assert_eq!(at.names(ROOT), ["dir", "file"]);
        assert_eq!(at.tree.describe().nodes, nodes);
    });
}

#[test]
fn new_files_belong_to_their_caller() {
    if !is_root() {
        return;
    }
    everywhere(&Options::default(), |at| {
        let who = Caller { uid: 1234, gid: 2345, groups: &[] };
        let (file, opened) = at.tree.create(who, ROOT, c"file", RDWR, 0o600, 0, false, None).unwrap();
        let dir = at.tree.mkdir(who, ROOT, c"dir", 0o700, 0, None).unwrap();
        let link = at.tree.symlink(who, ROOT, c"link", c"x", None).unwrap();
        let fifo = at.tree.mknod(who, dir.node, c"fifo", libc::S_IFIFO | 0o600, (0, 0), 0, None).unwrap();
        let (nameless, other) = at.tree.tmpfile(who, dir.node, RDWR, 0o600, 0, None).unwrap();
        for entry in [file, dir, link, fifo, nameless] {
            assert_eq!((entry.attributes.uid, entry.attributes.gid), (1234, 2345));
        }
        at.tree.release(opened.handle, None);
        at.tree.release(other.handle, None);
        assert_eq!(at.tree.mkdir(SELF, ROOT, c"own", 0o700, 0, None).unwrap().attributes.uid, 0);
    });
}

#[test]
fn ids_are_translated() {
    if !is_root() {
        return;
    }
    let map = IdMap::new(&["map:0:5000:1000".parse().unwrap()]).unwrap();
    let at = Fixture::new(Options { uid_map: map.clone(), gid_map: map, ..Options::default() });
    let who = Caller { uid: 12, gid: 34, groups: &[56] };
    let (entry, _) = at.tree.create(who, ROOT, c"file", RDWR, 0o600, 0, false, None).unwrap();
    assert_eq!((entry.attributes.uid, entry.attributes.gid), (12, 34));
    let host = fs::metadata(at.path("file")).unwrap();
    assert_eq!((host.uid(), host.gid()), (5012, 5034));
    at.tree.set_attributes(entry.node, None, &Change { uid: Some(1), gid: Some(2), ..Change::default() }).unwrap();
    let host = fs::metadata(at.path("file")).unwrap();
    assert_eq!((host.uid(), host.gid()), (5001, 5002));
    let many = Caller { uid: 0, gid: 0, groups: &[0; 33] };
    assert_eq!(at.tree.mkdir(many, ROOT, c"many", 0o700, 0, None).err(), Some(Errno::INVAL));
}

#[test]
fn permissions_are_told() {
    let at = Fixture::new(Options::default());
    at.write("file", "");
    fs::set_permissions(at.path("file"), fs::Permissions::from_mode(0o640)).unwrap();
    let entry = at.lookup("file");
    let (uid, gid) = (entry.attributes.uid, entry.attributes.gid);
    let ask = |who, mask| at.tree.access(who, entry.node, mask);
    assert_eq!(ask(Caller { uid: 77, gid: 77, groups: &[] }, 4), Err(Errno::ACCESS));
    assert_eq!(ask(Caller { uid: 77, gid, groups: &[] }, 4), Ok(()));
    let groups = [5, gid];
    assert_eq!(ask(Caller { uid: 77, gid: 77, groups: &groups }, 4), Ok(()));
    assert_eq!(ask(Caller { uid: 77, gid, groups: &[] }, 6), Err(Errno::ACCESS));
    assert_eq!(ask(Caller { uid, gid, groups: &[] }, 6), Ok(()));
    assert_eq!(ask(Caller { uid: 0, gid: 0, groups: &[] }, 6), Ok(()));
    assert_eq!(ask(Caller { uid: 0, gid: 0, groups: &[] }, 1), Err(Errno::ACCESS), "executable for nobody");
    assert_eq!(ask(Caller { uid: 77, gid: 77, groups: &[] }, 0), Ok(()));
    assert_eq!(ask(Caller { uid, gid, groups: &[] }, 8), Err(Errno::INVAL));
}

#[test]
fn a_read_only_tree_changes_nothing() {
    let at = Fixture::new(Options { read_only: true, ..xattr() });
    at.write("file", "text");
    let node = at.node("file");
    let rofs = Some(Errno::ROFS);
    let tree = &at.tree;
    assert_eq!(tree.create(SELF, ROOT, c"new", RDWR, 0o600, 0, false, None).err(), rofs);
    assert_eq!(tree.tmpfile(SELF, ROOT, RDWR, 0o600, 0, None).err(), rofs);
    assert_eq!(tree.mkdir(SELF, ROOT, c"new", 0o700, 0, None).err(), rofs);
    assert_eq!(tree.symlink(SELF, ROOT, c"new", c"x", None).err(), rofs);
    assert_eq!(tree.mknod(SELF, ROOT, c"new", libc::S_IFREG, (0, 0), 0, None).err(), rofs);
    assert_eq!(tree.link(node, ROOT, c"new").err(), rofs);
    assert_eq!(tree.unlink(ROOT, c"file").err(), rofs);
    assert_eq!(tree.rmdir(ROOT, c"file").err(), rofs);
    assert_eq!(tree.rename(ROOT, c"file", ROOT, c"new", 0).err(), rofs);
    assert_eq!(tree.set_attributes(node, None, &Change { mode: Some(0), ..Change::default() }).err(), rofs);
    assert_eq!(tree.set_xattr(node, c"user.a", b"", 0, false).err(), rofs);
    assert_eq!(tree.remove_xattr(node, c"user.a").err(), rofs);
    for flags in [libc::O_WRONLY, RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        assert_eq!(tree.open(node, flags, false).err(), rofs);
    }
    let handle = tree.open(node, libc::O_RDONLY, false).unwrap().handle;
    assert_eq!(tree.fallocate(handle, 0, 0, 1).err(), rofs);
    assert_eq!(tree.copy_range(handle, 0, handle, 2, 1, 0).err(), rofs);
    assert_eq!(tree.set_flags(handle, 0).err(), rofs);
    assert_eq!(tree.access(SELF, node, 2).err(), rofs);
    tree.access(SELF, node, 4).unwrap();
    assert_eq!(fs::read(at.path("file")).unwrap(), b"text");
    assert_eq!(at.names(ROOT), ["file"]);
}

#[test]
fn flags_of_an_open_follow_the_options() {
    let flags = |options: Options, asked: i32| {
        let at = Fixture::new(options);
        at.write("file", "");
        let handle = at.tree.open(at.node("file"), asked, false).unwrap().handle;
        let file = at.tree.file(handle).unwrap();
        assert_eq!(
            rustix::fs::fcntl_getfl(&*file).unwrap().bits().cast_signed() & !libc::O_LARGEFILE & 0x7fff_ffff & !0x8000,
            file.flags() & !0x8000
        );
        file.flags()
    };
    let none = Options::default;
    assert_eq!(flags(none(), libc::O_WRONLY | libc::O_APPEND | libc::O_NOATIME), libc::O_WRONLY | libc::O_APPEND);
    let writeback = Options { writeback: true, ..none() };
    assert_eq!(flags(writeback, libc::O_WRONLY | libc::O_APPEND), libc::O_RDWR);
    let noatime = Options { preserve_noatime: true, ..none() };
    assert_eq!(flags(noatime, libc::O_NOATIME), libc::O_NOATIME);
    assert_eq!(flags(none(), libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_PATH | libc::O_EXCL), libc::O_RDONLY);
    let direct = Options { allow_direct_io: true, ..none() };
    assert_eq!(flags(direct, libc::O_DIRECT), libc::O_DIRECT);
}

#[test]
fn a_default_access_list_takes_the_place_of_the_umask() {
    // A default ACL of `u::rwx,g::rwx,o::---`, as `linux/posix_acl_xattr.h` lays it out: version 2, then tag, permissions
    // and id of each entry.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions) in [(1_u16, 7_u16), (4, 7), (32, 0)] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&permissions.to_le_bytes());
        acl.extend_from_slice(&u32::MAX.to_le_bytes());
    }
    let at = Fixture::new(Options { posix_acl: true, ..xattr() });
    let mode = |name| at.tree.mkdir(SELF, ROOT, name, 0o777, 0o077, None).unwrap().attributes.mode & 0o777;
    assert_eq!(mode(c"before"), 0o700);
    match at.tree.set_xattr(ROOT, c"system.posix_acl_default", &acl, 0, false) {
        Ok(()) => assert_eq!(mode(c"after"), 0o770),
        // A temp directory on a file system without access lists.
        Err(error) => assert_eq!(error, Errno::OPNOTSUPP),
    }
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
