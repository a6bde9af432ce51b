//! Why a tree does not pass from one program to the next.

use crate::error::OpenError;
use crate::ids::Node;
use rustix::io::Errno;

/// Why a tree is not handed over.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum NotHandedOver {
    /// its guest knows {nodes} inodes, and 16777216 at most can be handed over: let the guest drop its caches (echo 2 > /proc/sys/vm/drop_caches) and try again, or remove the export first; nodes_max bounds them
    Nodes {
        /// How many it knows.
        nodes: usize,
    },
    /// its state cannot be written down: {0}
    Form(#[from] postcard::Error),
}

/// Why a program cannot go on with a tree.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum AdoptError {
    /// the state of its tree cannot be understood: {0}
    Form(#[from] postcard::Error),
    /// the state of its tree names descriptor {0}, which is not there or was named before
    Descriptor(u32),
    /// the state of its tree names mount {0}, which is not there
    Mount(u32),
    /// the state of its tree has node {0} twice
    Twice(Node),
    /// the state of its tree has a name in node {0}, which is not there, or one that is no name
    Name(Node),
    /// a file with locks cannot be looked at: {0}
    Locked(Errno),
    /// the state of its tree has no root
    NoRoot,
    /// {0}
    Open(#[from] OpenError),
}
