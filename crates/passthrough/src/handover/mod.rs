//! A tree with its client goes on in another program: which nodes the client knows, what it has open, what it has locked.
//!
//! | file | concern |
//! |---|---|
//! | `form` | what passes |
//! | `bytes` | its bytes, which are written and read piece by piece |
//! | `descriptors` | the open files among it |
//! | `error` | why it does not pass |
//! | `mount::handover`, `file::handover`, `table::handover`, `lock::owners::handover`, `mapped::handover`, `dir` | each part, there and back |
//!
//! Descriptors stay what they are: nothing is opened anew, so that a file without a name is still there, a directory is read
//! on from where it was, and locks, which belong to open file descriptions, are never let go. What a program finds out again
//! by itself (mappings, sizes) is left behind. Options are not part of it: whoever describes the tree has them.

pub(crate) mod bytes;
pub(crate) mod descriptors;
pub(crate) mod error;
pub(crate) mod form;

pub use descriptors::Descriptor;
pub use error::{AdoptError, NotHandedOver};

use crate::dir::Stream;
use crate::file::Flock;
use crate::lock::{LockKind, Place};
use crate::mapped::Known;
use crate::source::open_proc;
use crate::sync::lock;
use crate::{Handle, OpenFile, Options, ROOT, Source, Tree};
use bytes::{Pieces, Reader};
use descriptors::{Incoming, Outgoing};
use form::{FileForm, MountForm, NodeForm, OwnerForm, RecordForm};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The version of the form in which a tree is handed over. Those before it are understood.
pub const FORM: u32 = 3;

/// The most nodes that are handed over: as many as a tree may have unless its options allow more. They are some 50 bytes each,
/// most of it the file handle, and a pause of some seconds.
pub const NODES_MAX: usize = 16 << 20;

/// A tree with its client, on its way out. The tree goes on as before if nothing comes of it; until then it must not be used.
pub struct Handed {
    /// All but the descriptors, in version [`FORM`] of their form: pieces that belong behind each other.
    pub bytes: Vec<Vec<u8>>,
    /// What `bytes` names by its place here. They are the tree's own.
    pub descriptors: Vec<Descriptor>,
}

/// What was handed over, in the program that goes on with it.
#[derive(Debug, Default)]
pub struct Adopted {
    /// As in [`Handed`], in one piece.
    pub bytes: Vec<u8>,
    /// As in [`Handed`].
    pub descriptors: Vec<OwnedFd>,
}

impl Tree {
    /// Whether it could be handed over as it is now, without stopping anything.
    ///
    /// # Errors
    /// What would stay behind.
    pub fn may_be_handed_over(&self) -> Result<(), NotHandedOver> {
        match self.table.len() {
            nodes if nodes > NODES_MAX => Err(NotHandedOver::Nodes { nodes }),
            _ => Ok(()),
        }
    }

    /// Hands it over with all that its client knows and has. No operation is under way, and nobody waits for a lock.
    ///
    /// # Errors
    /// What would stay behind.
    pub fn hand_over(&self) -> Result<Handed, NotHandedOver> {
        self.may_be_handed_over()?;
        let mut out = Outgoing::default();
        let (nodes, count, next_node) = self.table.hand_over(&mut out)?;
        let (files, next_handle) = self.files.hand_over(&mut out);
        let owners = self.locks.hand_over(&mut out);
        let (records, strays) = self.known().map(|known| known.hand_over(&self.table, &mut out)).unwrap_or_default();
        let (mounts, descriptors) = out.into_parts();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        bytes::write(&(&self.label, mounts, count), &mut first)?;
        let handles = form::handles_of(&owners);
        bytes::write(
            &(next_node, files, next_handle, owners, records, strays, handles, self.files.flocks()),
            &mut last,
        )?;
        let bytes: Pieces = std::iter::once(first).chain(nodes).chain([last]).collect();
        Ok(Handed { bytes, descriptors })
    }

