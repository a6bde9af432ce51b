//! Mapped security models: what is on disk, what is hidden, and what happens to records without a usual life.

mod hidden;
mod lives;
mod power;
mod records;

use crate::common::Fixture;
use passthrough::{Attributes, Caller, Options, Security};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
        crate::common::everywhere(&options, |at| {
            println!("{:?}", options.security);
            test(at);
        });
    }
}

fn only(options: &Options, test: impl Fn(&Fixture)) {
    crate::common::everywhere(options, test);
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
