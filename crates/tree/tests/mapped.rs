//! Mapped security models: what is on disk, what is hidden, and what happens to records without a usual life.

mod common;

use common::{Fixture, SELF, c, is_root};
use rustix::fs::{CWD, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tree::{Attributes, Caller, Change, FileHandles, Node, OpenError, Options, ROOT, Security, Source, Tree};

const RDWR: i32 = libc::O_RDWR;
const SOMEBODY: Caller<'static> = Caller { uid: 1000, gid: 100, groups: &[] };

fn mapped_xattr() -> Options {
    Options { security: Security::MappedXattr { fmode: 0o600, dmode: 0o700 }, xattr: true, ..Options::default() }
}

fn mapped_file() -> Options {
    Options { security: Security::MappedFile { fmode: 0o600, dmode: 0o700 }, xattr: true, ..Options::default() }
}

/// Both models, with both ways of holding nodes, on both file systems.
fn everywhere(test: impl Fn(&Fixture)) {
    for options in [mapped_xattr(), mapped_file()] {
        common::everywhere(&options, |at| {
            println!("{:?}", options.security);
            test(at);
        });
    }
}

fn only(options: &Options, test: impl Fn(&Fixture)) {
    common::everywhere(options, test);
}

fn is_file_model(at: &Fixture) -> bool {
    matches!(at.tree.describe().options.security, Security::MappedFile { .. })
}

/// Type and permissions, owner and group, device.
fn credentials(attributes: &Attributes) -> (u32, u32, u32, (u32, u32)) {
    (attributes.mode, attributes.uid, attributes.gid, attributes.rdev)
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(length) => Some(value[..length].to_vec()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{path:?} {name}: {error}"),
    }
}

/// The record of a name in the root, as it should be and as it is on disk.
fn expect_record(at: &Fixture, name: &str, uid: u32, gid: u32, mode: Option<u32>, rdev: Option<u32>) {
    let path = at.path(name);
    if is_file_model(at) {
        let mut text = format!("virtfs.uid={uid}\nvirtfs.gid={gid}\n");
        if let Some(mode) = mode {
            text += &format!("virtfs.mode={mode}\n");
        }
        if let Some(rdev) = rdev {
            text += &format!("virtfs.rdev={rdev}\n");
        }
        let metadata = path.parent().unwrap().join(".virtfs_metadata").join(path.file_name().unwrap());
        assert_eq!(fs::read_to_string(&metadata).unwrap(), text, "{name}");
        assert_eq!(fs::metadata(&metadata).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(metadata.parent().unwrap()).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(xattr(&path, "user.virtfs.uid"), None);
    } else {
        assert_eq!(xattr(&path, "user.virtfs.uid"), Some(uid.to_le_bytes().to_vec()), "{name}");
        assert_eq!(xattr(&path, "user.virtfs.gid"), Some(gid.to_le_bytes().to_vec()), "{name}");
        assert_eq!(xattr(&path, "user.virtfs.mode"), mode.map(|mode| mode.to_le_bytes().to_vec()), "{name}");
        let rdev = rdev.map(|rdev| u64::from(rdev).to_le_bytes().to_vec());
        assert_eq!(xattr(&path, "user.virtfs.rdev"), rdev, "{name}");
        assert!(!at.path(".virtfs_metadata").exists());
    }
    let host = fs::symlink_metadata(&path).unwrap();
    let expected = if host.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(host.mode() & 0o7777, expected, "{name}");
    assert_eq!(host.uid(), rustix::process::geteuid().as_raw());
}

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
fn names_of_records_are_out_of_reach() {
    only(&mapped_file(), |at| {
        let tree = &at.tree;
        let dir = tree.mkdir(SOMEBODY, ROOT, c"dir", 0o755, 0, None).unwrap().node;
        tree.mknod(SOMEBODY, dir, c"file", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap();
        let change = Change { mode: Some(0o755), ..Change::default() };
        tree.set_attributes(ROOT, None, &change).unwrap();
        let file = tree.lookup(dir, c"file").unwrap().node;
        for parent in [ROOT, dir] {
            for name in [c".virtfs_metadata", c".virtfs_metadata_root"] {
                assert_eq!(tree.lookup(parent, name).err(), Some(Errno::NOENT));
                let open = tree.open_dir(parent).unwrap().handle;
                assert_eq!(tree.read_dir_entry(open, name).err(), Some(Errno::NOENT));
                tree.release_dir(open);
                assert_eq!(tree.unlink(parent, name), Err(Errno::NOENT));
                assert_eq!(tree.rmdir(parent, name), Err(Errno::NOENT));
                for flags in [0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE] {
                    assert_eq!(tree.rename(parent, name, ROOT, c"mine", flags), Err(Errno::NOENT));
                    assert_eq!(tree.rename(dir, c"file", parent, name, flags), Err(Errno::INVAL));
                }
                let invalid = Some(Errno::INVAL);
                assert_eq!(tree.mkdir(SELF, parent, name, 0o700, 0, None).err(), invalid);
                assert_eq!(tree.mknod(SELF, parent, name, libc::S_IFREG, (0, 0), 0, None).err(), invalid);
                assert_eq!(tree.symlink(SELF, parent, name, c"target", None).err(), invalid);
                assert_eq!(tree.link(file, parent, name).err(), invalid);
                for flags in [RDWR, RDWR | libc::O_EXCL, libc::O_RDONLY] {
                    assert_eq!(tree.create(SELF, parent, name, flags, 0o600, 0, false, None).err(), invalid);
                }
            }
        }
        assert_eq!(at.names(ROOT), ["dir"]);
        assert_eq!(at.names(dir), ["file"]);
        let whiteout = tree.rename(dir, c"file", dir, c"other", libc::RENAME_WHITEOUT);
        assert_eq!(whiteout, Err(Errno::INVAL));
        // With it the names above would have other spellings.
        let open = tree.open_dir(dir).unwrap().handle;
        assert_eq!(tree.set_flags(open, 0x4000_0000), Err(Errno::OPNOTSUPP));
        // A name that only looks alike.
        tree.mkdir(SELF, dir, c".virtfs_metadata_", 0o700, 0, None).unwrap();
        assert_eq!(at.names(dir), [".virtfs_metadata_", "file"]);
    });
    only(&mapped_xattr(), |at| {
        at.tree.mkdir(SELF, ROOT, c".virtfs_metadata", 0o700, 0, None).unwrap();
        assert_eq!(at.names(ROOT), [".virtfs_metadata"]);
    });
}

#[test]
fn another_name_of_a_record_is_no_way_to_it() {
    only(&mapped_file(), |at| {
        let tree = &at.tree;
        let file = tree.mknod(SOMEBODY, ROOT, c"file", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap().node;
        let change = Change { mode: Some(0o755), ..Change::default() };
        tree.set_attributes(ROOT, None, &change).unwrap();
        // As on a file system to which two names are one.
        fs::hard_link(at.path(".virtfs_metadata_root"), at.path("alias")).unwrap();
        assert_eq!(tree.lookup(ROOT, c"alias").err(), Some(Errno::NOENT));
        assert_eq!(tree.unlink(ROOT, c"alias"), Err(Errno::NOENT));
        assert_eq!(tree.rename(ROOT, c"alias", ROOT, c"mine", 0), Err(Errno::NOENT));
        assert_eq!(tree.rename(ROOT, c"file", ROOT, c"alias", 0), Err(Errno::INVAL));
        let made = tree.create(SELF, ROOT, c"alias", RDWR, 0o600, 0, false, None);
        assert_eq!(made.err(), Some(Errno::EXIST));
        assert_eq!(tree.link(file, ROOT, c"alias").err(), Some(Errno::EXIST));
        assert_eq!(at.lookup("file").attributes.uid, 1000);
    });
}

#[test]
fn attributes_of_records_are_out_of_reach() {
    everywhere(|at| {
        let tree = &at.tree;
        let node = tree.mknod(SOMEBODY, ROOT, c"file", libc::S_IFREG | 0o4755, (0, 0), 0, None).unwrap().node;
        tree.set_xattr(node, c"user.mine", b"1", 0, false).unwrap();
        let mut out = Vec::new();
        for name in
            [c"user.virtfs.uid", c"user.virtfs.mode", c"user.virtfs.else", c"user.virtfs.system.posix_acl_access"]
        {
            assert_eq!(tree.get_xattr(node, name, &mut out, 64), Err(Errno::NODATA));
            assert_eq!(tree.set_xattr(node, name, &[0; 4], 0, false), Err(Errno::ACCESS));
            assert_eq!(tree.remove_xattr(node, name), Err(Errno::ACCESS));
        }
        for name in [c"security.capability", c"trusted.a", c"system.posix_acl_access"] {
            assert_eq!(tree.set_xattr(node, name, &[0; 4], 0, false), Err(Errno::OPNOTSUPP));
        }
        let length = tree.list_xattr(node, &mut out, 1000).unwrap();
        assert_eq!((length, out.as_slice()), (10, &b"user.mine\0"[..]));
        assert_eq!(tree.list_xattr(node, &mut out, 0), Ok(10));
        assert_eq!(tree.list_xattr(node, &mut out, 9), Err(Errno::RANGE));
        let label = Some(tree::SecurityContext { name: c"user.virtfs.uid", value: &[0; 4] });
        assert_eq!(tree.mkdir(SOMEBODY, ROOT, c"dir", 0o700, 0, label).err(), Some(Errno::ACCESS));
        assert!(!at.path("dir").exists());
        assert_eq!(tree.lookup(ROOT, c"file").unwrap().attributes.uid, 1000);
    });
}

#[test]
fn access_control_lists_are_kept_for_the_client() {
    // Version 2, and the three entries that a mode has.
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    only(&Options { posix_acl: true, ..mapped_xattr() }, |at| {
        let tree = &at.tree;
        let node = tree.mkdir(SOMEBODY, ROOT, c"dir", 0o755, 0, None).unwrap().node;
        let mut out = Vec::new();
        for name in [c"system.posix_acl_access", c"system.posix_acl_default"] {
            assert_eq!(tree.get_xattr(node, name, &mut out, 64), Err(Errno::NODATA));
            // As the kernel answers it.
            assert_eq!(tree.remove_xattr(node, name), Ok(()));
            tree.set_xattr(node, name, acl, 0, false).unwrap();
            assert_eq!(tree.get_xattr(node, name, &mut out, 64), Ok(acl.len()));
            assert_eq!(out, acl);
            let host = format!("user.virtfs.{}", name.to_str().unwrap());
            assert_eq!(xattr(&at.path("dir"), &host), Some(acl.to_vec()));
        }
        assert_eq!(fs::metadata(at.path("dir")).unwrap().mode() & 0o777, 0o700);
        tree.list_xattr(node, &mut out, 1000).unwrap();
        let mut names: Vec<_> = out.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"system.posix_acl_access"[..], b"system.posix_acl_default"]);
        tree.remove_xattr(node, c"system.posix_acl_access").unwrap();
        assert_eq!(xattr(&at.path("dir"), "user.virtfs.system.posix_acl_access"), None);
    });
    only(&Options { posix_acl: true, xattr: true, security: Security::None, ..Options::default() }, |at| {
        let node = at.tree.mkdir(SELF, ROOT, c"dir", 0o755, 0, None).unwrap().node;
        let name = c"system.posix_acl_default";
        assert_eq!(at.tree.set_xattr(node, name, acl, 0, false), Err(Errno::OPNOTSUPP));
        assert_eq!(at.tree.get_xattr(node, name, &mut Vec::new(), 64), Err(Errno::OPNOTSUPP));
    });
}

#[test]
fn what_stands_for_a_link_or_a_device_is_not_opened() {
    everywhere(|at| {
        let tree = &at.tree;
        let link = tree.symlink(SELF, ROOT, c"link", c"target", None).unwrap().node;
        let fifo = tree.mknod(SELF, ROOT, c"fifo", libc::S_IFIFO | 0o666, (0, 0), 0, None).unwrap().node;
        for (node, name, error) in [(link, c"link", Errno::LOOP), (fifo, c"fifo", Errno::NXIO)] {
            for flags in [libc::O_RDONLY, libc::O_WRONLY, RDWR | libc::O_TRUNC] {
                assert_eq!(tree.open(node, flags, false).err(), Some(error));
                assert_eq!(tree.open(node, flags, true).err(), Some(error));
            }
            assert_eq!(tree.node_file(node).err(), Some(error));
            assert_eq!(tree.open_dir(node).err(), Some(Errno::NOTDIR));
            assert_eq!(tree.create(SELF, ROOT, name, RDWR, 0o600, 0, false, None).err(), Some(error));
            let size = Change { size: Some(0), ..Change::default() };
            assert_eq!(tree.set_attributes(node, None, &size), Err(Errno::INVAL));
        }
        assert_eq!(fs::read(at.path("link")).unwrap(), b"target");
    });
}

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

/// Runs `test` on a thread that is nobody, with a directory of nobody's.
fn as_nobody(place: &Path, test: impl FnOnce(&Path) + Send) {
    let directory = tempfile::tempdir_in(place).unwrap();
    if is_root() {
        std::os::unix::fs::chown(directory.path(), Some(65_534), Some(65_534)).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if is_root() {
                // SAFETY: these calls take numbers and change the credentials of this thread alone, which ends below.
                unsafe {
                    assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresgid, 65_534, 65_534, 65_534), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534), 0);
                }
            }
            test(directory.path());
        });
    });
}

