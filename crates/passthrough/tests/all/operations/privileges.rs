//! What a change of a file takes away: mapped capabilities, set-id bits, and locks with the handle they came by.

use crate::common::{Fixture, SELF, everywhere, is_root};
use crate::operations::{RDWR, xattr};
use passthrough::{Caller, Change, Lock, LockKind, Options, ROOT, Security, SecurityContext, Whence};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// A value of the right form: `CAP_NET_RAW`, permitted and effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// CVE-2021-20263: the kernel drops `security.capability` with every change, and knows nothing of the name it is mapped to.
#[test]
fn a_mapped_capability_goes_as_the_kernels_own_would() {
    for rules in [":map::user.virtiofs.:", ":map:security.:user.vm.:"] {
        let options = Options { xattr_map: rules.parse().unwrap(), ..xattr() };
        everywhere(&options, |at| {
            at.write("file", "0123456789");
            at.write("source", "0123456789");
            let node = at.node("file");
            let handle = at.tree.open(node, RDWR, false).unwrap().handle;
            let source = at.tree.open(at.node("source"), RDWR, false).unwrap().handle;
            let file = at.tree.file(handle).unwrap();
            let has = || {
                let mut value = Vec::new();
                at.tree.get_xattr(node, c"security.capability", &mut value, 100) != Err(Errno::NODATA)
            };
            let goes = |what: &str, change: &dyn Fn()| {
                at.tree.set_xattr(node, c"security.capability", &CAPABILITY, 0, false).unwrap();
                assert!(has());
                change();
                assert!(!has(), "{what} under {rules}");
            };
            let set = |change: Change| {
                at.tree.set_attributes(node, None, &change).unwrap();
            };
            goes("a truncation", &|| set(Change { size: Some(5), ..Change::default() }));
            goes("a truncation of a user", &|| {
                set(Change { size: Some(4), kill_suid_sgid: true, ..Change::default() });
            });
            let own = Some(rustix::process::geteuid().as_raw());
            goes("a new owner", &|| set(Change { uid: own, ..Change::default() }));
            goes("O_TRUNC", &|| {
                let opened = at.tree.open(node, RDWR | libc::O_TRUNC, false).unwrap();
                at.tree.release(opened.handle, None);
            });
            goes("O_TRUNC by name", &|| {
                let flags = RDWR | libc::O_TRUNC;
                let (_, opened) = at.tree.create(SELF, ROOT, c"file", flags, 0o600, 0, true, None).unwrap();
                at.tree.release(opened.handle, None);
            });
            goes("an allocation", &|| at.tree.fallocate(handle, 0, 0, 100).unwrap());
            goes("a copy", &|| assert_eq!(at.tree.copy_range(source, 0, handle, 0, 5, 0), Ok(5)));
            goes("a write", &|| at.tree.before_write(&file).unwrap());
            // What changes nothing of the data or the owner leaves it.
            at.tree.set_xattr(node, c"security.capability", &CAPABILITY, 0, false).unwrap();
            set(Change { mode: Some(0o755), ..Change::default() });
            at.tree.sync_file(handle, false).unwrap();
            assert!(has());
        });
    }
}

/// Nobody is told of what is written to a mapping.
#[test]
fn a_file_with_powers_is_not_mapped() {
    let len = 1 << 21;
    let renamed = Options { xattr_map: ":map::user.virtiofs.:".parse().unwrap(), ..xattr() };
    for options in [Options::default(), xattr(), renamed] {
        everywhere(&options, |at| {
            let file = at.path("file");
            fs::File::create(&file).unwrap().set_len(len).unwrap();
            let node = at.node("file");
            let is_mapped = || {
                let opened = at.tree.open_to_map(node, 0, len);
                assert_eq!(at.tree.can_be_mapped(node, false), opened.is_ok());
                opened.map(drop)
            };
            assert_eq!(is_mapped(), Ok(()));
            if is_root() {
                // The host's, whatever the client calls it.
                let name = c"security.capability";
                rustix::fs::setxattr(&file, name, &CAPABILITY, rustix::fs::XattrFlags::empty()).unwrap();
                assert_eq!(is_mapped(), Err(Errno::NODEV));
                rustix::fs::removexattr(&file, name).unwrap();
            }
            for (mode, expected) in [(0o4755, Err(Errno::NODEV)), (0o2755, Err(Errno::NODEV)), (0o755, Ok(()))] {
                fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
                assert_eq!(at.tree.open_to_map(node, 0, len).map(drop), expected, "{mode:o}");
            }
        });
    }
}

/// Without the right of the group to execute the bit is no power, and stays (`FUSE_HANDLE_KILLPRIV_V2` in linux/fuse.h).
#[test]
fn a_set_group_id_bit_without_execution_stays() {
    everywhere(&Options::default(), |at| {
        let mode = || fs::metadata(at.path("file")).unwrap().mode() & 0o7777;
        at.write("file", "text");
        let node = at.node("file");
        if is_root() {
            at.tree.set_attributes(node, None, &Change { gid: Some(4321), ..Change::default() }).unwrap();
        }
        let set = |mode| {
            at.tree.set_attributes(node, None, &Change { mode: Some(mode), ..Change::default() }).unwrap();
        };
        set(0o6745);
        let cut = Change { size: Some(1), kill_suid_sgid: true, ..Change::default() };
        at.tree.set_attributes(node, None, &cut).unwrap();
        assert_eq!(mode(), 0o2745, "truncated");
        set(0o6745);
        let opened = at.tree.open(node, RDWR | libc::O_TRUNC, true).unwrap();
        assert_eq!(mode(), 0o2745, "opened");
        set(0o6745);
        let file = at.tree.file(opened.handle).unwrap();
        at.tree.killing_privileges(&file, || rustix::io::pwrite(&*file, b"x", 0)).unwrap();
        assert_eq!(mode(), 0o2745, "written");
        set(0o6755);
        at.tree.killing_privileges(&file, || rustix::io::pwrite(&*file, b"x", 0)).unwrap();
        assert_eq!(mode(), 0o755, "with execution it goes");
        if is_root() {
            set(0o6745);
            at.tree.set_attributes(node, None, &Change { uid: Some(12), ..Change::default() }).unwrap();
            assert_eq!(mode(), 0o2745, "given away");
            // The thread is the daemon again.
            let who = Caller { uid: 0, gid: 0, groups: &[] };
            let made = at.tree.mkdir(who, ROOT, c"dir", 0o700, 0, None).unwrap();
            assert_eq!(made.attributes.gid, 0);
        }
    });
}

