//! What a daemon may do, and what it needs.

use crate::common::is_root;
use crate::mapped::{RDWR, SOMEBODY, credentials, everywhere, mapped_file, mapped_xattr};
use passthrough::{Caller, Change, FileHandles, OpenError, Options, ROOT, Security, Source, Tree};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

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

/// The bit is the client's, and the host's file has none.
#[test]
fn a_file_with_a_set_id_bit_is_not_mapped() {
    let len = 1 << 21;
    everywhere(|at| {
        let (file, opened) = at.tree.create(SOMEBODY, ROOT, c"file", RDWR, 0o755, 0, false, None).unwrap();
        at.tree.release(opened.handle, None);
        let set = |change| at.tree.set_attributes(file.node, None, &change).unwrap();
        set(Change { size: Some(len), ..Change::default() });
        for (mode, expected) in [(0o755, Ok(())), (0o4755, Err(Errno::NODEV)), (0o2755, Err(Errno::NODEV))] {
            set(Change { mode: Some(mode), ..Change::default() });
            assert_eq!(at.tree.open_to_map(file.node, 0, len).map(drop), expected, "{mode:o}");
        }
    });
}
