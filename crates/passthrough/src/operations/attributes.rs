//! Attributes of a node: what they are, and what changes.

use crate::closing::{Closing, Sort};
use crate::mapped::{Mapped, Record, without_set_ids};
use crate::node::Pin;
use crate::stat::stat;
use crate::{Attributes, Caller, Change, Handle, Node, Result, Security, Tree};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::os::fd::{AsFd, BorrowedFd};

impl Tree {
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
            self.table.forget_size(node);
        }
        change.set_times(proc_self_fd, fd)?;
        Ok(self.attributes_of(&stat(fd, c"")?))
    }

    /// As [`Tree::set_attributes`]. `fd` is a descriptor of the node.
    fn set_attributes_mapped(
        &self,
        mapped: &Mapped,
        node: Node,
        handle: Option<Handle>,
        change: &Change,
        fd: BorrowedFd<'_>,
    ) -> Result<Attributes> {
        let inode = self.table.get(node)?;
        if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() {
            let uid = change.uid.map(|uid| self.options.uid_map.to_host(uid)).transpose()?;
            let gid = change.gid.map(|gid| self.options.gid_map.to_host(gid)).transpose()?;
            // This id means that there is no record.
            if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
                return Err(Errno::INVAL);
            }
            if uid.is_some() || gid.is_some() {
                self.strip_capability(fd)?;
            }
            self.change_record(mapped, &inode, fd, |present| {
                let mut mode = present;
                if let Some(wanted) = change.mode {
                    if present & libc::S_IFMT == libc::S_IFLNK {
                        return Err(Errno::OPNOTSUPP);
                    }
                    mode = present & libc::S_IFMT | wanted & 0o7777;
                }
                if uid.is_some() || gid.is_some() {
                    mode = without_set_ids(mode);
                }
                let mode = Some(mode).filter(|&mode| change.mode.is_some() || mode != present);
                Ok(Record { uid, gid, mode, rdev: None })
            })?;
        }
        if let Some(size) = change.size {
            // What is a regular file on the host alone has no size to change.
            self.is_plain(mapped, &inode, fd).map_err(|error| match error {
                Errno::LOOP | Errno::NXIO => Errno::INVAL,
                error => error,
            })?;
            if change.kill_suid_sgid && inode.kind.is_file() {
                self.drop_set_ids(mapped, &inode, fd)?;
            }
            self.truncate(node, handle, size)?;
            self.table.forget_size(node);
        }
        change.set_times(self.proc_self_fd.as_fd(), fd)?;
        self.view_mapped(mapped, &inode, fd, &stat(fd, c"")?)
    }

    /// Whether the caller may read (4), write (2), execute (1) or find (0) a node, by its owner, group and mode. Access
    /// lists are not looked at: a client that knows them checks permissions itself.
    ///
    /// # Errors
    /// `EACCES`; `EROFS` for writing on a read-only tree; `EINVAL` for another mask; as [`Tree::attributes`].
    pub fn access(&self, who: Caller<'_>, node: Node, mask: u32) -> Result<()> {
        if mask & !7 != 0 {
            return Err(Errno::INVAL);
        }
        let attributes = self.attributes(node, None)?;
        let kind = attributes.mode & libc::S_IFMT;
        if mask & 2 != 0 && self.options.read_only && matches!(kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK) {
            return Err(Errno::ROFS);
        }
        let mode = attributes.mode;
        let granted = if who.uid == 0 {
            // The superuser reads and writes what it likes, and executes what anybody may execute.
            if kind == libc::S_IFDIR || mode & 0o111 != 0 { 7 } else { 6 }
        } else if who.uid == attributes.uid {
            mode >> 6 & 7
        } else if who.gid == attributes.gid || who.groups.contains(&attributes.gid) {
            mode >> 3 & 7
        } else {
            mode & 7
        };
        if mask & !granted == 0 { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// What is still known of a node whose inode is gone.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown.
    fn last_of(&self, node: Node) -> Result<Attributes> {
        let inode = self.table.get(node)?;
        Ok(Attributes {
            ino: inode.key.ino,
            mode: inode.kind.mode(),
            device: inode.key.mount.device,
            block_size: 4096,
            mount_id: inode.key.mount.id,
            ..Attributes::default()
        })
    }

    fn truncate(&self, node: Node, handle: Option<Handle>, size: u64) -> Result<()> {
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
