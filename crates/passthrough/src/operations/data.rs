//! What is done to the data of open files, and to whole file systems. Writing is the caller's, and reading mostly is.

use crate::closing::{Closing, Sort};
use crate::mount::Mount;
use crate::{FsXattr, Handle, Node, ROOT, Result, Tree, ioctl};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, StatVfs};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// What is looked for in a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

impl Tree {
    /// What the file system of a node has room for.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn statfs(&self, node: Node) -> Result<StatVfs> {
        self.pause();
        let pin = self.table.pin(&self.table.get(node)?)?;
        rustix::fs::fstatvfs(pin)
    }

    /// Makes an open file durable; with `data_only` without the attributes that reading it back does not need.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown, and the kernel's.
    pub fn sync_file(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.pause();
        let file = self.files.get(handle)?;
        if data_only { rustix::fs::fdatasync(&*file) } else { rustix::fs::fsync(&*file) }
    }

    /// Makes a node durable that the client need not have open.
    ///
    /// # Errors
    /// As [`Tree::open`]; a special file or a symbolic link cannot be opened for that.
    pub fn sync_node(&self, node: Node) -> Result<()> {
        self.pause();
        let (inode, room) = (self.table.get(node)?, self.room()?);
        let file = Closing::new(self.open_node(&inode, OFlags::RDONLY)?, room, Sort::Read);
        rustix::fs::fsync(&file)
    }

    /// Makes the names in an open directory durable.
    ///
    /// # Errors
    /// As [`Tree::sync_file`]; `ENOTDIR` for the handle of a file.
    pub fn sync_dir(&self, handle: Handle, data_only: bool) -> Result<()> {
        if self.files.get(handle)?.stream.is_none() {
            return Err(Errno::NOTDIR);
        }
        self.sync_file(handle, data_only)
    }

    /// Makes the file system of a node durable. For the root of a tree that does not announce its sub-mounts, all of those
    /// that the client knows are meant: it cannot name them.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn sync_fs(&self, node: Node) -> Result<()> {
        self.pause();
        let sync = |mount: &Mount| rustix::fs::syncfs(mount.file()?);
        let inode = self.table.get(node)?;
        if node != ROOT || self.options.announce_submounts {
            return sync(&inode.mount);
        }
        // All are tried, and the first error is told. Where only special files were met there is nothing to sync.
        let results = self.mounts.all().into_iter().map(|mount| sync(&mount));
        results.filter(|result| *result != Err(Errno::BADF)).fold(Ok(()), Result::and)
    }

    /// Allocates, frees or zeroes a range of an open file. `mode` is `FALLOC_FL_*` of `linux/falloc.h`.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EBADF` for a handle that is unknown or not open for writing, and the kernel's.
    pub fn fallocate(&self, handle: Handle, mode: u32, offset: u64, len: u64) -> Result<()> {
        self.pause();
        self.writable()?;
        let file = self.files.get(handle)?;
        self.strip_capability(&*file)?;
        rustix::fs::fallocate(&*file, FallocateFlags::from_bits_retain(mode), offset, len)?;
        if mode != 0 {
            self.table.forget_size(file.node());
        }
        Ok(())
    }

    /// Where data, or a hole, begins at or behind `offset`.
    ///
    /// # Errors
    /// `ENXIO` when there is none, or the offset lies beyond any file; `EBADF` for a handle that is unknown; the kernel's.
    pub fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64> {
        self.pause();
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let whence = match whence {
            Whence::Data => SeekFrom::Data(offset),
            Whence::Hole => SeekFrom::Hole(offset),
        };
        let file = self.files.get(handle)?;
        // A directory's position belongs to those who read it.
        if file.stream.is_some() {
            return Err(Errno::NXIO);
        }
        rustix::fs::seek(&*file, whence)
    }

    /// Copies a range from one open file to another on the host. Answers how many bytes were copied, 0 at the end.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EBADF` for handles that are unknown or not open for it, `EINVAL` for flags, of which
    /// there are none, `EXDEV` or `EOPNOTSUPP` where the client has to copy itself, and the kernel's.
    pub fn copy_range(
        &self,
        from: Handle,
        mut from_offset: u64,
        to: Handle,
        mut to_offset: u64,
        len: u64,
        flags: u32,
    ) -> Result<u64> {
        self.pause();
        self.writable()?;
        if flags != 0 || i64::try_from(from_offset).is_err() || i64::try_from(to_offset).is_err() {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.files.get(from)?, self.files.get(to)?);
        self.strip_capability(&*to)?;
        // More than fits into a count is copied by asking again, as always.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let copied = rustix::fs::copy_file_range(&*from, Some(&mut from_offset), &*to, Some(&mut to_offset), len)?;
        Ok(copied as u64)
    }

    /// The inode flags of an open file or directory: `FS_*_FL` of `linux/fs.h`.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown, `ENOTTY` where the file system has none, and the kernel's.
    pub fn get_flags(&self, handle: Handle) -> Result<u32> {
        self.pause();
        ioctl::get_flags(self.files.get(handle)?.as_fd())
    }

    /// Changes the inode flags. Whether the caller may is what the kernel demands of the daemon.
    ///
    /// # Errors
    /// As [`Tree::get_flags`]; `EROFS` on a read-only tree.
    pub fn set_flags(&self, handle: Handle, flags: u32) -> Result<()> {
        self.pause();
        self.writable()?;
        if let Some(mapped) = &self.mapped {
            mapped.allows_flags(flags)?;
        }
        ioctl::set_flags(self.files.get(handle)?.as_fd(), flags)
    }

    /// The extended flags and the project of an open file or directory.
    ///
    /// # Errors
    /// As [`Tree::get_flags`].
    pub fn get_fsxattr(&self, handle: Handle) -> Result<FsXattr> {
        self.pause();
        ioctl::get_fsxattr(self.files.get(handle)?.as_fd())
    }

    /// Changes the extended flags and the project.
    ///
    /// # Errors
    /// As [`Tree::set_flags`].
    pub fn set_fsxattr(&self, handle: Handle, attributes: FsXattr) -> Result<()> {
        self.pause();
        self.writable()?;
        ioctl::set_fsxattr(self.files.get(handle)?.as_fd(), attributes)
    }
}
