//! What a guest is told and what its requests do, where no ring is needed to see it.

use super::Service;
use crate::directory::policy::Policy;
use device::fs::{Create, Extensions, Fallocate, InHeader, Mkdir, Mknod, ReadDir, Rename, Request, Symlink, Write};
use passthrough::{Options, ROOT, Source, Tree};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use values::CachePolicy;

fn served(options: Options, policy: Policy) -> (Service, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "text").unwrap();
    let tree = Tree::new(Source::Path(directory.path().to_owned()), options).unwrap();
    (Service::new(Arc::new(tree), policy), directory)
}

/// A guest that leaves set-id bits to the server does not forget those it knows when a write takes them, and would execute
/// the file with them.
#[test]
fn set_id_bits_are_not_believed() {
    for cache in [CachePolicy::Auto, CachePolicy::Metadata, CachePolicy::Always] {
        let policy = Policy::new(cache);
        let usual = policy.attr_timeout;
        let (service, directory) = served(Options::default(), policy);
        let set = |mode| {
            let path = directory.path().join("file");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let entry = || {
            let entry = service.tree.lookup(passthrough::ROOT, c"file").unwrap();
            (service.entry_out(&entry), entry)
        };
        for mode in [0o4755, 0o2755, 0o2644] {
            set(mode);
            let (told, entry) = entry();
            assert_eq!(told.attr_valid, Duration::ZERO, "{mode:o} under {cache:?}");
            assert_eq!(told.entry_valid, usual, "the name may be believed");
            let mut reply = Vec::new();
            service.get_attributes(entry.node, None, &mut reply).unwrap();
            assert_eq!(reply[..12], [0; 12], "seconds and nanoseconds of fuse_attr_out");
        }
        set(0o755);
        assert_eq!(entry().0.attr_valid, usual);
        let root = service.tree.attributes(passthrough::ROOT, None).unwrap();
        let shared = passthrough::Attributes { mode: libc::S_IFDIR | 0o2775, ..root };
        assert_eq!(service.believed(&shared), usual, "a directory's bit is no power");
    }
}

/// A write that goes by `io_uring` changes the file as one by a call does.
#[test]
fn a_mapped_capability_goes_before_a_write_by_io_uring() {
    let options = Options { xattr: true, xattr_map: ":map::user.virtiofs.:".parse().unwrap(), ..Options::default() };
    let (service, _directory) = served(options, Policy::new(CachePolicy::Never));
    let node = service.tree.lookup(passthrough::ROOT, c"file").unwrap().node;
    let fh = service.tree.open(node, libc::O_RDWR, false).unwrap().handle;
    let header = InHeader { nodeid: node, ..InHeader::default() };
    let write = Write { fh, offset: 0, size: 1, write_flags: 0, lock_owner: None, flags: libc::O_RDWR };
    let has = || service.tree.get_xattr(node, c"security.capability", &mut Vec::new(), 0) != Err(Errno::NODATA);
    service.tree.set_xattr(node, c"security.capability", &[0; 20], 0, false).unwrap();
    assert!(has());
    assert!(service.file_for_uring(&header, &Request::Write(write)).is_some());
    assert!(!has());
}

fn header(nodeid: u64) -> InHeader {
    InHeader { nodeid, ..InHeader::default() }
}

/// What is in the directory and what it is known by: a directory, two small files and a large one.
fn nodes(service: &Service, directory: &tempfile::TempDir) -> [u64; 4] {
    std::fs::create_dir(directory.path().join("directory")).unwrap();
    std::fs::write(directory.path().join("other"), "text").unwrap();
    std::fs::write(directory.path().join("large"), vec![1; 1 << 20]).unwrap();
    [c"directory", c"file", c"other", c"large"].map(|name| service.tree.lookup(ROOT, name).unwrap().node)
}

fn rename(name: &'static CStr, new_nodeid: u64, new_name: &'static CStr) -> Request<'static> {
    Request::Rename(Rename { name, new_nodeid, new_name, flags: 0 })
}

#[test]
fn names_that_take_their_time_leave_the_worker() {
    let (service, host) = served(Options::default(), Policy::new(CachePolicy::Never));
    let [directory, ..] = nodes(&service, &host);
    let long = |request| service.is_long(&header(ROOT), &request);
    assert!(long(Request::Rmdir { name: c"directory" }) && long(Request::Unlink { name: c"large" }));
    assert!(!long(Request::Unlink { name: c"file" }) && !long(rename(c"large", ROOT, c"new")));
    assert!(long(rename(c"file", ROOT, c"large")) && long(rename(c"large", ROOT, c"file")));
    assert!(long(rename(c"file", directory, c"new")) && !long(rename(c"file", ROOT, c"other")));
}

