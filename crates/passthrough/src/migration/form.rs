//! What of a tree goes to another host, and its bytes: postcard's, numbers as varints. Another field or another meaning is another
//! version, which whoever moves the bytes puts in front. Nothing here is taken on trust where it is read.

use crate::stat::component;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::CString;

/// Mounts at most: a directory with more of them below has none of its files found by handles.
pub(super) const MOUNTS_MAX: usize = 4096;

/// Components of a path at most: each is one byte and a slash, and `PATH_MAX` of `linux/limits.h` is 4096.
const DEPTH_MAX: usize = 2048;

/// Least bytes of a node: one for each field, and for what it is found by.
pub(super) const NODE_BYTES_MIN: usize = 4;

/// Bytes of a name at most: `NAME_MAX` of `linux/limits.h`.
const NAME_MAX: usize = 255;

/// Bytes of a file handle at most: `MAX_HANDLE_SZ` of `linux/exportfs.h`.
pub(super) const HANDLE_MAX: usize = 128;

/// Numbers of nodes and open files are below this, so that there are always more.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// A node is not referenced more often than this: there are always more references.
pub(super) const REFERENCES_MAX: u64 = 1 << 62;

/// What comes first. Behind it come so many mounts, files, owners with their ranges, and nodes, one by one: what is said is not believed
/// before there is room made for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeadState {
    /// The security model, by its name: what a file is depends on it.
    pub(super) security: String,
    /// The client appends by itself.
    pub(super) writeback: bool,
    /// The root's own file handle, where handles are what nodes are found by or compared with.
    pub(super) root: Option<HandleState>,
    /// The next numbers.
    pub(super) next_node: u64,
    pub(super) next_handle: u64,
    /// Ways to mounts that handles are opened on.
    pub(super) mounts: usize,
    pub(super) files: usize,
    pub(super) owners: usize,
    /// The root is not among them.
    pub(super) nodes: usize,
}

/// From one directory to another, or to a file: how much of the directory before is left behind, by what is kept of its path, and the
/// names from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Way {
    /// So many components of the path before, from the root on.
    pub(super) kept: usize,
    /// With slashes between them.
    pub(super) names: Vec<u8>,
}

impl Way {
    /// # Errors
    /// `EINVAL` for names that are none, and a path that is too deep.
    pub(super) fn names(&self, depth: usize) -> Result<Vec<CString>, Errno> {
        let is_deep = self.names.len() > DEPTH_MAX * (NAME_MAX + 1) || self.kept > depth;
        let count = if self.names.is_empty() { 0 } else { 1 + self.names.iter().filter(|byte| **byte == b'/').count() };
        if is_deep || self.kept.saturating_add(count) > DEPTH_MAX {
            return Err(Errno::INVAL);
        }
        let name = |bytes: &[u8]| {
            let name = CString::new(bytes).map_err(|_| Errno::INVAL)?;
            component(&name)?;
            if bytes.len() > NAME_MAX { Err(Errno::INVAL) } else { Ok(name) }
        };
        self.names.split(|byte| *byte == b'/').take(count).map(name).collect()
    }
}

/// Type and bytes of a file handle.
pub(super) type HandleState = (i32, Vec<u8>);

/// A node that the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeState {
    pub(super) node: u64,
    pub(super) references: u64,
    /// `S_IFMT` bits.
    pub(super) kind: u32,
    pub(super) found: FoundBy,
}

/// How a node is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FoundBy {
    /// By its path, and what is found there has this handle, if there is one. Nodes are in the order of their paths.
    Path { way: Way, handle: Option<HandleState> },
    /// By its handle, on one of the mounts, which has to lead to this inode number.
    Handle { mount: u32, handle: HandleState, ino: u64 },
    /// Not at all: it has no name any more, and nobody has it open.
    Gone,
    /// Not at all, for this reason (an errno), though the client could use it where it comes from.
    Lost(i32),
}

/// A file or directory that the client has open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    pub(super) handle: u64,
    pub(super) node: u64,
    /// `O_*` of the host.
    pub(super) flags: u32,
    /// Its `flock`, and whether it is exclusive.
    pub(super) flock: Option<bool>,
}

/// An owner of POSIX locks on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnerState {
    pub(super) node: u64,
    pub(super) owner: u64,
    /// The process that took the latest lock, and the open file by which it came.
    pub(super) pid: u32,
    pub(super) handle: u64,
    /// So many ranges follow.
    pub(super) ranges: usize,
}

/// First byte, last byte, and whether it excludes readers.
pub(super) type RangeState = (u64, u64, bool);
