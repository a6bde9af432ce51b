//! What one client of an export may have, and what all of them may.

use super::bound::{Bound, Supply};
use super::fids::{FIDS_MAX, FIDS_OF_ALL_MAX};
use super::place::{PLACES_MAX, PLACES_OF_ALL_MAX, lock};
use passthrough::{Node, Tree};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most extended attributes that a client has as fids, of 64 KiB each at most, and that all have.
const VALUES_MAX: usize = 256;
const VALUES_OF_ALL_MAX: usize = 1024;

/// What there is for all clients of an export.
pub(super) struct Supplies {
    pub(super) fids: Arc<Supply>,
    pub(super) places: Arc<Supply>,
    values: Arc<Supply>,
    files: Arc<Supply>,
    lock_owners: Arc<Supply>,
    lock_ranges: Arc<Supply>,
}

impl Supplies {
    /// Of a tree, for so many clients.
    pub(super) fn new(tree: &Tree, clients: usize) -> Supplies {
        let capacity = tree.capacity();
        let supply = |max: usize| Supply::new(max, clients);
        let files = capacity.open_files.min(capacity.descriptors);
        let (places, files) = if capacity.nodes_take_descriptors && clients > 1 {
            // A place keeps a descriptor: each client is sure of some for places and of as many for open files.
            let descriptors = Supply::new(PLACES_OF_ALL_MAX.min(capacity.descriptors), clients * 2);
            (Arc::clone(&descriptors), descriptors)
        } else {
            (supply(PLACES_OF_ALL_MAX), supply(files))
        };
        Supplies {
            fids: supply(FIDS_OF_ALL_MAX),
            places,
            values: supply(VALUES_OF_ALL_MAX),
            files,
            lock_owners: supply(capacity.lock_owners),
            lock_ranges: supply(capacity.lock_ranges),
        }
    }

    pub(super) fn values(&self) -> Arc<Bound> {
        Arc::new(Bound::new(VALUES_MAX, &self.values))
    }

    pub(super) fn files(&self) -> Arc<Bound> {
        Arc::new(Bound::new(usize::MAX, &self.files))
    }

    pub(super) fn fids(&self, fids_max: usize) -> Bound {
        Bound::new(fids_max.min(FIDS_MAX), &self.fids)
    }

    pub(super) fn places(&self) -> Bound {
        Bound::new(PLACES_MAX, &self.places)
    }

    pub(super) fn locks(&self) -> Arc<LockShare> {
        let bound = |supply| Bound::new(usize::MAX, supply);
        let (owners, ranges) = (bound(&self.lock_owners), bound(&self.lock_ranges));
        Arc::new(LockShare { held: Mutex::default(), owners, ranges })
    }
}

/// The locks that a client holds, by file and owner.
pub(super) struct LockShare {
    held: Mutex<HashMap<(Node, u64), usize>>,
    owners: Bound,
    ranges: Bound,
}

impl LockShare {
    /// Whether an owner may ask for another lock.
    ///
    /// # Errors
    /// `ENOLCK` when the client has its share.
    pub(super) fn admit(&self, node: Node, owner: u64) -> Result<(), Errno> {
        let known = lock(&self.held).contains_key(&(node, owner));
        // A lock in the middle of another makes three of one.
        let room = (known || self.owners.has_room(1)) && self.ranges.has_room(2);
        if room { Ok(()) } else { Err(Errno::NOLCK) }
    }

    /// The tree has given an owner locks, or taken some away.
    pub(super) fn settle(&self, tree: &Tree, node: Node, owner: u64) {
        let mut held = lock(&self.held);
        // Asked under the lock: who comes last has seen what is.
        let after = tree.lock_ranges(node, owner);
        let before = if after > 0 { held.insert((node, owner), after) } else { held.remove(&(node, owner)) };
        match (before.is_some(), after > 0) {
            (false, true) => self.owners.take_anyway(1),
            (true, false) => self.owners.give(1),
            _ => {}
        }
        let before = before.unwrap_or(0);
        if after > before {
            self.ranges.take_anyway(after - before);
        } else {
            self.ranges.give(before - after);
        }
    }
}
