//! What a guest is told and what its requests do, where no ring is needed to see it.

use super::Service;
use crate::directory::policy::Policy;
use device::fs::{InHeader, Request, Write};
use passthrough::{Options, Source, Tree};
use rustix::io::Errno;
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
