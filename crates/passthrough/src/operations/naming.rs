//! What operations on names share: the directory, and what was just made there.

use crate::node::{Inode, Pin};
use crate::stat::{Key, Kind, component, open_anew, stat};
use crate::table::Hold;
use crate::{Entry, Node, Opened, Result, SecurityContext, Tree};
use rustix::fs::{AtFlags, OFlags, RenameFlags};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The most supplementary groups a caller may bring.
pub(crate) const GROUPS_MAX: usize = 32;

/// How often a create that may find a file tries again while somebody removes and makes it.
pub(crate) const TRIES: usize = 8;

/// The directory in which a name is made.
#[derive(Clone, Copy)]
pub(crate) struct In<'a> {
    pub(crate) dir: &'a Arc<Inode>,
    pub(crate) pin: &'a Pin,
}

impl Tree {
    /// A directory in which a name may be made or removed.
    pub(crate) fn directory(&self, node: Node, name: &CStr) -> Result<(Arc<Inode>, Pin)> {
        component(name)?;
        self.writable_directory(node)
    }

    pub(crate) fn writable_directory(&self, node: Node) -> Result<(Arc<Inode>, Pin)> {
        self.pause();
        self.writable()?;
        let dir = self.table.get(node)?;
        let pin = self.table.pin(&dir)?;
        Ok((dir, pin))
    }

    /// The permissions of what is no directory, without what it may not have.
    pub(crate) fn file_mode(&self, mode: u32) -> u32 {
        if self.options.nosuid { mode & !(libc::S_ISUID | libc::S_ISGID) } else { mode }
    }

    /// Opens a regular file that somebody else has made.
    ///
    /// # Errors
    /// As [`Tree::lookup`] and [`Tree::open`]; `ENOENT` is the name's alone.
    pub(crate) fn open_existing(
        &self,
        dir: &Arc<Inode>,
        pin: &Pin,
        name: &CStr,
        flags: OFlags,
        kill_priv: bool,
    ) -> Result<(Entry, Opened)> {
        let inode = match &self.mapped {
            None => self.look_up(pin.as_fd(), &dir.mount, name)?.0,
            Some(mapped) => self.lookup_mapped(mapped, dir, pin.as_fd(), name)?.0,
        };
        let opened = self.open_file(&inode, flags, kill_priv).and_then(|opened| {
            // Opening may have changed the size.
            let file = self.files.get(opened.handle)?;
            let stat = stat(file.as_fd(), c"")?;
            let attributes = self.view(inode.node, file.as_fd(), &stat)?;
            Ok((Entry { attributes, ..self.entry(&inode, &stat, &dir.mount) }, opened))
        });
        opened.inspect_err(|_| self.forget(inode.node, 1))
    }

    /// Labels and references a file that was just made and opened in `dir`.
    pub(crate) fn adopt(
        &self,
        dir: &Inode,
        fd: &OwnedFd,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Arc<Inode>, Entry)> {
        if let Some(label) = security {
            self.label(fd, label)?;
        }
        let stat = stat(fd.as_fd(), c"")?;
        let (mount, handle) = self.hold_of(&dir.mount, fd.as_fd(), &stat)?;
        // With a handle the open file is descriptor enough for as long as it is open.
        let path = match handle {
            Some(_) => None,
            None => Some(open_anew(self.proc_self_fd.as_fd(), fd.as_fd(), OFlags::PATH)?),
        };
        let hold = Hold { path, handle, verified: true };
        let inode = self.table.intern(Key::of(&stat), Kind::of(&stat), &mount, hold)?;
        let entry = self.entry(&inode, &stat, &dir.mount);
        Ok((inode, entry))
    }
}

/// Removes what was just made. The first error is the one to report.
pub(crate) fn undo(dir: &Pin, name: &CStr, flags: AtFlags) {
    if let Err(error) = rustix::fs::unlinkat(dir, name, flags) {
        tracing::debug!(%error, ?name, "a new file that could not be given out could not be removed either");
    }
}

/// Moves a name on the host.
pub(crate) fn rename(from: &Pin, name: &CStr, to: &Pin, new_name: &CStr, flags: RenameFlags) -> Result<()> {
    if flags.is_empty() {
        // Not every file system knows the call with flags.
        rustix::fs::renameat(from, name, to, new_name)
    } else {
        rustix::fs::renameat_with(from, name, to, new_name, flags)
    }
}
