//! A tree with its client goes on in another program: which nodes the client knows, what it has open, what it has locked.
//!
//! | file | concern |
//! |---|---|
//! | `form` | what passes |
//! | `bytes` | its bytes, which are written and read piece by piece |
//! | `descriptors` | the open files among it |
//! | `table::handover`, `file::handover`, `lock::owners::handover`, `mapped::handover`, `dir`, `mount` | each part, there and back |
//!
//! Descriptors stay what they are: nothing is opened anew, so that a file without a name is still there, a directory is read
//! on from where it was, and locks, which belong to open file descriptions, are never let go. What a program finds out again
//! by itself (mappings, sizes) is left behind. Options are not part of it: whoever describes the tree has them.

pub(crate) mod bytes;
mod descriptors;
mod form;

pub use descriptors::Descriptor;
pub(crate) use descriptors::{Incoming, Outgoing};
pub(crate) use form::{FactsForm, FileForm, Listing, MountForm, NameForm, NodeForm, OwnerForm, RecordForm};

use crate::error::OpenError;
use crate::options::{Options, Source};
use crate::source::open_proc;
use crate::tree::{Node, ROOT, Tree};
use bytes::{Pieces, Reader};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The version of the form in which a tree is handed over. Those before it are understood.
pub const FORM: u32 = 2;

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

/// Why a tree is not handed over.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum NotHandedOver {
    /// its guest knows {nodes} inodes, and 16777216 at most can be handed over: let the guest drop its caches (echo 2 > /proc/sys/vm/drop_caches) and try again, or remove the export first; nodes_max bounds them
    Nodes {
        /// How many it knows.
        nodes: usize,
    },
    /// a file descriptor cannot be duplicated: {0} (check RLIMIT_NOFILE)
    Duplicate(#[from] std::io::Error),
    /// its state cannot be written down: {0}
    Form(#[from] postcard::Error),
}

/// Why a program cannot go on with a tree.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum AdoptError {
    /// the state of its tree cannot be understood: {0}
    Form(#[from] postcard::Error),
    /// the state of its tree names descriptor {0}, which is not there or was named before
    Descriptor(u32),
    /// the state of its tree names mount {0}, which is not there
    Mount(u32),
    /// the state of its tree has node {0} twice
    Twice(Node),
    /// the state of its tree has a name in node {0}, which is not there, or one that is no name
    Name(Node),
    /// a file with locks cannot be looked at: {0}
    Locked(rustix::io::Errno),
    /// the state of its tree has no root
    NoRoot,
    /// {0}
    Open(#[from] OpenError),
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
    /// What would stay behind, and a lack of descriptors.
    pub fn hand_over(&self) -> Result<Handed, NotHandedOver> {
        self.may_be_handed_over()?;
        let mut out = Outgoing::default();
        let (nodes, count, next_node) = self.table.hand_over(&mut out)?;
        let (files, next_handle) = self.files.hand_over(&mut out)?;
        let owners = self.locks.hand_over(&mut out);
        let (records, strays) = self.hand_records_over(&mut out)?;
        let (mounts, descriptors) = out.into_parts();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        bytes::write(&(&self.label, mounts, count), &mut first)?;
        let handles = form::handles_of(&owners);
        bytes::write(&(next_node, files, next_handle, owners, records, strays, handles), &mut last)?;
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
        let nodes = form.count()?;
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
        form.end()?;
        for file in files {
            tree.adopt_file(&file, &mut incoming)?;
        }
        for owner in owners {
            let file = incoming.take(owner.place)?;
            tree.locks.adopt(&owner, file).map_err(AdoptError::Locked)?;
        }
        tree.adopt_records(records, &strays, &mut incoming)?;
        // Numbers that were given away are not given away again.
        tree.table.go_on_from(next_node);
        tree.files.go_on_from(next_handle);
        Ok(tree)
    }
}

#[cfg(test)]
mod tests;
