//! Attributes of a node: what `statx` tells, in the client's ids, and what may be changed.

/// A point in time, since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// What `statx(2)` tells about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number on the host.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
    /// Creation, where the file system keeps it.
    pub btime: Time,
    /// Type and permissions: `S_IFMT` and 0o7777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner, as the client knows it.
    pub uid: u32,
    /// Group, as the client knows it.
    pub gid: u32,
    /// Device of the file system, major and minor.
    pub device: (u32, u32),
    /// Device that a device node stands for, major and minor.
    pub rdev: (u32, u32),
    /// Preferred size of I/O in bytes.
    pub block_size: u32,
    /// Which mount of the host: `stx_mnt_id`, 0 before Linux 5.8.
    pub mount_id: u64,
    /// `STATX_ATTR_*`.
    pub flags: u64,
    /// Which of these the kernel filled in: `STATX_*`.
    pub mask: u32,
}

/// What a time becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The host's present time.
    Now,
    /// This time.
    At(Time),
}

/// What shall change. Everything that is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Permissions, 0o7777. A type is ignored.
    pub mode: Option<u32>,
    /// Owner, as the client knows it.
    pub uid: Option<u32>,
    /// Group, as the client knows it.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// A change of the size also drops set-id bits and file capabilities, as it does for an unprivileged caller.
    pub kill_suid_sgid: bool,
}
