//! What stands behind a directory: the passthrough file tree that virtio-fs and 9p share.
//!
//! Nodes, open files, credentials, extended attributes and locks of a host directory, as blocking calls on the thread that
//! asks. Neither a protocol nor a virtqueue enters this room.

mod attributes;
#[allow(dead_code)]
mod creds;
mod error;
mod idmap;
#[allow(dead_code)]
mod ioctl;
#[allow(dead_code)]
mod lock;
mod options;
mod tree;
mod xattr_map;

pub use attributes::{Attributes, Change, SetTime, Time};
pub use creds::Caller;
pub use error::{OpenError, Result};
pub use idmap::{IdMap, IdRule, IdRuleError};
pub use ioctl::FsXattr;
pub use lock::{Lock, LockKind, Wait};
pub use options::{FileHandles, Options, Source};
pub use tree::{Description, DirEntry, Entry, Handle, Node, OpenFile, Opened, ROOT, SecurityContext, Tree, Whence};
pub use xattr_map::{XattrMap, XattrMapError};