#[test]
fn what_has_the_locks_of_directories_keeps_names_off_the_worker() {
    let (service, host) = served(Options::default(), Policy::new(CachePolicy::Never));
    let [directory, file, other, large] = nodes(&service, &host);
    let fh = service.tree.open_dir(ROOT).unwrap().handle;
    let extensions = Extensions::default();
    let listing = ReadDir { fh, offset: 0, size: 4096 };
    let names = [
        Request::Lookup { name: c"new" },
        Request::Mkdir(Mkdir { name: c"new", mode: 0o755, umask: 0, extensions }),
        Request::Mknod(Mknod { name: c"new", mode: 0, umask: 0, rdev: (0, 0), extensions }),
        Request::Symlink(Symlink { name: c"new", target: c"file", extensions }),
        Request::Create(Create { name: c"new", flags: 0, mode: 0, umask: 0, kill_suidgid: false, extensions }),
        Request::Link { nodeid: large, name: c"new" },
        Request::Unlink { name: c"new" },
        rename(c"large", ROOT, c"new"),
        Request::ReadDir(listing),
        Request::ReadDirPlus(listing),
    ];
    let changing: [(_, _, &[_]); 4] = [
        (ROOT, Request::Rmdir { name: c"directory" }, &[ROOT, directory]),
        (ROOT, rename(c"file", ROOT, c"other"), &[ROOT, file, other]),
        (ROOT, rename(c"file", directory, c"new"), &[ROOT, file, directory]),
        // It waits for the file before it has the lock of a directory.
        (ROOT, Request::Link { nodeid: file, name: c"new" }, &[file]),
    ];
    for (node, request, nodes) in changing {
        assert!(names.iter().all(|name| !service.is_long(&header(ROOT), name)));
        let changes = service.changes(&header(node), &request).unwrap();
        for changed in [ROOT, directory, file, other] {
            assert_eq!(service.tree.is_changing(changed), nodes.contains(&changed), "{changed} by {request:?}");
        }
        for name in &names {
            let is_listing = matches!(name, Request::ReadDir(_) | Request::ReadDirPlus(_));
            // A listing is of what was opened, whatever node is named with it.
            let header = header(if is_listing { large } else { node });
            assert_eq!(service.is_long(&header, name), nodes.contains(&ROOT), "{name:?} by {request:?}");
        }
        drop(changes);
    }
    // As this does, for the name that goes.
    assert!(service.changes(&header(ROOT), &Request::Unlink { name: c"large" }).is_none());
}

/// The file is that of the handle.
#[test]
fn a_guest_that_names_another_node_waits_for_nothing_on_the_worker() {
    let (service, host) = served(Options::default(), Policy::new(CachePolicy::Never));
    let [directory, file, other, _] = nodes(&service, &host);
    let fh = service.tree.open(file, libc::O_RDWR, false).unwrap().handle;
    let changes =
        service.changes(&header(other), &Request::Fallocate(Fallocate { fh, offset: 0, len: 1, mode: 0 })).unwrap();
    assert!(service.tree.is_changing(file) && !service.tree.is_changing(other));
    let write = Write { fh, offset: 0, size: 1, write_flags: 0, lock_owner: None, flags: libc::O_RDWR };
    assert!(service.is_long(&header(directory), &Request::Write(write)));
    drop(changes);
    assert!(!service.is_long(&header(directory), &Request::Write(write)));
}

/// The file knows how it was opened.
#[test]
fn what_waits_for_the_disk_leaves_the_worker_whatever_a_guest_says() {
    let (service, _host) =
        served(Options { allow_direct_io: true, ..Options::default() }, Policy::new(CachePolicy::Never));
    let node = service.tree.lookup(ROOT, c"file").unwrap().node;
    let open = |flags| service.tree.open(node, libc::O_RDWR | flags, false).unwrap().handle;
    let write = |fh, flags| Write { fh, offset: 0, size: 1, write_flags: 0, lock_owner: None, flags };
    let long = |fh, flags| service.is_long(&header(node), &Request::Write(write(fh, flags)));
    assert!(!long(open(0), libc::O_SYNC | libc::O_APPEND) && !long(open(libc::O_APPEND), 0));
    for flags in [libc::O_SYNC, libc::O_DSYNC, libc::O_SYNC | libc::O_APPEND] {
        assert!(long(open(flags), 0), "{flags:o}");
    }
    let by_uring = |fh| service.file_for_uring(&header(node), &Request::Write(write(fh, 0))).is_some();
    assert!(by_uring(open(0)) && by_uring(open(libc::O_SYNC)) && !by_uring(open(libc::O_APPEND)));
    // What is appended comes behind what was left to threads before.
    let appended = open(libc::O_APPEND);
    let file = service.appends(&Request::Write(write(appended, 0))).unwrap();
    let append = file.append_in_line(|append| append);
    assert!(long(appended, 0) && !long(open(libc::O_APPEND), 0));
    drop(append);
    assert!(!long(appended, 0) && service.appends(&Request::Write(write(open(0), 0))).is_none());
}
