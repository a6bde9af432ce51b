//! Files and directories that a long call is changing.
//!
//! The kernel holds an inode's lock while it truncates a file or allocates and frees parts of it, for seconds if there is much to
//! do; a directory's while it looks whether one in it is empty, or waits there for the lock of a file that loses a name. Whatever else
//! needs that lock waits: a write, a change of the mode or of an extended attribute, a name that comes, goes, or is looked up.
//! A thread that serves others asks here first, and leaves such a call to where the long one is.

use crate::error::Result;
use crate::file::Handle;
use crate::stat::{Key, component, stat};
use crate::sync::{Numbers, lock};
use crate::tree::{Node, Tree};
use rustix::fs::Statx;
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What is being changed is not known: perhaps everything. No node's number.
const ANY: Node = 0;

/// The nodes that are being changed, and by how many calls: no more than requests wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    nodes: Mutex<HashMap<Node, usize, Numbers>>,
    count: AtomicUsize,
}

impl Changes {
    #[inline]
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn has(&self, node: Node) -> bool {
        let nodes = lock(&self.nodes);
        nodes.contains_key(&node) || nodes.contains_key(&ANY)
    }
}

/// Files are being changed until this is dropped.
#[derive(Debug)]
pub struct Changing {
    changes: Arc<Changes>,
    nodes: Vec<Node>,
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut all = lock(&self.changes.nodes);
        for node in &self.nodes {
            if let Some(calls) = all.get_mut(node) {
                *calls -= 1;
                if *calls == 0 {
                    all.remove(node);
                }
            }
        }
        self.changes.count.store(all.len(), Ordering::Relaxed);
    }
}

impl Tree {
    /// A long call is about to change these.
    #[must_use]
    pub fn change(&self, nodes: Vec<Node>) -> Changing {
        let mut all = lock(&self.changes.nodes);
        nodes.iter().for_each(|node| *all.entry(*node).or_default() += 1);
        self.changes.count.store(all.len(), Ordering::Relaxed);
        drop(all);
        Changing { changes: Arc::clone(&self.changes), nodes }
    }

    /// Whether any file is being changed.
    #[must_use]
    #[inline]
    pub fn changes_any(&self) -> bool {
        self.changes.any()
    }

    /// Whether a file is being changed, and who needs its lock would wait. No system call.
    #[must_use]
    #[inline]
    pub fn is_changing(&self, node: Node) -> bool {
        self.changes.any() && self.changes.has(node)
    }

    /// Whether who looks a name up in a directory, or makes or removes one, would wait. No system call. Where owners and modes are
    /// records, a long call may have the locks of any.
    #[must_use]
    #[inline]
    pub fn names_are_changing(&self, dir: Node) -> bool {
        self.changes.any() && (self.mapped.is_some() || self.changes.has(dir))
    }

    /// Whether who looks at any node would wait, for a long call that has the locks of records. No system call.
    #[must_use]
    #[inline]
    pub fn records_are_changing(&self) -> bool {
        self.changes.any() && self.mapped.is_some()
    }

    /// Whether an open file is being changed, whatever node a client names with it. No system call.
    #[must_use]
    #[inline]
    pub fn file_is_changing(&self, handle: Handle) -> bool {
        self.changes.any() && self.node_opened(handle).is_some_and(|node| self.changes.has(node))
    }

    /// What was opened as `handle`.
    #[must_use]
    pub fn node_opened(&self, handle: Handle) -> Option<Node> {
        self.files.get(handle).ok().map(|file| file.node())
    }

    /// What a long call may change that is called `name` in `parent`, if there is such a thing and the client knows it. One system
    /// call, unless that would wait: then anything may be.
    #[must_use]
    pub fn node_by_name(&self, parent: Node, name: &CStr) -> Option<Node> {
        if self.names_are_changing(parent) {
            return Some(ANY);
        }
        self.table.node_of(&Key::of(&self.look(parent, name).ok()?))
    }

    /// Looks at what may be changed by this name. One system call.
    pub(crate) fn look(&self, parent: Node, name: &CStr) -> Result<Statx> {
        component(name)?;
        self.writable()?;
        let dir = self.table.pin(&self.table.get(parent)?)?;
        stat(dir.as_fd(), name)
    }

    /// As [`Tree::is_changing`], for what was looked at.
    pub(crate) fn is_found_changing(&self, found: &Statx) -> bool {
        self.changes.any() && self.table.node_of(&Key::of(found)).is_some_and(|node| self.changes.has(node))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, ROOT, Security, Source, Tree};

    #[test]
    fn what_is_changed_is_known_by_node_and_name_until_all_have_ended() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            std::fs::write(directory.path().join(name), "text").unwrap();
        }
        std::fs::hard_link(directory.path().join("one"), directory.path().join("other")).unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let one = tree.lookup(ROOT, c"one").unwrap().node;
        let two = tree.lookup(ROOT, c"two").unwrap().node;
        assert!(!tree.changes_any());
        let (first, second) = (tree.change(vec![one]), tree.change(vec![one, two]));
        for name in [c"one", c"other", c"two"] {
            assert!(tree.removal_is_long(ROOT, name), "{name:?}");
        }
        assert_eq!((tree.node_by_name(ROOT, c"other"), tree.node_by_name(ROOT, c"missing")), (Some(one), None));
        assert!(!tree.removal_is_long(ROOT, c"missing") && !tree.is_changing(ROOT));
        drop(second);
        assert!(tree.is_changing(one) && tree.truncation_is_long(one, None, 10) && !tree.is_changing(two));
        drop(first);
        assert!(!tree.changes_any() && !tree.is_changing(one) && !tree.removal_is_long(ROOT, c"one"));
    }

    #[test]
    fn names_of_a_directory_that_is_being_changed_are_not_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "text").unwrap();
        for security in [Security::Passthrough, Security::MappedFile { fmode: 0o600, dmode: 0o700 }] {
            let options = Options { security, ..Options::default() };
            let tree = Tree::new(Source::Path(directory.path().to_owned()), options).unwrap();
            let file = tree.lookup(ROOT, c"file").unwrap().node;
            let mapped = security != Security::Passthrough;
            assert!(!tree.names_are_changing(ROOT) && !tree.records_are_changing());
            let changing = tree.change(vec![file]);
            assert_eq!((tree.names_are_changing(ROOT), tree.records_are_changing()), (mapped, mapped));
            drop(changing);
            let changing = tree.change(vec![ROOT]);
            assert!(tree.names_are_changing(ROOT) && tree.removal_is_long(ROOT, c"missing"));
            assert!(!tree.is_changing(file));
            // What is changed by a name there may be anything.
            let unknown = tree.change(tree.node_by_name(ROOT, c"missing").into_iter().collect());
            assert!(tree.is_changing(file));
            drop((changing, unknown));
            assert!(!tree.changes_any() && !tree.is_changing(file));
        }
    }
}
