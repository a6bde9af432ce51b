//! Files that a long call is changing.
//!
//! The kernel holds an inode's lock while it truncates a file or allocates and frees parts of it, for seconds if there is much to
//! do. Whatever else needs that lock waits: a write, a change of the mode or of an extended attribute, a name that comes or goes.
//! A thread that serves others asks here first, and leaves such a call to where the long one is.

use crate::stat::{Key, stat};
use crate::sync::lock;
use crate::tree::{Node, Tree};
use rustix::fs::Statx;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The nodes that are being changed, each as often as calls change it: no more than requests wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    nodes: Mutex<Vec<Node>>,
    count: AtomicUsize,
}

impl Changes {
    #[inline]
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn has(&self, node: Node) -> bool {
        lock(&self.nodes).contains(&node)
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
            if let Some(place) = all.iter().position(|other| other == node) {
                all.swap_remove(place);
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
        all.extend_from_slice(&nodes);
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

    /// Whether what is called `name` in `parent` is being changed. One system call while anything is.
    #[must_use]
    pub fn name_is_changing(&self, parent: Node, name: &CStr) -> bool {
        self.changes.any() && self.node_by_name(parent, name).is_some_and(|node| self.changes.has(node))
    }

    /// What the client knows the file of this name by, if it does.
    #[must_use]
    pub fn node_by_name(&self, parent: Node, name: &CStr) -> Option<Node> {
        let (_, dir) = self.directory(parent, name).ok()?;
        self.table.node_of(&Key::of(&stat(dir.as_fd(), name).ok()?))
    }

    /// As [`Tree::name_is_changing`], for what was looked at already.
    pub(crate) fn is_found_changing(&self, found: &Statx) -> bool {
        self.changes.any() && self.table.node_of(&Key::of(found)).is_some_and(|node| self.changes.has(node))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, ROOT, Source, Tree};

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
            assert!(tree.name_is_changing(ROOT, name) && tree.removal_is_long(ROOT, name), "{name:?}");
        }
        assert!(!tree.name_is_changing(ROOT, c"missing") && !tree.is_changing(ROOT));
        drop(second);
        assert!(tree.is_changing(one) && tree.truncation_is_long(one, None, 10) && !tree.is_changing(two));
        drop(first);
        assert!(!tree.changes_any() && !tree.is_changing(one) && !tree.name_is_changing(ROOT, c"one"));
    }
}
