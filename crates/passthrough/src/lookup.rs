//! Names become nodes.

use crate::attributes::Attributes;
use crate::error::Result;
use crate::file::Handle;
use crate::handle::FileHandle;
use crate::mount::Mount;
use crate::node::Inode;
use crate::options::FileHandles;
use crate::stat::{Key, Kind, component, open_path, stat};
use crate::table::{Found, Hold};
use crate::tree::{Node, ROOT, Tree};
use rustix::buffer::spare_capacity;
use rustix::fs::Statx;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest target of a symbolic link: `PATH_MAX` of `linux/limits.h`.
const TARGET_BYTES_MAX: usize = 4096;

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

impl Tree {
    /// Looks a name up in a directory. A symbolic link is what it is, and nothing is mounted on the way. "." is the
    /// directory itself, ".." the root in the root.
    ///
    /// # Errors
    /// `ENOENT`; `EINVAL` for "", ".." elsewhere and names with a slash; `ESTALE` for a parent that is unknown or gone;
    /// `ENFILE` when there would be too many nodes, or too many of them held descriptors; the kernel's.
    pub fn lookup(&self, parent: Node, name: &CStr) -> Result<Entry> {
        self.pause();
        let dir = self.table.get(parent)?;
        if name == c"." || (name == c".." && parent == ROOT) {
            let (pin, stat) = self.table.pin_and_stat(&dir)?;
            let attributes = self.view(parent, pin.as_fd(), &stat)?;
            self.table.reference_again(&dir)?;
            return Ok(Entry { attributes, ..self.entry(&dir, &stat, &dir.mount) });
        }
        component(name)?;
        let pin = self.table.pin(&dir)?;
        if let Some(mapped) = &self.mapped {
            return self.lookup_mapped(mapped, &dir, pin.as_fd(), name).map(|(_, entry)| entry);
        }
        let (inode, stat) = self.look_up(pin.as_fd(), &dir.mount, name)?;
        Ok(self.entry(&inode, &stat, &dir.mount))
    }

    /// Looks up a name that came out of an open directory, as [`Tree::lookup`] does. This is a part of reading it, and sleeps
    /// no delay of its own.
    ///
    /// # Errors
    /// As [`Tree::lookup`]; `EBADF` for a handle that is unknown, `ENOTDIR` for one of a file.
    pub fn read_dir_entry(&self, handle: Handle, name: &CStr) -> Result<Entry> {
        component(name)?;
        let file = self.files.get(handle)?;
        let stream = file.stream.as_ref().ok_or(Errno::NOTDIR)?;
        if let Some(mapped) = &self.mapped {
            let dir = self.table.get(file.node())?;
            return self.lookup_mapped(mapped, &dir, file.as_fd(), name).map(|(_, entry)| entry);
        }
        // Where descriptors are held, one look spares the other: names of one directory are mostly all known or all new.
        let (inode, stat) = if !file.mount.has_handles() && stream.expects_unknown() {
            self.look_up_by_path(file.as_fd(), &file.mount, name)?
        } else {
            self.look_up(file.as_fd(), &file.mount, name)?
        };
        stream.expect_unknown(inode.references.load(Ordering::Relaxed) == 1);
        Ok(self.entry(&inode, &stat, &file.mount))
    }

    /// Reads the target of a symbolic link into `out`, which is cleared before.
    ///
    /// # Errors
    /// `EINVAL` for what is no symbolic link, `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn read_link(&self, node: Node, out: &mut Vec<u8>) -> Result<()> {
        self.pause();
        let inode = self.table.get(node)?;
        if let Some(mapped) = &self.mapped
            && inode.kind.is_file()
        {
            return self.read_link_mapped(mapped, &inode, out, TARGET_BYTES_MAX);
        }
        if !inode.kind.is_link() {
            return Err(Errno::INVAL);
        }
        let pin = self.table.pin(&inode)?;
        out.clear();
        out.reserve(TARGET_BYTES_MAX);
        rustix::fs::readlinkat_raw(pin, c"", spare_capacity(out))?;
        Ok(())
    }

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
        let here = key.mount == mount.key();
        if perhaps || (here && mount.has_handles()) {
            // A name whose meaning changes between the two calls gives a handle that does not fit: whoever opens it looks
            // first whether it leads to what was seen here.
            match FileHandle::of(dir, name) {
                Ok(handle) => {
                    let mount = if here { Arc::clone(mount) } else { self.mounts.get(key.mount) };
                    if mount.has_handles() {
                        let hold = Hold { path: None, handle: Some(handle), verified: false };
                        let inode = self.table.intern(key, Kind::of(&stat), &mount, hold)?;
                        return Ok((inode, stat));
                    }
                }
                Err(error @ (Errno::NOENT | Errno::STALE | Errno::NOTDIR)) => return Err(error),
                // A file without a handle among others that have one.
                Err(_) => {}
            }
        }
        self.look_up_by_path(dir, mount, name)
    }

    /// References what `name` in `dir` is with the help of a descriptor, which the node keeps if it is new.
    pub(crate) fn look_up_by_path(
        &self,
        dir: BorrowedFd<'_>,
        mount: &Arc<Mount>,
        name: &CStr,
    ) -> Result<(Arc<Inode>, Statx)> {
        let fd = open_path(dir, name)?;
        let stat = stat(fd.as_fd(), c"")?;
        let (mount, handle) = self.hold_of(mount, fd.as_fd(), &stat)?;
        let hold = Hold { path: Some(fd), handle, verified: true };
        Ok((self.table.intern(Key::of(&stat), Kind::of(&stat), &mount, hold)?, stat))
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
