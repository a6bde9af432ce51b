//! The numbers by which a client names what it knows of a tree.

/// Names an inode to a client. Never used twice within a tree.
pub type Node = u64;

/// The directory that is served.
pub const ROOT: Node = 1;

/// Names an open file or directory. Never used twice within a tree, and never 0.
pub type Handle = u64;
