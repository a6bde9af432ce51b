//! What is on disk.

use crate::common::{Fixture, SELF, c};
use crate::mapped::{
    RDWR, SOMEBODY, credentials, everywhere, expect_record, is_file_model, mapped_file, mapped_xattr, only,
};
use passthrough::{Caller, Change, Options, ROOT, Security, Source, Tree};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

#[test]
fn what_is_made_is_plain_on_disk_and_has_a_record() {
    everywhere(|at| {
        let tree = &at.tree;
        // The umask of a client stays with the thread, and is nothing to the files of the host.
        let (file, opened) = tree.create(SOMEBODY, ROOT, c"file", RDWR, 0o6777, 0o777, false, None).unwrap();
        tree.release(opened.handle, None);
        assert_eq!(credentials(&file.attributes), (libc::S_IFREG | 0o6000, 1000, 100, (0, 0)));
        expect_record(at, "file", 1000, 100, Some(0o106_000), None);

        let dir = tree.mkdir(SOMEBODY, ROOT, c"dir", 0o1775, 0o002, None).unwrap();
        assert_eq!(credentials(&dir.attributes), (libc::S_IFDIR | 0o1775, 1000, 100, (0, 0)));
        expect_record(at, "dir", 1000, 100, Some(0o041_775), None);

        let link = tree.symlink(SOMEBODY, ROOT, c"link", c"../where/ever", None).unwrap();
        assert_eq!(credentials(&link.attributes), (libc::S_IFLNK | 0o777, 1000, 100, (0, 0)));
        assert_eq!(link.attributes.size, 13);
        expect_record(at, "link", 1000, 100, Some(0o120_777), None);
        assert_eq!(fs::read(at.path("link")).unwrap(), b"../where/ever");
        let mut target = b"before".to_vec();
        tree.read_link(link.node, &mut target).unwrap();
        assert_eq!(target, b"../where/ever");
        assert_eq!(tree.read_link(file.node, &mut target), Err(Errno::INVAL));

        for (name, kind, rdev, encoded) in [
            (c"fifo", libc::S_IFIFO, (0, 0), 0),
            (c"socket", libc::S_IFSOCK, (0, 0), 0),
            (c"plain", libc::S_IFREG, (0, 0), 0),
            (c"disk", libc::S_IFBLK, (8, 1), 0x801),
            // What an `int` has no room for as a positive number.
            (c"tty", libc::S_IFCHR, (4, 0xf_ffff), 0xfff0_04ff_u32),
        ] {
            let made = tree.mknod(SOMEBODY, ROOT, name, kind | 0o666, rdev, 0o022, None).unwrap();
            assert_eq!(credentials(&made.attributes), (kind | 0o644, 1000, 100, rdev), "{name:?}");
            let host = fs::symlink_metadata(at.path(name.to_str().unwrap())).unwrap();
            assert!(host.file_type().is_file() && !host.file_type().is_fifo());
            if is_file_model(at) {
                let text = fs::read_to_string(at.path(".virtfs_metadata").join(name.to_str().unwrap())).unwrap();
                let mode = kind | 0o644;
                let rdev = encoded.cast_signed();
                let expected = format!("virtfs.uid=1000\nvirtfs.gid=100\nvirtfs.mode={mode}\nvirtfs.rdev={rdev}\n");
                assert_eq!(text, expected);
            } else {
                expect_record(at, name.to_str().unwrap(), 1000, 100, Some(kind | 0o644), Some(encoded));
            }
            // Found again, by name and by node.
            assert_eq!(credentials(&at.tree.lookup(ROOT, name).unwrap().attributes), credentials(&made.attributes));
            assert_eq!(credentials(&tree.attributes(made.node, None).unwrap()), credentials(&made.attributes));
        }
        assert_eq!(at.names(ROOT), ["dir", "disk", "fifo", "file", "link", "plain", "socket", "tty"]);
        let too_long = c(&"x".repeat(4096));
        assert_eq!(tree.symlink(SELF, ROOT, c"l", &too_long, None).err(), Some(Errno::NAMETOOLONG));
        assert_eq!(tree.symlink(SELF, ROOT, c"l", c"", None).err(), Some(Errno::NOENT));
        let nobody = Caller { uid: u32::MAX, ..SOMEBODY };
        assert_eq!(tree.mkdir(nobody, ROOT, c"d", 0o700, 0, None).err(), Some(Errno::PERM));
        assert!(!at.path("l").exists() && !at.path("d").exists());
    });
}

