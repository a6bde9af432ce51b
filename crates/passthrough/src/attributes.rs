//! What a client is told of a node, and what it may change: what `statx` tells, in the client's ids.

use crate::error::Result;
use crate::ids::Node;
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::path::DecInt;
use std::os::fd::BorrowedFd;

/// A point in time, since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds of the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// What `statx(2)` tells about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// What stands behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What to call it from now on. The client was told once more, and has to forget it once more.
    pub node: Node,
    /// What it is like.
    pub attributes: Attributes,
    /// It is a directory on another mount or device than the one that names it, and sub-mounts are announced. Inode numbers
    /// count anew there.
    pub submount: bool,
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

impl Change {
    /// Only times change, or nothing.
    pub(crate) fn is_about_times(&self) -> bool {
        self.mode.is_none() && self.uid.is_none() && self.gid.is_none() && self.size.is_none()
    }

    /// Changes those times of what `fd` is that shall change.
    pub(crate) fn set_times(&self, proc_self_fd: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<()> {
        if self.atime.is_none() && self.mtime.is_none() {
            return Ok(());
        }
        let times = Timestamps { last_access: timespec(self.atime), last_modification: timespec(self.mtime) };
        rustix::fs::utimensat(proc_self_fd, DecInt::from_fd(fd), &times, AtFlags::empty())
    }

    pub(crate) fn is_nothing(&self) -> bool {
        let Change { mode, uid, gid, size, atime, mtime, kill_suid_sgid: _ } = self;
        mode.is_none() && uid.is_none() && gid.is_none() && size.is_none() && atime.is_none() && mtime.is_none()
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(Time { seconds, nanoseconds })) => {
            // No number of a client may mean "now" or "leave it".
            let nanoseconds = if nanoseconds < 1_000_000_000 { nanoseconds.into() } else { -1 };
            Timespec { tv_sec: seconds, tv_nsec: nanoseconds }
        }
    }
}
