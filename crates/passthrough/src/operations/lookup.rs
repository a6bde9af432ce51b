//! Names become nodes.

use crate::stat::component;
use crate::{DirEntry, Entry, Handle, Node, ROOT, Result, Tree};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// The longest target of a symbolic link: `PATH_MAX` of `linux/limits.h`.
const TARGET_BYTES_MAX: usize = 4096;

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

    /// Gives `each` the entries of an open directory from `offset` on, which is 0 or the offset of an entry that was given
    /// before. `each` says `false` for an entry that it cannot take, which ends the reading and comes again next time.
    /// Calls on one directory wait for each other.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown, `ENOTDIR` for one of a file, `EINVAL` for an offset that is none, and the
    /// kernel's. Entries that were given are given nonetheless.
    pub fn read_dir(&self, handle: Handle, offset: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.pause();
        let file = self.files.get(handle)?;
        let stream = file.stream.as_ref().ok_or(Errno::NOTDIR)?;
        stream.read(file.as_fd(), offset, &self.pieces, |entry| match &self.mapped {
            None => each(entry),
            Some(mapped) => mapped.shown(entry).is_none_or(&mut *each),
        })
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
}