#[test]
fn permissions_and_owners_change_in_the_record_alone() {
    everywhere(|at| {
        at.write("theirs", "made by somebody else");
        fs::set_permissions(at.path("theirs"), fs::Permissions::from_mode(0o600)).unwrap();
        let node = at.node("theirs");
        let own = rustix::process::geteuid().as_raw();
        let before = at.lookup("theirs").attributes;
        assert_eq!((before.mode, before.uid), (libc::S_IFREG | 0o600, own));
        let ctime = before.ctime;
        std::thread::sleep(std::time::Duration::from_millis(20));

        let change = Change { uid: Some(7), gid: Some(8), ..Change::default() };
        let after = at.tree.set_attributes(node, None, &change).unwrap();
        assert_eq!(credentials(&after), (libc::S_IFREG | 0o600, 7, 8, (0, 0)));
        assert!(after.ctime > ctime, "it has changed");
        expect_record(at, "theirs", 7, 8, None, None);

        let change = Change { mode: Some(0o4755), ..Change::default() };
        let after = at.tree.set_attributes(node, None, &change).unwrap();
        assert_eq!(credentials(&after), (libc::S_IFREG | 0o4755, 7, 8, (0, 0)));
        expect_record(at, "theirs", 7, 8, Some(0o104_755), None);

        // One of the two, and the set-user-id bit goes with the old owner.
        let change = Change { uid: Some(0), ..Change::default() };
        let after = at.tree.set_attributes(node, None, &change).unwrap();
        assert_eq!(credentials(&after), (libc::S_IFREG | 0o755, 0, 8, (0, 0)));
        expect_record(at, "theirs", 0, 8, Some(0o100_755), None);

        let none = Change { uid: Some(u32::MAX), ..Change::default() };
        assert_eq!(at.tree.set_attributes(node, None, &none), Err(Errno::INVAL));
        expect_record(at, "theirs", 0, 8, Some(0o100_755), None);
        assert_eq!(fs::read(at.path("theirs")).unwrap(), b"made by somebody else");

        let link = at.tree.symlink(SELF, ROOT, c"link", c"theirs", None).unwrap().node;
        let mode = Change { mode: Some(0o600), ..Change::default() };
        assert_eq!(at.tree.set_attributes(link, None, &mode), Err(Errno::OPNOTSUPP));
    });
}

#[test]
fn the_root_has_a_record_of_its_own() {
    everywhere(|at| {
        let change = Change { mode: Some(0o2775), uid: Some(5), gid: Some(6), ..Change::default() };
        let after = at.tree.set_attributes(ROOT, None, &change).unwrap();
        assert_eq!(credentials(&after), (libc::S_IFDIR | 0o2775, 5, 6, (0, 0)));
        assert_eq!(credentials(&at.tree.lookup(ROOT, c".").unwrap().attributes), credentials(&after));
        assert_eq!(credentials(&at.tree.attributes(ROOT, None).unwrap()), credentials(&after));
        if is_file_model(at) {
            let text = fs::read_to_string(at.path(".virtfs_metadata_root")).unwrap();
            assert_eq!(text, "virtfs.uid=5\nvirtfs.gid=6\nvirtfs.mode=17917\n");
            assert!(!at.path(".virtfs_metadata").exists());
        }
        assert_eq!(at.names(ROOT), [""; 0]);
        // Another daemon sees the same.
        let options = at.tree.describe().options;
        let again = Tree::new(Source::Path(at.dir.path().to_owned()), options).unwrap();
        assert_eq!(credentials(&again.attributes(ROOT, None).unwrap()), credentials(&after));
        // And what a set-group-id directory hands down.
        let file = at.tree.mknod(SOMEBODY, ROOT, c"file", libc::S_IFREG | 0o2775, (0, 0), 0, None).unwrap();
        assert_eq!(credentials(&file.attributes), (libc::S_IFREG | 0o775, 1000, 6, (0, 0)));
        let dir = at.tree.mkdir(SOMEBODY, ROOT, c"dir", 0o700, 0, None).unwrap();
        assert_eq!(credentials(&dir.attributes), (libc::S_IFDIR | 0o2700, 1000, 6, (0, 0)));
    });
}