#[test]
fn a_daemon_without_power_gives_files_to_anybody() {
    for place in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        for options in [mapped_xattr(), mapped_file()] {
            as_nobody(&place, |path| {
                let options = Options { file_handles: FileHandles::Prefer, ..options };
                let tree = Tree::new(Source::Path(path.to_owned()), options).unwrap();
                assert!(!tree.describe().by_file_handles, "nobody may open them");
                let root = Caller { uid: 0, gid: 0, groups: &[5, 6] };
                let (file, opened) = tree.create(root, ROOT, c"file", RDWR, 0o4755, 0, false, None).unwrap();
                tree.release(opened.handle, None);
                assert_eq!(credentials(&file.attributes), (libc::S_IFREG | 0o4755, 0, 0, (0, 0)));
                let disk = tree.mknod(SOMEBODY, ROOT, c"disk", libc::S_IFBLK | 0o600, (8, 0), 0, None).unwrap();
                assert_eq!(credentials(&disk.attributes), (libc::S_IFBLK | 0o600, 1000, 100, (8, 0)));
                let dir = tree.mkdir(SOMEBODY, ROOT, c"dir", 0, 0, None).unwrap();
                let link = tree.symlink(root, dir.node, c"link", c"target", None).unwrap();
                assert_eq!(link.attributes.uid, 0);
                let change = Change { uid: Some(12), gid: Some(13), mode: Some(0o777), ..Change::default() };
                let after = tree.set_attributes(dir.node, None, &change).unwrap();
                assert_eq!(credentials(&after), (libc::S_IFDIR | 0o777, 12, 13, (0, 0)));
                tree.link(file.node, dir.node, c"again").unwrap();
                tree.rename(ROOT, c"disk", dir.node, c"moved", 0).unwrap();
                assert_eq!(tree.lookup(dir.node, c"moved").unwrap().attributes.rdev, (8, 0));
                for name in [c"link", c"again", c"moved"] {
                    tree.unlink(dir.node, name).unwrap();
                }
                tree.rmdir(ROOT, c"dir").unwrap();
            });
        }
    }
}

