//! What a client opens, and descriptors for operations.

use crate::closing::{Closing, Sort, is_writable};
use crate::creds::without_fsetid;
use crate::dir::Stream;
use crate::held::changes;
use crate::lock::Place as At;
use crate::node::{Inode, Pin};
use crate::share::{Place, Taken};
use crate::stat::open_anew;
use crate::sync::lock;
use crate::window::Reader;
use crate::{Handle, Node, OpenFile, Opened, Result, Tree};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a client may say when it opens a file. `O_NONBLOCK` means nothing for a regular file, `O_NOFOLLOW` nothing for one
/// that was found already, and `O_CREAT` and `O_EXCL` are the create operation's.
const FLAGS: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECT)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC)
    .union(OFlags::NOATIME);

impl Tree {
    /// The flags that a file is opened with for a client that asks for `flags`.
    ///
    /// # Errors
    /// `EROFS` for anything that could change a read-only tree.
    pub(crate) fn host_flags(&self, flags: i32) -> Result<OFlags> {
        let mut flags = OFlags::from_bits_retain(flags.cast_unsigned()) & FLAGS;
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            self.writable()?;
        }
        if self.options.writeback {
            flags.remove(OFlags::APPEND);
            if flags & OFlags::ACCMODE == OFlags::WRONLY {
                flags = flags.difference(OFlags::ACCMODE) | OFlags::RDWR;
            }
        }
        if !self.options.allow_direct_io {
            flags.remove(OFlags::DIRECT);
        }
        if !self.options.preserve_noatime {
            flags.remove(OFlags::NOATIME);
        }
        Ok(flags)
    }

    /// Opens a regular file or a directory of the host.
    ///
    /// # Errors
    /// `ELOOP` for a symbolic link and `ENXIO` for a special file: a client opens those itself, and opening one here could
    /// block or have effects on the host.
    pub(crate) fn open_node(&self, inode: &Arc<Inode>, flags: OFlags) -> Result<OwnedFd> {
        if inode.kind.is_link() {
            return Err(Errno::LOOP);
        }
        if !inode.kind.is_file() && !inode.kind.is_directory() {
            return Err(Errno::NXIO);
        }
        let pin = self.table.pin(inode)?;
        if let Some(mapped) = &self.mapped {
            self.is_plain(mapped, inode, pin.as_fd())?;
        }
        open_anew(self.proc_self_fd.as_fd(), pin.as_fd(), flags)
    }

    /// Room for one more open file.
    ///
    /// # Errors
    /// `ENFILE` when there are as many as allowed, or as many descriptors.
    pub(crate) fn room(&self) -> Result<Place> {
        self.files.room(|| self.table.close_any())
    }

    /// Gives a descriptor that was opened for the client its name.
    pub(crate) fn add_file(&self, inode: &Inode, fd: OwnedFd, flags: OFlags, place: Place) -> Opened {
        let file = self.opened(inode, fd, flags, place);
        lock(&inode.slot).opened(&file);
        if flags.contains(OFlags::TRUNC) {
            file.empties();
            inode.forget_size();
        }
        self.files.add(file)
    }

    /// The open file that a descriptor of the inode makes.
    pub(crate) fn opened(&self, inode: &Inode, fd: OwnedFd, flags: OFlags, place: Place) -> Arc<OpenFile> {
        let stream = inode.kind.is_directory().then(Stream::default);
        let (at, mount, reader) = (At::known(&inode.key), Arc::clone(&inode.mount), self.reader(inode, flags));
        OpenFile::new((fd, place), (inode.node, Some(at), flags), mount, stream, reader)
    }

    /// What reads a file without system calls, where that is possible.
    pub(crate) fn reader(&self, inode: &Inode, flags: OFlags) -> Option<Reader> {
        let windows = self.windows.as_ref()?;
        let fills_holes = inode.mount.windows()?;
        let readable = flags & OFlags::ACCMODE != OFlags::WRONLY && !flags.contains(OFlags::DIRECT);
        (inode.kind.is_file() && readable).then(|| Reader::new(Arc::clone(windows), fills_holes))
    }

    /// Opens a regular file. `flags` are the client's `O_*`; `kill_priv` with `O_TRUNC` drops set-id bits and file
    /// capabilities as for an unprivileged caller.
    ///
    /// # Errors
    /// `EROFS` for writing on a read-only tree, `ENFILE` when too many files are open, `ESTALE` for a node that is unknown
    /// or gone, `EISDIR`, `ELOOP` and `ENXIO` for what is no regular file, and the kernel's.
    pub fn open(&self, node: Node, flags: i32, kill_priv: bool) -> Result<Opened> {
        self.pause();
        let flags = self.host_flags(flags)?;
        self.open_file(&self.table.get(node)?, flags, kill_priv)
    }

    /// Opens a regular file with flags of the host.
    pub(crate) fn open_file(&self, inode: &Arc<Inode>, flags: OFlags, kill_priv: bool) -> Result<Opened> {
        if inode.kind.is_directory() {
            return Err(Errno::ISDIR);
        }
        let room = self.room()?;
        let truncates = flags.contains(OFlags::TRUNC);
        // By a name that could not be looked at before.
        let _changing =
            truncates.then(|| changes(&self.changes, || self.table.pin_and_stat(inode).map(|(_, stat)| stat)));
        if truncates && self.mapped_capability.is_some() {
            self.strip_capability(&self.table.pin(inode)?)?;
        }
        let fd = if kill_priv && truncates {
            if let Some(mapped) = &self.mapped {
                self.drop_set_ids_before_truncation(mapped, inode)?;
            }
            let open = || self.open_node(inode, flags);
            if self.group_bits.load(Ordering::Relaxed) {
                self.as_a_user(self.table.pin(inode)?.as_fd(), open)?
            } else {
                without_fsetid(open)?
            }
        } else {
            self.open_node(inode, flags)?
        };
        Ok(self.add_file(inode, fd, flags, room))
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENFILE` when too many files are open, `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn open_dir(&self, node: Node) -> Result<Opened> {
        self.pause();
        let inode = self.table.get(node)?;
        if !inode.kind.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let room = self.room()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = self.open_node(&inode, flags)?;
        Ok(self.add_file(&inode, fd, flags, room))
    }

    /// An open file or directory, for I/O that the caller does itself. No system call and no allocation.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown.
    pub fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        self.files.get(handle)
    }

    /// A node opened for reading, for clients that read without opening. The descriptor is kept with those of the nodes,
    /// and closed as they are.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown or gone, `ELOOP` and `ENXIO` for what is neither file nor directory, and the
    /// kernel's.
    pub fn node_file(&self, node: Node) -> Result<Arc<OpenFile>> {
        let inode = self.table.get(node)?;
        self.table.read_file(&inode, |place| {
            let fd = self.open_node(&inode, OFlags::RDONLY)?;
            Ok(self.opened(&inode, fd, OFlags::RDONLY, place))
        })
    }

    /// Opens a node anew for an owner's locks: the client must have it open.
    pub(crate) fn open_for_locks(&self, node: Node, handle: Handle, flags: OFlags) -> Result<Closing<Taken>> {
        self.file_of(node, handle)?;
        self.open_to_lock(&self.table.get(node)?, flags)
    }

    /// The same, of an inode.
    pub(crate) fn open_to_lock(&self, inode: &Arc<Inode>, flags: OFlags) -> Result<Closing<Taken>> {
        if is_writable(flags) {
            self.writable()?;
        }
        let taken = self.share.take().ok_or(Errno::NOLCK)?;
        let fd = self.open_node(inode, flags)?;
        // Nothing is ever written by it: that it could be matters to file systems that write back at each close alone.
        let sort = if inode.mount.reports_at_close() { Sort::of(flags) } else { Sort::Read };
        Ok(Closing::new(fd, taken, sort))
    }

    /// An open file of this node.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown or another node's.
    pub(crate) fn file_of(&self, node: Node, handle: Handle) -> Result<Arc<OpenFile>> {
        let file = self.files.get(handle)?;
        if file.node() == node { Ok(file) } else { Err(Errno::BADF) }
    }

    /// An open file of this node that can be written to, or nothing.
    pub(crate) fn writable_file_of(&self, node: Node, handle: Option<Handle>) -> Result<Option<Arc<OpenFile>>> {
        let file = handle.map(|handle| self.file_of(node, handle)).transpose()?;
        Ok(file.filter(|file| file.is_writable()))
    }

    /// A descriptor of a node: the client's open file, or one of the tree's own.
    pub(crate) fn pin_of(&self, node: Node, handle: Option<Handle>) -> Result<Pin> {
        match handle {
            Some(handle) => self.file_of(node, handle).map(Pin::File),
            None => self.table.pin(&self.table.get(node)?),
        }
    }
}
