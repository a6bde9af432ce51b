//! Attributes of a node: what `statx` tells, in the client's ids, and what may be changed.

use crate::closing::{Closing, Sort};
use crate::error::Result;
use crate::file::Handle;
use crate::node::Pin;
use crate::security::Security;
use crate::stat::{has_harmless_group_bit, stat};
use crate::tree::{Node, Tree};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

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

impl Change {
    /// Only times change, or nothing.
    fn is_about_times(&self) -> bool {
        self.mode.is_none() && self.uid.is_none() && self.gid.is_none() && self.size.is_none()
    }

    fn is_nothing(&self) -> bool {
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

impl Tree {
    /// What `stat` says, in the client's ids.
    pub(crate) fn attributes_of(&self, stat: &Statx) -> Attributes {
        if has_harmless_group_bit(stat.stx_mode.into()) && !self.group_bits.load(Ordering::Relaxed) {
            self.group_bits.store(true, Ordering::Relaxed);
        }
        let time = |at: rustix::fs::StatxTimestamp| Time { seconds: at.tv_sec, nanoseconds: at.tv_nsec };
        Attributes {
            ino: stat.stx_ino,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
            mode: stat.stx_mode.into(),
            links: stat.stx_nlink,
            uid: self.options.uid_map.to_guest(stat.stx_uid),
            gid: self.options.gid_map.to_guest(stat.stx_gid),
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            block_size: stat.stx_blksize,
            mount_id: stat.stx_mnt_id,
            flags: stat.stx_attributes.bits(),
            mask: stat.stx_mask,
        }
    }

    /// The attributes of a node, or of a file that the client has open. One system call; two or three when the node holds
    /// no descriptor at the moment.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown or gone, `EBADF` for a handle that is not this node's, and the kernel's.
    pub fn attributes(&self, node: Node, handle: Option<Handle>) -> Result<Attributes> {
        self.pause();
        let (pin, stat) = match handle {
            Some(handle) => {
                let file = self.file_of(node, handle)?;
                let stat = stat(file.as_fd(), c"")?;
                (Pin::File(file), stat)
            }
            None => self.table.pin_and_stat(&self.table.get(node)?)?,
        };
        self.view(node, pin.as_fd(), &stat)
    }

    /// Changes attributes: permissions, owner, size and times in this order. What was changed before an error stays.
    ///
    /// Times of an inode that is gone from the host change without effect: a client that caches writes sends those of files
    /// that were removed meanwhile, and takes a refusal for lost data (syncfs(2)). Nobody can look at them any more.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EPERM` for ids that may not be used, `EISDIR` or `EINVAL` for the size of what is no
    /// regular file, as [`Tree::attributes`], and the kernel's.
    pub fn set_attributes(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        self.pause();
        if !change.is_nothing() {
            self.writable()?;
        }
        let pin = match self.pin_of(node, handle) {
            Err(Errno::STALE) if change.is_about_times() => return self.last_of(node),
            pin => pin?,
        };
        let (proc_self_fd, fd) = (self.proc_self_fd.as_fd(), pin.as_fd());
        let mode = match change.mode {
            Some(mode) if self.options.nosuid && !self.table.get(node)?.kind.is_directory() => {
                Some(self.file_mode(mode))
            }
            mode => mode,
        };
        let change = &Change { mode, ..*change };
        if let Some(mapped) = &self.mapped {
            return self.set_attributes_mapped(mapped, node, handle, change, fd);
        }
        if let Some(mode) = change.mode {
            // By its name in /proc: `fchmod` takes no `O_PATH` descriptor.
            let mode = Mode::from_bits_retain(mode & 0o7777);
            rustix::fs::chmodat(proc_self_fd, DecInt::from_fd(fd), mode, AtFlags::empty())?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let uid = change.uid.map(|uid| self.options.uid_map.to_host(uid)).transpose()?;
            let gid = change.gid.map(|gid| self.options.gid_map.to_host(gid)).transpose()?;
            // The kernel takes this id for "leave it".
            if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
                return Err(Errno::INVAL);
            }
            self.strip_capability(fd)?;
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            match rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH) {
                // What the daemon may not give away stays its own.
                Err(Errno::PERM | Errno::INVAL) if self.options.security == Security::None => {}
                answer => answer?,
            }
        }
        if let Some(size) = change.size {
            let truncate = || self.truncate(node, handle, size);
            if change.kill_suid_sgid {
                self.as_a_user(fd, truncate)?;
            } else {
                truncate()?;
            }
            self.forget_size(node);
        }
        self.set_times(fd, change)?;
        Ok(self.attributes_of(&stat(fd, c"")?))
    }

    /// Changes the times, if they shall change.
    pub(crate) fn set_times(&self, fd: BorrowedFd<'_>, change: &Change) -> Result<()> {
        if change.atime.is_none() && change.mtime.is_none() {
            return Ok(());
        }
        let times = Timestamps { last_access: timespec(change.atime), last_modification: timespec(change.mtime) };
        rustix::fs::utimensat(self.proc_self_fd.as_fd(), DecInt::from_fd(fd), &times, AtFlags::empty())
    }

    /// What is still known of a node whose inode is gone.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown.
    fn last_of(&self, node: Node) -> Result<Attributes> {
        let inode = self.table.get(node)?;
        Ok(Attributes {
            ino: inode.key.ino,
            size: 0,
            blocks: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            btime: Time::default(),
            mode: inode.kind.mode(),
            links: 0,
            uid: 0,
            gid: 0,
            device: inode.key.mount.device,
            rdev: (0, 0),
            block_size: 4096,
            mount_id: inode.key.mount.id,
            flags: 0,
            mask: 0,
        })
    }

    pub(crate) fn truncate(&self, node: Node, handle: Option<Handle>, size: u64) -> Result<()> {
        if i64::try_from(size).is_err() {
            return Err(Errno::FBIG);
        }
        if let Some(file) = self.writable_file_of(node, handle)? {
            self.strip_capability(&*file)?;
            file.empties();
            return rustix::fs::ftruncate(&*file, size);
        }
        let inode = self.table.get(node)?;
        if inode.kind.is_directory() {
            return Err(Errno::ISDIR);
        }
        if !inode.kind.is_file() {
            return Err(Errno::INVAL);
        }
        let room = self.room()?;
        let file = Closing::new(self.open_node(&inode, OFlags::WRONLY)?, room, Sort::Write);
        self.strip_capability(&file)?;
        rustix::fs::ftruncate(&file, size)
    }
}
