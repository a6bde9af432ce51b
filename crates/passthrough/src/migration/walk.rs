//! From the root to where nodes are, by names alone: no link is followed, and nothing above the root is in reach.

use super::form::Way;
use crate::handle::FileHandle;
use crate::handover::form::NodeForm;
use crate::node::{Inode, Pin};
use crate::stat::{Key, Kind, open_path, stat};
use crate::{ROOT, Result, Tree};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A name on the way.
struct Level {
    name: CString,
    /// Open when something below was looked for.
    fd: Option<OwnedFd>,
    /// The node there, if one was found.
    inode: Option<Arc<Inode>>,
}

/// Where we are: the names from the root.
pub(super) struct Walk<'a> {
    tree: &'a Tree,
    root: (Arc<Inode>, Pin),
    levels: Vec<Level>,
}

impl<'a> Walk<'a> {
    /// At the root.
    pub(super) fn new(tree: &'a Tree) -> Result<Walk<'a>> {
        let root = tree.table.get(ROOT)?;
        let pin = tree.table.pin(&root)?;
        Ok(Walk { tree, root: (root, pin), levels: Vec::new() })
    }

    /// Goes the way. What is there was not looked at.
    ///
    /// # Errors
    /// `EINVAL` for what is no way, and one by names that the client does not see.
    pub(super) fn go(&mut self, way: &Way) -> Result<()> {
        let names = way.names(self.levels.len())?;
        self.levels.truncate(way.kept);
        self.levels.extend(names.into_iter().map(|name| Level { name, fd: None, inode: None }));
        let Some(mapped) = &self.tree.mapped else { return Ok(()) };
        self.levels.iter().try_for_each(|level| mapped.existing(&level.name))
    }

    /// Where we are, for people: the last so many characters.
    pub(super) fn path(&self, most: usize) -> String {
        let mut path = String::new();
        for level in self.levels.iter().rev() {
            let slash = if path.is_empty() { "" } else { "/" };
            path = format!("{}{slash}{path}", level.name.to_string_lossy());
            if path.chars().count() > most {
                let all = path.chars().count();
                return format!(
                    "\"…{}\"",
                    path.chars().skip(all - most).flat_map(char::escape_debug).collect::<String>()
                );
            }
        }
        format!("{path:?}")
    }

    /// The directory that has the last name, and that name; `None` at the root.
    pub(super) fn last(&mut self) -> Result<Option<(BorrowedFd<'_>, CString)>> {
        let Some(above) = self.levels.len().checked_sub(1) else { return Ok(None) };
        let name = self.levels.get(above).map(|level| level.name.clone()).unwrap_or_default();
        self.open(above).map(|dir| Some((dir, name)))
    }

    /// What is here, open.
    pub(super) fn here(&mut self) -> Result<BorrowedFd<'_>> {
        self.open(self.levels.len())
    }

    /// The first so many levels, open: the last of them.
    fn open(&mut self, depth: usize) -> Result<BorrowedFd<'_>> {
        for at in 0..depth {
            let (before, rest) = self.levels.split_at_mut(at);
            let above = before.last().and_then(|level| level.fd.as_ref()).map_or(self.root.1.as_fd(), AsFd::as_fd);
            if let Some(level) = rest.first_mut().filter(|level| level.fd.is_none()) {
                level.fd = Some(open_path(above, &level.name)?);
            }
        }
        let last = depth.checked_sub(1).and_then(|at| self.levels.get(at)).and_then(|level| level.fd.as_ref());
        Ok(last.map_or(self.root.1.as_fd(), AsFd::as_fd))
    }

    /// A node was found here.
    pub(super) fn found(&mut self, inode: &Arc<Inode>) {
        if let Some(level) = self.levels.last_mut() {
            level.inode = Some(Arc::clone(inode));
        }
    }

    /// The inode of the directory above, whether or not the client knows it.
    pub(super) fn above(&mut self) -> Result<Arc<Inode>> {
        let Some(at) = self.levels.len().checked_sub(2) else { return Ok(Arc::clone(&self.root.0)) };
        if let Some(known) = self.levels.get(at).and_then(|level| level.inode.clone()) {
            return Ok(known);
        }
        let fd = self.open(at + 1)?.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        let seen = stat(fd.as_fd(), c"")?;
        let (mount, handle) = self.tree.hold_of(&self.root.0.mount, fd.as_fd(), &seen)?;
        let stray = NodeForm {
            // No client was told of it.
            node: self.tree.table.take_number(),
            ino: Key::of(&seen).ino,
            mount: 0,
            kind: Kind::of(&seen).mode(),
            handle: handle.as_ref().map(FileHandle::to_parts),
            references: 0,
            verified: true,
            current: false,
            path: None,
            read: None,
        };
        // One that can be had again by its handle holds nothing.
        let held = handle.is_none().then_some(fd);
        if held.is_some() && !self.tree.table.keeps_more() {
            return Err(Errno::NFILE);
        }
        let inode = self.tree.table.node_again(&stray, mount, held);
        if let Some(level) = self.levels.get_mut(at) {
            level.inode = Some(Arc::clone(&inode));
        }
        Ok(inode)
    }
}
