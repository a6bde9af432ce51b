//! What a process is for.

/// What a process serves, which decides what it may do besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One directory, and nothing else, ever.
    Directory,
    /// Disks, and no directory.
    Disks,
    /// Disks and directories.
    Daemon,
}

impl Role {
    /// Whether directories may be served.
    pub fn directories(self) -> bool {
        self != Role::Disks
    }
}