#[test]
fn with_none_a_file_that_cannot_be_given_away_is_the_daemons() {
    as_nobody(&std::env::temp_dir(), |path| {
        let own = rustix::process::geteuid().as_raw();
        let open =
            |security| Tree::new(Source::Path(path.to_owned()), Options { security, ..Options::default() }).unwrap();
        let somebody = Caller { uid: own + 1, gid: own + 1, groups: &[7] };
        let passthrough = open(Security::Passthrough);
        assert_eq!(passthrough.mkdir(somebody, ROOT, c"dir", 0o755, 0, None).err(), Some(Errno::PERM));
        let none = open(Security::None);
        let dir = none.mkdir(somebody, ROOT, c"dir", 0o755, 0, None).unwrap();
        assert_eq!((dir.attributes.uid, dir.attributes.mode), (own, libc::S_IFDIR | 0o755));
        let change = Change { uid: Some(own + 1), mode: Some(0o700), ..Change::default() };
        let after = none.set_attributes(dir.node, None, &change).unwrap();
        assert_eq!((after.uid, after.mode), (own, libc::S_IFDIR | 0o700));
        let dir = passthrough.lookup(ROOT, c"dir").unwrap().node;
        assert_eq!(passthrough.set_attributes(dir, None, &change), Err(Errno::PERM));
    });
}

#[test]
fn a_directory_that_cannot_keep_records_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let source = || Source::Path(file.path().to_owned());
    assert!(matches!(Tree::new(source(), mapped_file()), Err(OpenError::MappedFile { .. })));
    assert!(Tree::new(source(), mapped_xattr()).is_ok());
    // procfs has no extended attributes.
    let proc = || Source::Path("/proc/self/fdinfo".into());
    assert!(matches!(Tree::new(proc(), mapped_xattr()), Err(OpenError::MappedXattr { .. })));
    assert!(Tree::new(proc(), mapped_file()).is_ok());
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
