//! What stands behind a directory: the passthrough file tree that virtio-fs and 9p share.
//!
//! Nodes, open files, credentials, extended attributes and locks of a host directory, as blocking calls on the thread that
//! asks. Neither a protocol nor a virtqueue enters this room.

#[allow(dead_code)]
mod creds;
mod idmap;
#[allow(dead_code)]
mod ioctl;
#[allow(dead_code)]
mod lock;
mod xattr_map;

pub use creds::Caller;
pub use idmap::{IdMap, IdRule, IdRuleError};
pub use ioctl::FsXattr;
pub use lock::{Lock, LockKind, Wait};
pub use xattr_map::{XattrMap, XattrMapError};
