//! What is found on the host becomes a node.

use crate::handle::FileHandle;
use crate::mount::Mount;
use crate::node::Inode;
use crate::stat::{Key, Kind, open_path, stat};
use crate::table::{Found, Hold};
use crate::{Entry, FileHandles, Node, Result, Tree};
use rustix::fs::Statx;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

impl Tree {
    /// Takes references back that look-ups and creations gave. Too many are as good as all there are, and an unknown node
    /// is forgotten already.
    pub fn forget(&self, node: Node, count: u64) {
        if self.table.forget(node, count)
            && let Some(mapped) = &self.mapped
        {
            mapped.forget(node);
        }
    }

    /// What the client is told of a node in a directory on `mount`.
    pub(crate) fn entry(&self, inode: &Inode, stat: &Statx, mount: &Mount) -> Entry {
        // Some file systems show files, but never directories, as of the device that they come from.
        let elsewhere = inode.kind.is_directory() && inode.key.mount != mount.key();
        let submount = self.options.announce_submounts && elsewhere;
        Entry { node: inode.node, attributes: self.attributes_of(stat), submount }
    }

    /// References what `name` in `dir` is. `mount` is the directory's. Known: one system call, and one more when only a
    /// file handle can tell; unknown: two with file handles, three without.
    pub(crate) fn look_up(&self, dir: BorrowedFd<'_>, mount: &Arc<Mount>, name: &CStr) -> Result<(Arc<Inode>, Statx)> {
        let stat = stat(dir, name)?;
        let key = Key::of(&stat);
        let perhaps = match self.table.reference(&key) {
            Found::Known(inode) => return Ok((inode, stat)),
            Found::Unsure { perhaps } => perhaps,
        };
        if let Some((mount, handle)) = self.handle_of_name(dir, mount, name, &stat, perhaps)? {
            let hold = Hold { path: None, handle: Some(handle), verified: false };
            let inode = self.table.intern(key, Kind::of(&stat), &mount, hold)?;
            return Ok((inode, stat));
        }
        self.look_up_by_path(dir, mount, name)
    }

    /// The mount and the file handle of what `name` in `dir` was when `stat` was made, if it is held by a handle. `perhaps`: it is worth
    /// a system call even if it is on another mount than `dir`.
    pub(crate) fn handle_of_name(
        &self,
        dir: BorrowedFd<'_>,
        mount: &Arc<Mount>,
        name: &CStr,
        stat: &Statx,
        perhaps: bool,
    ) -> Result<Option<(Arc<Mount>, FileHandle)>> {
        let key = Key::of(stat).mount;
        let here = key == mount.key();
        if !(perhaps || here && mount.has_handles()) {
            return Ok(None);
        }
        // A name whose meaning changes between the two calls gives a handle that does not fit: whoever opens it looks
        // first whether it leads to what was seen here.
        match FileHandle::of(dir, name) {
            Ok(handle) => {
                let mount = if here { Arc::clone(mount) } else { self.mounts.get(key) };
                Ok(mount.has_handles().then_some((mount, handle)))
            }
            Err(error @ (Errno::NOENT | Errno::STALE | Errno::NOTDIR)) => Err(error),
            // A file without a handle among others that have one.
            Err(_) => Ok(None),
        }
    }

    /// References what `name` in `dir` is with the help of a descriptor, which the node keeps if it is new.
    pub(crate) fn look_up_by_path(
        &self,
        dir: BorrowedFd<'_>,
        mount: &Arc<Mount>,
        name: &CStr,
    ) -> Result<(Arc<Inode>, Statx)> {
        let (stat, mount, hold) = self.hold_by_path(dir, mount, name)?;
        Ok((self.table.intern(Key::of(&stat), Kind::of(&stat), &mount, hold)?, stat))
    }

    /// What `name` in `dir` is, its mount, and a descriptor to hold it by.
    pub(crate) fn hold_by_path(
        &self,
        dir: BorrowedFd<'_>,
        mount: &Arc<Mount>,
        name: &CStr,
    ) -> Result<(Statx, Arc<Mount>, Hold)> {
        let fd = open_path(dir, name)?;
        let stat = stat(fd.as_fd(), c"")?;
        let (mount, handle) = self.hold_of(mount, fd.as_fd(), &stat)?;
        Ok((stat, mount, Hold { path: Some(fd), handle, verified: true }))
    }

    /// The mount of an inode that is open, and its file handle where nodes are held by handles. `near` is the mount where
    /// it most likely is.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where handles are mandatory and there are none.
    pub(crate) fn hold_of(
        &self,
        near: &Arc<Mount>,
        fd: BorrowedFd<'_>,
        stat: &Statx,
    ) -> Result<(Arc<Mount>, Option<FileHandle>)> {
        let key = Key::of(stat).mount;
        let mount = if key == near.key() { Arc::clone(near) } else { self.mounts.get(key) };
        mount.explore(self.proc_self_fd.as_fd(), fd, Kind::of(stat), self.options.file_handles);
        let handle = if mount.has_handles() { FileHandle::of(fd, c"").ok() } else { None };
        if handle.is_none() && self.options.file_handles == FileHandles::Mandatory {
            return Err(Errno::OPNOTSUPP);
        }
        Ok((mount, handle))
    }
}
