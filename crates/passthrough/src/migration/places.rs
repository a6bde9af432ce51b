//! Where on the host the nodes of a tree are now, as paths from its root.
//!
//! The kernel knows: a descriptor's link in `/proc/self/fd` is its path, wherever somebody has moved it. It does not for a file that was
//! opened by its handle after its name left the kernel's memory; such files are looked for in the directories that the client knows,
//! one of which it had them from.

use crate::node::{Inode, Pin};
use crate::stat::{Key, stat};
use crate::{Result, Tree};
use rustix::fs::{Dir, OFlags, readlinkat};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What the kernel says behind the path of what has no name.
const DELETED: &[u8] = b" (deleted)";

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

/// Nodes that are looked for, by what they are called by the caller.
struct Search {
    wanted: HashMap<Key, usize>,
    /// Their inode numbers: most names are of others.
    numbers: HashSet<u64>,
    found: Vec<(usize, Path)>,
}

/// Finds out where nodes are.
pub(super) struct Places<'a> {
    tree: &'a Tree,
    root: Pin,
    /// The root's own path with a slash behind it, unless it has none that can be seen.
    above: Option<Path>,
    /// What the kernel says is looked at once more.
    confirms: bool,
}

impl<'a> Places<'a> {
    /// # Errors
    /// The root cannot be looked at.
    pub(super) fn new(tree: &'a Tree) -> Result<Places<'a>> {
        let root = tree.table.pin(&tree.table.get(crate::ROOT)?)?;
        let confirms = tree.options.migration.confirm_paths;
        let mut places = Places { tree, root, above: None, confirms };
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
        // A name may end so.
        let is_believed = |path: &Path| is_certain && !self.confirms && !path.ends_with(DELETED);
        if let Some(path) = path.filter(|path| is_believed(path) || self.key_at(path) == Ok(inode.key)) {
            return Place::At(path);
        }
        match stat(fd, c"") {
            Ok(stat) if !is_certain && Key::of(&stat) != inode.key => Place::Failed(Errno::STALE),
            Ok(stat) if stat.stx_nlink == 0 => Place::Nameless,
            Ok(_) => Place::Unknown,
            Err(error) => Place::Failed(error),
        }
    }

    /// Looks in these directories for what is wanted. What is not found stays.
    pub(super) fn search(&self, dirs: &[(Arc<Inode>, Path)], wanted: HashMap<Key, usize>) -> Vec<(usize, Path)> {
        let mut search = Search { numbers: wanted.keys().map(|key| key.ino).collect(), wanted, found: Vec::new() };
        let root = self.tree.table.get(crate::ROOT).map(|root| (root, Path::new()));
        for (dir, path) in root.iter().chain(dirs) {
            if search.wanted.is_empty() {
                break;
            }
            // What cannot be read is not where they are found.
            let _ = self.search_in(dir, path, &mut search);
        }
        search.found
    }

    fn search_in(&self, dir: &Arc<Inode>, path: &[u8], search: &mut Search) -> Result<()> {
        if !dir.kind.is_directory() {
            return Ok(());
        }
        let dir = self.tree.open_node(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." || !search.numbers.contains(&entry.ino()) {
                continue;
            }
            let Ok(stat) = stat(dir.as_fd(), name) else { continue };
            if let Some(at) = search.wanted.remove(&Key::of(&stat)) {
                let mut path = path.to_vec();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.to_bytes());
                search.found.push((at, path));
            }
        }
        Ok(())
    }
}