#[test]
fn what_qemu_wrote_is_read() {
    only(&mapped_xattr(), |at| {
        at.write("device", "");
        let set = |name: &str, value: &[u8]| {
            rustix::fs::setxattr(at.path("device"), name, value, XattrFlags::empty()).unwrap();
        };
        set("user.virtfs.uid", &[0xe8, 3, 0, 0]);
        set("user.virtfs.gid", &[100, 0, 0, 0]);
        set("user.virtfs.mode", &[0xb6, 0x21, 0, 0]);
        set("user.virtfs.rdev", &[3, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(credentials(&at.lookup("device").attributes), (libc::S_IFCHR | 0o666, 1000, 100, (1, 3)));
        // What has another length is nothing.
        set("user.virtfs.uid", &[1, 2, 3]);
        set("user.virtfs.gid", &[1; 5]);
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(at.lookup("device").attributes.uid, own);
    });
    only(&mapped_file(), |at| {
        at.write("link", "target");
        fs::create_dir(at.path(".virtfs_metadata")).unwrap();
        at.write(".virtfs_metadata/link", "virtfs.uid=1000\nvirtfs.gid=100\nvirtfs.mode=41471\n");
        let link = at.lookup("link");
        assert_eq!(credentials(&link.attributes), (libc::S_IFLNK | 0o777, 1000, 100, (0, 0)));
        let mut target = Vec::new();
        at.tree.read_link(link.node, &mut target).unwrap();
        assert_eq!(target, b"target");
        // A file with a record of another file system's habits is what it is on the host.
        at.write("other", "x");
        fs::create_dir(at.path(".virtfs_metadata/other")).unwrap();
        assert_eq!(at.lookup("other").attributes.mode & libc::S_IFMT, libc::S_IFREG);
        std::os::unix::fs::symlink("../link", at.path(".virtfs_metadata/third")).unwrap();
        at.write("third", "x");
        assert_eq!(at.lookup("third").attributes.mode & libc::S_IFMT, libc::S_IFREG);
        let change = Change { mode: Some(0o644), ..Change::default() };
        assert_eq!(at.tree.set_attributes(at.node("third"), None, &change), Err(Errno::LOOP));
        assert_eq!(fs::read(at.path("link")).unwrap(), b"target", "nothing was written through the link");
    });
}

#[test]
fn modes_of_the_host_are_those_that_were_asked_for() {
    let security = |fmode, dmode| [Security::MappedXattr { fmode, dmode }, Security::MappedFile { fmode, dmode }];
    for security in security(0o7664, 0o755) {
        let at = Fixture::new(Options { security, ..Options::default() });
        let (_, opened) = at.tree.create(SELF, ROOT, c"file", RDWR, 0, 0o777, false, None).unwrap();
        at.tree.release(opened.handle, None);
        at.tree.mkdir(SELF, ROOT, c"dir", 0, 0, None).unwrap();
        let mode = |name: &str| fs::metadata(at.path(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("file"), mode("dir")), (0o664, 0o755));
    }
}
