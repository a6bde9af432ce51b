//! Attributes, owners and permissions.

use crate::common::{Fixture, SELF, everywhere, is_root};
use crate::operations::{RDWR, kind, xattr};
use passthrough::{Caller, Change, IdMap, Options, ROOT, SetTime, Time};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
