//! Files that a virtual machine maps itself (DAX): which they are, and what they are mapped by.

use crate::mount::is_mapped_well;
use crate::share::Taken;
use crate::xattr::CAPABILITY;
use crate::{Attributes, Node, Result, Tree};
use rustix::fs::{Access, AtFlags, OFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A file that is open to be mapped, and counts among the descriptors of its tree.
#[derive(Debug)]
pub struct FileToMap {
    fd: OwnedFd,
    share: InShare,
}

/// A descriptor's place among those of a tree, until it is closed.
#[derive(Debug)]
pub struct InShare(#[expect(dead_code, reason = "held")] Taken);

impl FileToMap {
    /// The descriptor, and what is to be kept for as long as it is open.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, InShare) {
        (self.fd, self.share)
    }
}

/// The extended attribute of a file, on the host, that asks for it; the value means nothing.
pub const DAX_MARK: &CStr = c"user.vringd.dax";

impl Tree {
    /// Whether a file like that consists of whole pieces of `piece` bytes, and loses nothing when it is written to without our
    /// knowledge: a set-id bit goes with a write that we are told of.
    #[must_use]
    pub fn comes_in_pieces(attributes: &Attributes, piece: u64) -> bool {
        let (kind, powers) = (attributes.mode & libc::S_IFMT, attributes.mode & (libc::S_ISUID | libc::S_ISGID));
        kind == libc::S_IFREG && powers == 0 && attributes.size > 0 && attributes.size.is_multiple_of(piece)
    }

    /// Whether it can be opened for mapping, as far as that can be told without doing so; with `marked`, whether it carries
    /// [`DAX_MARK`], too. A few system calls.
    #[must_use]
    pub fn can_be_mapped(&self, node: Node, marked: bool) -> bool {
        let look = || {
            self.writable()?;
            let inode = self.table.get(node)?;
            let pin = self.table.pin(&inode)?;
            if !is_mapped_well(pin.as_fd())? {
                return Err(Errno::NODEV);
            }
            let about = statx(&pin, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
            if about.stx_attributes.contains(StatxAttributes::APPEND) || self.has_capabilities(pin.as_fd())? {
                return Err(Errno::NODEV);
            }
            if marked {
                self.place(pin.as_fd()).get(DAX_MARK, &mut [])?;
            }
            let name = DecInt::from_fd(pin.as_fd());
            rustix::fs::accessat(&self.proc_self_fd, name, Access::WRITE_OK, AtFlags::empty())
        };
        look().is_ok()
    }

    /// Opens a file so that a part of it can be mapped by whoever gets the descriptor, always for writing too: QEMU refuses one that
    /// is open for reading alone, and a mapping that begins to be written to would have to be taken away first.
    ///
    /// # Errors
    /// `ENXIO` for a part that is not all in the file: QEMU makes an empty file longer when it maps it, and refuses others. `EROFS` on a
    /// read-only tree, `ENODEV` for a file system that has no such mappings and for a file with a set-id bit or capabilities, `ENFILE`
    /// when the tree has as many descriptors as it may, and as [`Tree::open`].
    pub fn open_to_map(&self, node: Node, offset: u64, len: u64) -> Result<FileToMap> {
        self.pause();
        self.writable()?;
        let inode = self.table.get(node)?;
        if !inode.kind.is_file() {
            return Err(Errno::NODEV);
        }
        // Before it is opened for writing, which an overlay answers with a copy of all of it.
        let pin = self.table.pin(&inode)?;
        if !is_mapped_well(pin.as_fd())? {
            return Err(Errno::NODEV);
        }
        let share = InShare(self.share.take().ok_or(Errno::NFILE)?);
        let fd = self.open_node(&inode, OFlags::RDWR)?;
        let about = rustix::fs::fstat(&fd)?;
        // As the client knows it: a tree may keep modes elsewhere.
        let mode = if self.mapped.is_some() { self.attributes(node, None)?.mode } else { about.st_mode };
        if mode & (libc::S_ISUID | libc::S_ISGID) != 0 || self.has_capabilities(fd.as_fd())? {
            // They go with a write that we are told of.
            return Err(Errno::NODEV);
        }
        let size = u64::try_from(about.st_size).unwrap_or(0);
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        if len == 0 || end > size { Err(Errno::NXIO) } else { Ok(FileToMap { fd, share }) }
    }

    /// Whether whoever executes a file gets capabilities, on the host.
    fn has_capabilities(&self, fd: BorrowedFd<'_>) -> Result<bool> {
        match self.place(fd).get(CAPABILITY, &mut []) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the client knows a node.
    #[must_use]
    pub fn knows(&self, node: Node) -> bool {
        self.table.get(node).is_ok()
    }
}
