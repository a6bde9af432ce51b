//! Open files and their data.

use crate::common::{Fixture, SELF, everywhere};
use crate::operations::{RDWR, xattr};
use passthrough::{Change, Options, ROOT, Whence};
use rustix::io::Errno;
use std::fs;

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
        assert_eq!(at.tree.seek(from.handle, u64::MAX, Whence::Data), Err(Errno::NXIO));
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
