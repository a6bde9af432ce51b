//! Where on the host the nodes of a tree are now, as paths from its root.
//!
//! The kernel knows: a descriptor's link in `/proc/self/fd` is its path, wherever somebody has moved it. Directories are asked for one by one;
//! most files are found by reading the directories that the client knows, one of which it had them from, at a tenth of the cost. Others are
//! asked for as directories are, and what the kernel does not know (a file that was opened by its handle after its name left the
//! kernel's memory) is looked for in all of the directories.

use crate::handle::FileHandle;
use crate::node::{Inode, Pin};
use crate::stat::{Key, stat};
use crate::{Result, Tree};
use rustix::fs::{OFlags, RawDir, readlinkat};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// So many entries of a directory are read for nothing, and so many more for each that was wanted: to open a node by its handle and to
/// ask for its path takes as long as ten entries.
const CREDIT: usize = 128;
const CREDIT_OF_ONE: usize = 8;

/// How much of a directory is read at once.
const LISTING_BYTES: usize = 8 << 10;

/// A path from the root, without a slash in front; of the root itself it is empty.
pub(super) type Path = Vec<u8>;

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At(Path),
    /// It has no name.
    Nameless,
    /// Nobody could tell.
    Unknown,
    /// It cannot be looked at.
    Failed(Errno),
}

/// Nodes that are looked for.
struct Search<'a> {
    inodes: &'a [Arc<Inode>],
    /// By their inode numbers, the places of those among `inodes` that were not found yet.
    wanted: HashMap<u64, Vec<usize>>,
    found: Vec<Found>,
}

/// A node that was found in a directory.
pub(super) struct Found {
    /// Its place among those that were looked for.
    pub(super) at: usize,
    pub(super) path: Path,
    /// Its file handle, if it has one.
    pub(super) handle: Option<FileHandle>,
}

/// Finds out where nodes are.
pub(super) struct Places<'a> {
    tree: &'a Tree,
    root: Pin,
    /// The root's own path with a slash behind it, unless it has none that can be seen.
    above: Option<Path>,
}

impl<'a> Places<'a> {
    /// # Errors
    /// The root cannot be looked at.
    pub(super) fn new(tree: &'a Tree) -> Result<Places<'a>> {
        let root = tree.table.pin(&tree.table.get(crate::ROOT)?)?;
        let mut places = Places { tree, root, above: None };
        let mut above = places.link(places.root.as_fd()).ok();
        if let Some(path) = &mut above
            && path.last() != Some(&b'/')
        {
            path.push(b'/');
        }
        places.above = above;
        Ok(places)
    }

    fn link(&self, fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
        Ok(readlinkat(&self.tree.proc_self_fd, DecInt::from_fd(fd), Vec::new())?.into_bytes())
    }

    /// What is at a path.
    pub(super) fn key_at(&self, path: &[u8]) -> Result<Key> {
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        stat(self.root.as_fd(), &path).map(|stat| Key::of(&stat))
    }

    /// Where a node is, of which this is a descriptor, if it `is_certain` that it is.
    pub(super) fn of(&self, inode: &Inode, fd: BorrowedFd<'_>, is_certain: bool) -> Place {
        let link = self.link(fd);
        let path = link.ok().and_then(|link| Some(link.strip_prefix(self.above.as_deref()?)?.to_vec()));
        let path = path.filter(|path| !path.is_empty() && !path.starts_with(b"/"));
        // The kernel's word is what the path was when it was looked up: something may be mounted over it since, it may lead out of the directory
        // by now, and a name may end as those do that are gone.
        if let Some(path) = path.filter(|path| self.key_at(path) == Ok(inode.key)) {
            return Place::At(path);
        }
        match stat(fd, c"") {
            Ok(stat) if !is_certain && Key::of(&stat) != inode.key => Place::Failed(Errno::STALE),
            Ok(stat) if stat.stx_nlink == 0 => Place::Nameless,
            Ok(_) => Place::Unknown,
            Err(error) => Place::Failed(error),
        }
    }

    /// Looks in the root and in these directories for those of `inodes` that are `wanted`, as long as `is_wanted` says so. `thriftily`: no
    /// further in a directory than it pays, as there are other ways to find them.
    pub(super) fn search(
        &self,
        dirs: &[(Arc<Inode>, Path)],
        inodes: &[Arc<Inode>],
        (wanted, thriftily): (impl Iterator<Item = usize>, bool),
        is_wanted: &dyn Fn() -> bool,
    ) -> Option<Vec<Found>> {
        let mut search = Search { inodes, wanted: HashMap::new(), found: Vec::new() };
        for at in wanted {
            if let Some(inode) = inodes.get(at) {
                search.wanted.entry(inode.key.ino).or_default().push(at);
            }
        }
        let root = self.tree.table.get(crate::ROOT).map(|root| (root, Path::new()));
        for (dir, path) in root.iter().chain(dirs) {
            if search.wanted.is_empty() {
                break;
            }
            if !is_wanted() {
                return None;
            }
            // What cannot be read is not where they are found.
            if self.search_in(dir, path, &mut search, (thriftily, is_wanted)) == Err(Errno::INTR) {
                return None;
            }
        }
        Some(search.found)
    }

    /// # Errors
    /// `EINTR` when it is not wanted any more.
    fn search_in(
        &self,
        dir: &Arc<Inode>,
        path: &[u8],
        search: &mut Search<'_>,
        (thriftily, is_wanted): (bool, &dyn Fn() -> bool),
    ) -> Result<()> {
        if !dir.kind.is_directory() {
            return Ok(());
        }
        let dir = self.tree.open_node(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut credit = CREDIT;
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
        loop {
            if entries.is_buffer_empty() && !is_wanted() {
                return Err(Errno::INTR);
            }
            let Some(entry) = entries.next() else { return Ok(()) };
            let entry = entry?;
            let name = entry.file_name();
            if thriftily {
                credit = credit.saturating_sub(1);
                if credit == 0 {
                    return Ok(());
                }
            }
            let Some(candidates) = search.wanted.get_mut(&entry.ino()).filter(|_| name != c"." && name != c"..") else {
                continue;
            };
            let handle = FileHandle::of(dir.as_fd(), name).ok();
            let is_it = |at: &usize| search.inodes.get(*at).is_some_and(|inode| is(inode, &dir, name, handle.as_ref()));
            let Some(which) = candidates.iter().position(is_it) else { continue };
            let at = candidates.swap_remove(which);
            if candidates.is_empty() {
                search.wanted.remove(&entry.ino());
            }
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            search.found.push(Found { at, path: [path, slash, name.to_bytes()].concat(), handle });
            credit += CREDIT_OF_ONE;
        }
    }
}

/// Whether a name in a directory, where this handle was found, is this inode: a number alone may be another file's by now.
fn is(inode: &Inode, dir: &OwnedFd, name: &CStr, handle: Option<&FileHandle>) -> bool {
    match (&inode.handle, handle) {
        (Some(own), Some(found)) => own == found,
        // It is held open, so its number is its own.
        (None, _) => stat(dir.as_fd(), name).is_ok_and(|stat| Key::of(&stat) == inode.key),
        (Some(_), None) => false,
    }
}
