//! What of a tree goes to another host, and its bytes: postcard's, numbers as varints. Another field or another meaning is another
//! version, which whoever moves the bytes puts in front. Nothing here is taken on trust where it is read.

use crate::stat::component;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::CString;

/// Components of a path at most: each is one byte and a slash, and `PATH_MAX` of `linux/limits.h` is 4096.
const DEPTH_MAX: usize = 2048;

/// Numbers of nodes and open files are below this, so that there are always more.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// Least bytes of a node.
pub(super) const NODE_BYTES_MIN: usize = 5;

/// What comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeadState {
    /// The security model, by its name: what a file is depends on it.
    pub(super) security: String,
    /// The client appends by itself.
    pub(super) writeback: bool,
    /// The root's own file handle, where handles are what nodes are found by or compared with.
    pub(super) root: Option<HandleState>,
    /// Mounts that handles are opened on.
    pub(super) mounts: Vec<Way>,
    pub(super) files: Vec<FileState>,
    pub(super) owners: Vec<OwnerState>,
    /// The next numbers.
    pub(super) next_node: u64,
    pub(super) next_handle: u64,
    /// How many nodes follow, the root not among them.
    pub(super) nodes: usize,
}

/// From one directory to another, or to a file: how much of the directory before is left behind, by what is kept of its path, and the
/// names from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Way {
    /// So many components of the path before, from the root on.
    pub(super) kept: usize,
    pub(super) names: Vec<Vec<u8>>,
}

impl Way {
    /// # Errors
    /// `EINVAL` for names that are none, and a path that is too deep.
    pub(super) fn names(&self, depth: usize) -> Result<Vec<CString>, Errno> {
        if self.kept > depth || self.kept.saturating_add(self.names.len()) > DEPTH_MAX {
            return Err(Errno::INVAL);
        }
        let name = |bytes: &Vec<u8>| {
            let name = CString::new(bytes.as_slice()).map_err(|_| Errno::INVAL)?;
            component(&name)?;
            Ok(name)
        };
        self.names.iter().map(name).collect()
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
    /// First byte, last byte, and whether it excludes readers.
    pub(super) ranges: Vec<(u64, u64, bool)>,
}