    /// Goes on with a tree that was handed over. `options` are those that it had.
    ///
    /// # Errors
    /// A state that contradicts itself, and what [`Tree::new`] answers. The client has lost everything then.
    pub fn handed_over(options: Options, adopted: Adopted) -> Result<Tree, AdoptError> {
        let mut form = Reader::new(&adopted.bytes);
        let mut incoming = Incoming::new(adopted.descriptors);
        let label: PathBuf = form.next()?;
        let mounts: Vec<MountForm> = form.next()?;
        let nodes = form.next()?;
        form.has_room_for(nodes, form::NODE_BYTES_MIN)?;
        let root = form.find(nodes, |form| form.node == ROOT)?.and_then(|form| form.path);
        let root = incoming.take(root.ok_or(AdoptError::NoRoot)?)?;
        let proc_self_fd = open_proc(&label)?;
        let tree = Tree::new(Source::Opened { root, proc_self_fd, label }, options)?;
        for mount in &mounts {
            let mount = tree.mounts.adopt(mount, &mut incoming)?;
            incoming.add_mount(mount);
        }
        tree.table.expect(nodes);
        // What its client knows may be among them.
        tree.group_bits.store(true, std::sync::atomic::Ordering::Relaxed);
        for _ in 0..nodes {
            tree.adopt_node(&form.next()?, &mut incoming)?;
        }
        let next_node = form.next()?;
        let files: Vec<FileForm> = form.next()?;
        let next_handle = form.next()?;
        let mut owners: Vec<OwnerForm> = form.next()?;
        let (records, strays): (Vec<RecordForm>, Vec<NodeForm>) = form.next()?;
        // Form 1 ends here.
        if !form.is_at_end() {
            form::give_handles(&mut owners, &form.next::<Vec<u64>>()?)?;
        }
        // And form 2 here.
        let flocks: Option<Vec<(Handle, bool)>> = if form.is_at_end() { None } else { Some(form.next()?) };
        form.end()?;
        let flocks: Option<HashMap<_, _>> = flocks.map(|flocks| flocks.into_iter().collect());
        for file in files {
            let flock = flocks.as_ref().map(|flocks| flocks.get(&file.handle).copied());
            tree.adopt_file(&file, flock, &mut incoming)?;
        }
        for owner in owners {
            let file = incoming.take(owner.place)?;
            tree.locks.adopt(&owner, file).map_err(AdoptError::Locked)?;
        }
        if let Some(known) = tree.known() {
            known.adopt(records, &strays, &tree.table, &mut incoming)?;
        }
        // Numbers that were given away are not given away again.
        tree.table.go_on_from(next_node);
        tree.files.go_on_from(next_handle);
        Ok(tree)
    }

    /// What is known of records beside names.
    fn known(&self) -> Option<&Known> {
        self.mapped.as_ref().and_then(|mapped| mapped.files.as_ref())
    }

    /// Makes a node again that another program has handed over.
    fn adopt_node(&self, form: &NodeForm, incoming: &mut Incoming) -> Result<(), AdoptError> {
        let mount = incoming.mount(form.mount)?;
        let inode = if form.node == ROOT {
            // Its descriptor was taken first of all.
            self.table.get(ROOT).map_err(|_| AdoptError::NoRoot)?
        } else {
            let path = form.path.map(|place| incoming.take(place)).transpose()?;
            self.table.adopt(form, mount, path)?
        };
        if let Some((place, flags)) = form.read {
            let (fd, flags) = (incoming.take(place)?, OFlags::from_bits_retain(flags));
            self.table.adopt_read(&inode, |place| self.opened(&inode, fd, flags, place));
        }
        Ok(())
    }

    /// Makes a file open again that another program has handed over. The client may have forgotten its node. `flock`: the one that
    /// it has, and whether that is exclusive, if somebody wrote it down.
    fn adopt_file(
        &self,
        form: &FileForm,
        flock: Option<Option<bool>>,
        incoming: &mut Incoming,
    ) -> Result<(), AdoptError> {
        let (fd, mount) = (incoming.take(form.place)?, incoming.mount(form.mount)?);
        let flags = OFlags::from_bits_retain(form.flags);
        let inode = self.table.get(form.node).ok();
        let stream = form.listing.as_ref().map(|listing| Stream::again(listing, &self.pieces));
        let reader = inode.as_ref().and_then(|inode| self.reader(inode, flags));
        let place = self.files.room_anyway();
        let at = Place::of(&fd).ok();
        let file = OpenFile::new((fd, place), (form.node, at, flags), mount, stream, reader);
        // Where nobody wrote down whether it has one it counts as if, until it is unlocked or closed.
        if flock != Some(None) {
            let kind = flock.flatten().map(LockKind::exclusive);
            *lock(&file.flock) = Flock { joined: at.map(|place| self.flocks.join_anyway(place)), kind };
        }
        // Nor whether the file was emptied by it.
        if file.is_writable() {
            file.empties();
        }
        if let Some(inode) = inode {
            lock(&inode.slot).opened(&file);
        }
        if self.files.adopt(form.handle, file) { Ok(()) } else { Err(AdoptError::Twice(form.node)) }
    }
}

#[cfg(test)]
mod tests;
