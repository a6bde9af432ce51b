//! What keeps the clients of a read-only tree away from each other.

use super::owners::Locks;
use crate::ids::Node;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// What the clients of a read-only tree hold against each other.
#[derive(Debug)]
pub(crate) struct Exclusive {
    /// Without a name and without content.
    pub(crate) file: OwnedFd,
    pub(crate) locks: Locks,
    /// Who waits in both places, and how often.
    pub(crate) waits: Mutex<BTreeMap<(Node, u64), usize>>,
}

impl Exclusive {
    /// How many owners there are: as many descriptors.
    pub(crate) fn owners(&self) -> usize {
        self.locks.owners()
    }

    /// Drops every lock and cancels every wait.
    pub(crate) fn clear(&self) {
        self.locks.clear();
    }

    /// Whether `owner` holds something on `node`, or waits for it.
    pub(crate) fn knows(&self, node: Node, owner: u64) -> bool {
        self.locks.knows(node, owner)
    }
}
