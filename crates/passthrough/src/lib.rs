//! What stands behind a directory: the passthrough file tree that virtio-fs and 9p share.
//!
//! Nodes, open files, credentials, extended attributes and locks of a host directory, as blocking calls on the thread that
//! asks. Neither a protocol nor a virtqueue enters this room.

mod appends;
mod attributes;
mod changing;
mod closing;
mod create;
mod creds;
mod data;
mod dir;
mod error;
mod exclusive;
mod file;
mod handle;
mod handover;
mod held;
mod idmap;
mod ioctl;
mod lock;
mod locking;
mod lookup;
mod mapped;
mod mount;
mod node;
mod options;
mod patience;
mod remove;
mod security;
mod share;
mod source;
mod stat;
mod sync;
mod table;
mod tree;
mod trim;
mod weight;
mod window;
mod xattr;
mod xattr_map;

pub use appends::Append;
pub use attributes::{Attributes, Change, SetTime, Time};
pub use changing::{Changing, Subject};
pub use closing::{serves_others, when_there_is_time};
pub use create::SecurityContext;
pub use creds::Caller;
pub use data::Whence;
pub use dir::DirEntry;
pub use error::{OpenError, Result};
pub use file::{Handle, OpenFile, Opened};
pub use handover::{AdoptError, Adopted, Descriptor, FORM, Handed, NODES_MAX, NotHandedOver};
pub use held::with_time;
pub use idmap::{IdMap, IdRule, IdRuleError};
pub use ioctl::FsXattr;
pub use lock::{Lock, LockKind, Wait};
pub use lookup::Entry;
pub use options::{FileHandles, Options, Source};
pub use patience::without_waiting;
pub use security::Security;
pub use tree::{Capacity, Description, Node, ROOT, Tree};
pub use weight::FEW_OWNERS;
pub use xattr_map::{XattrMap, XattrMapError};
