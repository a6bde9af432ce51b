//! What stands behind a directory: the passthrough file tree that virtio-fs and 9p share.
//!
//! Nodes, open files, credentials, extended attributes and locks of a host directory, as blocking calls on the thread that
//! asks. Neither a protocol nor a virtqueue enters this room.
//!
//! A file uses those in rows above its own and beside it; what passes a part of a tree on knows `handover::{form, descriptors, error}` as
//! well, which know no tree.
//!
//! | file | concern |
//! |---|---|
//! | `ids`, `attributes`, `error`, `options`, `security`, `idmap`, `xattr_map` | words: what clients and owners of a tree say |
//! | `stat`, `handle`, `xattr`, `ioctl`, `creds`, `patience` | calls on the host's inodes, and as whom and how patiently they are made |
//! | `share`, `sync`, `trim` | descriptors and memory, counted |
//! | `lock`, `closing` | locks of the kernel, and descriptors whose close takes long |
//! | `mount`, `dir`, `window`, `file`, `appends` | what is open |
//! | `node`, `table` | what the client knows |
//! | `changing`, `held` | what long calls change and remove |
//! | `mapped` | records of owners, permissions and types, and where they are kept |
//! | `source`, `tree` | all of these for one directory |
//! | `operations` | what a client may ask of a tree |
//! | `handover` | a tree goes on in another program |
//! | `migration` | a tree goes on another host |

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod appends;
mod attributes;
mod changing;
mod closer;
mod closing;
mod creds;
mod dir;
mod error;
mod file;
mod handle;
mod handover;
mod held;
mod idmap;
mod ids;
mod ioctl;
mod lock;
mod mapped;
mod migration;
mod mount;
mod node;
mod operations;
mod options;
mod patience;
mod security;
mod share;
mod source;
mod stat;
mod sync;
mod table;
mod tree;
mod trim;
mod window;
mod xattr;
mod xattr_map;

pub use appends::Append;
pub use attributes::{Attributes, Change, Entry, SetTime, Time};
pub use changing::{Changing, Subject};
pub use closer::closing;
pub use closing::serves_others;
pub use creds::Caller;
pub use dir::DirEntry;
pub use error::{OpenError, Result};
pub use file::{OpenFile, Opened};
pub use handover::{AdoptError, Adopted, Descriptor, FORM, Handed, NODES_MAX, NotHandedOver};
pub use held::with_time;
pub use idmap::{IdMap, IdRule, IdRuleError};
pub use ids::{Handle, Node, ROOT};
pub use ioctl::FsXattr;
pub use lock::{Lock, LockKind, Wait};
pub use migration::{LetGo, LoadError, Loaded, NotTaken, SaveError, Saved};
pub use operations::{DAX_MARK, FEW_OWNERS, FileToMap, InShare, Whence};
pub use options::{FileHandles, Migration, MigrationMode, MigrationOnError, Options, Source};
pub use patience::without_waiting;
pub use security::Security;
pub use tree::{Capacity, Description, Tree};
pub use xattr::SecurityContext;
pub use xattr_map::{XattrMap, XattrMapError};
