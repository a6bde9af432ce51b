//! A tree with its client goes on another host: which nodes the client knows, what it has open, what it has locked.
//!
//! | file | concern |
//! |---|---|
//! | `form` | what goes along, and its bytes |
//! | `places` | where nodes are on the host that they leave |
//! | `save` | all of it, there |
//! | `walk` | from place to place on the host where they arrive |
//! | `load` | all of it, here |
//! | `locks` | locks are let go, and taken again if nothing comes of it |
//!
//! Descriptors stay behind, so everything is found anew: by its path below the root, which may be another file system's, or by its file
//! handle where both hosts have the same one. [`crate::handover`] is for a program on the same host, which has the descriptors.

mod form;
mod load;
mod locks;
mod places;
mod save;
#[cfg(test)]
mod tests;
mod walk;

pub use locks::{LetGo, NotTaken};

use rustix::io::Errno;

/// Somebody may want an end of it after so many nodes.
const LOOK_EVERY: usize = 64;

/// A tree on its way out.
#[derive(Debug)]
pub struct Saved {
    /// All of it, in pieces that belong behind each other. Whoever moves it says of which version it is.
    pub bytes: Vec<Vec<u8>>,
    /// Nodes, the root not among them.
    pub nodes: usize,
    /// Open files and directories.
    pub files: usize,
    /// Owners of POSIX locks.
    pub owners: usize,
    /// Nodes that nobody can find by what goes along.
    pub lost: usize,
}

/// A tree that has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Nodes, the root not among them.
    pub nodes: usize,
    /// Open files and directories.
    pub files: usize,
    /// Owners of POSIX locks.
    pub owners: usize,
    /// What its client has no more, and the first of these with the reason.
    pub lost: usize,
    /// The first of what is lost.
    pub first_lost: Option<String>,
}

/// Why a tree does not go to another host.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum SaveError {
    /// its root cannot be looked at: {0}
    Root(Errno),
    /// security_model mapped-file keeps records by names, which file handles do not lead to; use migration_mode find-paths
    RecordsBesideNames,
    /// its state cannot be written down: {0}
    Form(#[from] postcard::Error),
    /// its root has no file handle, by which it is to be compared: {0}; use migration_mode find-paths, without migration_verify_handles
    Handles(Errno),
    /// the paths of what its guest knows take more than 256 MiB; let the guest drop its caches (echo 2 > /proc/sys/vm/drop_caches) and try again, or use migration_mode file-handles
    Paths,
    /// files that its guest has released are still being closed after 30 s; look at their file system, and try again
    Closing,
    /// what its guest has written to open file {handle} of inode {node} cannot be written back: {error}
    WriteBack {
        /// The open file.
        handle: u64,
        /// Whose.
        node: u64,
        /// Why.
        error: Errno,
    },
    /// it is not wanted any more
    Unwanted,
}

/// Why a tree that has come is not taken.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LoadError {
    /// the state of its tree cannot be understood: {0}
    Form(#[from] postcard::Error),
    /// the state of its tree has {what} {number} twice, or a number that is none
    Number {
        /// A node, or an open file.
        what: &'static str,
        /// Which.
        number: u64,
    },
    /// security_model is {theirs} where the guest comes from, and {ours} here
    Security {
        /// Over there.
        theirs: String,
        /// Here.
        ours: &'static str,
    },
    /// writeback is {theirs} where the guest comes from, and {ours} here
    Writeback {
        /// Over there.
        theirs: bool,
        /// Here.
        ours: bool,
    },
    /// its files are named by file handles, which can name any file of the file system; migration_mode = "file-handles" here as well allows that
    Handles,
    /// its directory is another one: file handles say so
    AnotherRoot,
    /// its root cannot be looked at: {0}
    Root(Errno),
    /// the way to node {0} leads nowhere
    Way(u64),
    /// the state of its tree has {count} {what}, and {most} are the most here
    TooMany {
        /// Nodes, open files, owners of locks, or mounts.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// {first}, and {others} others; migration_on_error = "guest-error" goes on without them
    Lost {
        /// The first thing that is not had here, and why.
        first: String,
        /// How many others there are.
        others: usize,
    },
    /// it is not wanted any more
    Unwanted,
}
