//! The nodes of a tree that goes on in another program.

use super::{SHARDS, Table};
use crate::file::OpenFile;
use crate::handle::FileHandle;
use crate::handover::bytes::{self, Pieces};
use crate::handover::descriptors::Outgoing;
use crate::handover::error::{AdoptError, NotHandedOver};
use crate::handover::form::NodeForm;
use crate::ids::{Node, ROOT};
use crate::mount::Mount;
use crate::node::{Held, Inode, Slot};
use crate::share::Place;
use crate::stat::{Key, Kind};
use crate::sync::{lock, read, write};
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What most nodes take in bytes.
const NODE_BYTES: usize = 48;

impl Table {
    /// Every node, as bytes, the root first, and how many they are; the next one's number.
    ///
    /// # Errors
    /// It cannot be written down.
    pub(crate) fn hand_over(&self, out: &mut Outgoing) -> Result<(Pieces, usize, Node), NotHandedOver> {
        let mut pieces = vec![Vec::new()];
        let mut count = 0;
        if let Ok(root) = self.get(ROOT) {
            bytes::write(&self.node_form(&root, out), &mut pieces[0])?;
            count += 1;
        }
        for shard in &self.nodes {
            // Identities are locked before nodes, so not now.
            let inodes: Vec<Arc<Inode>> = read(&shard.nodes).values().cloned().collect();
            let mut piece = Vec::with_capacity(inodes.len() * NODE_BYTES);
            for inode in inodes.iter().filter(|inode| inode.node != ROOT) {
                bytes::write(&self.node_form(inode, out), &mut piece)?;
                count += 1;
            }
            pieces.push(piece);
        }
        Ok((pieces, count, self.next.load(Ordering::Relaxed)))
    }

    /// One node.
    pub(crate) fn node_form(&self, inode: &Inode, out: &mut Outgoing) -> NodeForm {
        let (path, file) = {
            let slot = lock(&inode.slot);
            (slot.held.clone(), slot.read.clone())
        };
        NodeForm {
            node: inode.node,
            ino: inode.key.ino,
            mount: out.mount(&inode.mount),
            kind: inode.kind.mode(),
            handle: inode.handle.as_ref().map(FileHandle::to_parts),
            references: inode.references.load(Ordering::Relaxed),
            verified: inode.verified.load(Ordering::Relaxed),
            current: !inode.displaced.load(Ordering::Relaxed),
            path: path.map(|held| out.place(held)),
            read: file.map(|file| {
                let flags = file.flags().cast_unsigned();
                (out.place(file), flags)
            }),
        }
    }

    /// Makes room for so many nodes at once.
    pub(crate) fn expect(&self, nodes: usize) {
        let of_each = nodes / SHARDS;
        for (shard, identities) in self.nodes.iter().zip(&self.identities) {
            write(&shard.nodes).reserve(of_each + 1);
            // Keys are spread by chance: some shards have a little more.
            write(&identities.0).reserve(of_each + of_each / 16);
        }
    }

    /// Makes a node again that another program has handed over; the root is there already.
    ///
    /// # Errors
    /// A number that is taken.
    pub(crate) fn adopt(
        &self,
        form: &NodeForm,
        mount: Arc<Mount>,
        path: Option<OwnedFd>,
    ) -> Result<Arc<Inode>, AdoptError> {
        let inode = self.node_again(form, mount, path);
        match write(&self.shard(form.node).nodes).entry(form.node) {
            Entry::Vacant(place) => place.insert(Arc::clone(&inode)),
            // The root is there, too.
            Entry::Occupied(_) => return Err(AdoptError::Twice(form.node)),
        };
        let permanent = inode.handle.is_none();
        let listed = {
            let mut slot = lock(&inode.slot);
            slot.listed = slot.held.is_some() && !permanent;
            slot.listed
        };
        if form.current {
            write(self.identity(&inode.key)).insert(inode.key, Arc::clone(&inode));
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if permanent {
            self.permanent.fetch_add(1, Ordering::Relaxed);
        }
        if listed {
            self.list(&inode);
        }
        Ok(inode)
    }

    /// The node as it was, and not in the table.
    pub(crate) fn node_again(&self, form: &NodeForm, mount: Arc<Mount>, path: Option<OwnedFd>) -> Arc<Inode> {
        let held = path.map(|fd| Held::new(fd, self.place_anyway(), Kind::from_mode(form.kind)));
        Arc::new(Inode {
            node: form.node,
            key: Key { ino: form.ino, mount: mount.key() },
            kind: Kind::from_mode(form.kind),
            mount,
            handle: form.handle.as_ref().map(|(kind, bytes)| FileHandle::again(*kind, bytes)),
            references: AtomicU64::new(form.references),
            used: AtomicBool::new(false),
            verified: AtomicBool::new(form.verified),
            displaced: AtomicBool::new(!form.current),
            gone: AtomicBool::new(false),
            slot: Mutex::new(Slot { held, ..Slot::default() }),
        })
    }

    /// The node was opened for reading by another program.
    pub(crate) fn adopt_read(&self, inode: &Inode, open: impl FnOnce(Place) -> Arc<OpenFile>) {
        let file = open(self.place_anyway());
        let mut slot = lock(&inode.slot);
        slot.read = Some(file);
        let listed = std::mem::replace(&mut slot.listed, true);
        drop(slot);
        if !listed {
            self.list(inode);
        }
    }

    /// No number below this one is given to a node.
    pub(crate) fn go_on_from(&self, next: Node) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }
}
