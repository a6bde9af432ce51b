//! Extended attributes.

use crate::common::{Fixture, SELF, everywhere, is_root};
use crate::operations::{RDWR, xattr};
use passthrough::{Options, ROOT, SecurityContext};
use rustix::io::Errno;

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