/// An OFD lock goes with its open file: the client tells of the release alone, never of an unlock or a flush.
#[test]
fn a_release_drops_the_locks_that_came_by_the_handle() {
    let at = Fixture::new(Options::default());
    at.write("file", "text");
    let node = at.node("file");
    let open = || at.tree.open(node, RDWR, false).unwrap().handle;
    let all = Lock { kind: LockKind::Write, start: 0, end: i64::MAX as u64, pid: 1 };
    let (first, second) = (open(), open());
    at.tree.set_lock(node, first, 100, all).unwrap();
    assert_eq!(at.tree.set_lock(node, second, 200, all), Err(Errno::AGAIN));
    at.tree.release(first, None);
    at.tree.set_lock(node, second, 200, all).unwrap();
    // A process that closes one file and locks by another keeps what it took since.
    let third = open();
    at.tree.flush(node, second, 200).unwrap();
    at.tree.set_lock(node, third, 200, all).unwrap();
    at.tree.release(second, None);
    assert!(at.tree.has_locks(node, 200));
    at.tree.release(third, None);
    assert_eq!(at.tree.describe().lock_owners, 0);
}

#[test]
fn nothing_is_found_before_the_beginning() {
    let at = Fixture::new(Options::default());
    at.write("file", "text");
    let handle = at.tree.open(at.node("file"), RDWR, false).unwrap().handle;
    for whence in [Whence::Data, Whence::Hole] {
        assert_eq!(at.tree.seek(handle, (-1_i64).cast_unsigned(), whence), Err(Errno::NXIO));
    }
}

/// What a client makes or changes gives nobody on the host, or on another client, rights that he does not have.
#[test]
fn no_file_is_given_rights_where_there_may_be_none() {
    let mapped = Security::MappedXattr { fmode: Security::FMODE, dmode: Security::DMODE };
    for security in [Security::None, mapped] {
        let options = Options { nosuid: true, nodev: true, security, ..xattr() };
        everywhere(&options, |at| {
            let permissions = |mode: u32| mode & 0o7777;
            let (made, opened) = at.tree.create(SELF, ROOT, c"made", RDWR, 0o6755, 0, false, None).unwrap();
            assert_eq!(permissions(made.attributes.mode), 0o755);
            let node = made.node;
            for handle in [None, Some(opened.handle)] {
                let change = Change { mode: Some(0o7777), ..Change::default() };
                let changed = at.tree.set_attributes(node, handle, &change).unwrap();
                assert_eq!(permissions(changed.mode), 0o1777);
            }
            let (unnamed, _) = at.tree.tmpfile(SELF, ROOT, RDWR, 0o4711, 0, None).unwrap();
            assert_eq!(permissions(unnamed.attributes.mode), 0o711);
            let regular = at.tree.mknod(SELF, ROOT, c"regular", libc::S_IFREG | 0o2755, (0, 0), 0, None).unwrap();
            assert_eq!(permissions(regular.attributes.mode), 0o755);

            // Of a directory the bit says whose group is handed down.
            let dir = at.tree.mkdir(SELF, ROOT, c"dir", 0o755, 0, None).unwrap();
            let change = Change { mode: Some(0o2755), ..Change::default() };
            let changed = at.tree.set_attributes(dir.node, None, &change).unwrap();
            assert_eq!(permissions(changed.mode), 0o2755);

            // Beneath a mapped model there are none, whatever is asked for.
            let refused = if security == mapped { Errno::OPNOTSUPP } else { Errno::PERM };
            let set = at.tree.set_xattr(node, c"security.capability", &CAPABILITY, 0, false);
            assert_eq!(set, Err(refused));
            let label = Some(SecurityContext { name: c"security.capability", value: &CAPABILITY });
            let labelled = at.tree.create(SELF, ROOT, c"labelled", RDWR, 0o755, 0, false, label);
            assert_eq!(labelled.map(|_| ()), Err(refused));

            for (kind, rdev) in [(libc::S_IFCHR, (1, 3)), (libc::S_IFBLK, (8, 0)), (libc::S_IFBLK, (0, 0))] {
                let device = at.tree.mknod(SELF, ROOT, c"device", kind | 0o666, rdev, 0, None);
                assert_eq!(device.map(|_| ()), Err(Errno::PERM));
            }
            at.tree.mknod(SELF, ROOT, c"whiteout", libc::S_IFCHR, (0, 0), 0, None).unwrap();
            at.tree.mknod(SELF, ROOT, c"pipe", libc::S_IFIFO | 0o600, (0, 0), 0, None).unwrap();
        });
    }
}
