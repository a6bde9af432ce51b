//! What is out of a client's reach.

use crate::common::SELF;
use crate::mapped::{RDWR, SOMEBODY, everywhere, mapped_file, mapped_xattr, only, xattr};
use passthrough::{Change, Options, ROOT, Security};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;

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
        let label = Some(passthrough::SecurityContext { name: c"user.virtfs.uid", value: &[0; 4] });
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
