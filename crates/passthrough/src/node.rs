//! One inode that the client knows, and the descriptors by which the host's kernel knows it.

use crate::closing::{Closing, Sort};
use crate::file::OpenFile;
use crate::handle::FileHandle;
use crate::ids::Node;
use crate::mount::Mount;
use crate::share::Place;
use crate::stat::{Key, Kind};
use crate::sync::lock;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A descriptor that is held for a node. It is closed when neither the node nor an operation has it.
#[derive(Debug)]
pub(crate) struct Held(Closing<Place>);

impl Held {
    /// A node of this kind is held by `fd`.
    pub(crate) fn new(fd: OwnedFd, place: Place, kind: Kind) -> Arc<Held> {
        Arc::new(Held(Closing::new(fd, place, Sort::of_path(kind))))
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor of a node for as long as an operation needs it.
#[derive(Clone, Debug)]
pub(crate) enum Pin {
    Held(Arc<Held>),
    File(Arc<OpenFile>),
}

impl AsFd for Pin {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Pin::Held(held) => held.as_fd(),
            Pin::File(file) => file.as_fd(),
        }
    }
}

/// What a node holds.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// An `O_PATH` descriptor.
    pub(crate) held: Option<Arc<Held>>,
    /// The node opened for reading, for clients that read without opening.
    pub(crate) read: Option<Arc<OpenFile>>,
    /// The files that the client has open, and some that it had: one of them is as good as a descriptor of our own, and the
    /// only way to a file that has no name any more.
    pub(crate) files: Vec<Weak<OpenFile>>,
    /// The table has this node among those whose descriptors it may close.
    pub(crate) listed: bool,
}

impl Slot {
    fn pin(&mut self) -> Option<Pin> {
        if let Some(held) = &self.held {
            return Some(Pin::Held(Arc::clone(held)));
        }
        let file = self.read.clone().or_else(|| self.files.iter().rev().find_map(Weak::upgrade));
        if file.is_none() {
            self.files = Vec::new();
        }
        file.map(Pin::File)
    }

    /// The client has opened the inode.
    pub(crate) fn opened(&mut self, file: &Arc<OpenFile>) {
        // Those that are closed go when room is needed, and the room grows only with those that are open.
        if self.files.len() == self.files.capacity() {
            self.files.retain(|file| file.strong_count() > 0);
        }
        self.files.push(Arc::downgrade(file));
    }
}

/// An inode that the client knows.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) node: Node,
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) mount: Arc<Mount>,
    /// How the inode is found again when no descriptor is held. Without one a descriptor is held for ever.
    pub(crate) handle: Option<FileHandle>,
    /// How often the client was told of it and has not forgotten. Grows, and falls to 0, only under the lock of the
    /// table's identities.
    pub(crate) references: AtomicU64,
    /// Somebody needed a descriptor since the table last looked for one to close.
    pub(crate) used: AtomicBool,
    /// The handle was seen to lead to this inode. It was taken by name, after a look at what the name stood for then, so
    /// that somebody may have changed the name in between.
    pub(crate) verified: AtomicBool,
    /// Another inode is found by its key now: this one is gone from the host.
    pub(crate) displaced: AtomicBool,
    /// It was seen without a name, and when its last descriptor was closed or its last name removed here: the host frees it as soon as
    /// nobody has it open.
    pub(crate) gone: AtomicBool,
    pub(crate) slot: Mutex<Slot>,
}

impl Inode {
    /// A descriptor of the inode, if there is one.
    pub(crate) fn pin(&self) -> Option<Pin> {
        let pin = lock(&self.slot).pin();
        // The look before the write leaves the line shared when many threads use one node.
        if pin.is_some() && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        pin
    }

    /// The client has it open.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.slot).files.iter().any(|file| file.strong_count() > 0)
    }

    /// A descriptor is open, so no other inode can have this one's number.
    pub(crate) fn is_pinned(&self) -> bool {
        let slot = lock(&self.slot);
        slot.held.is_some() || slot.read.is_some() || slot.files.iter().any(|file| file.strong_count() > 0)
    }

    /// The client has changed the size of the file, or has made holes: who reads it looks again.
    pub(crate) fn forget_size(&self) {
        let slot = lock(&self.slot);
        slot.read.iter().for_each(|file| file.forget_size());
        // A file whose last user goes meanwhile is closed without the lock.
        let open: Vec<_> = slot.files.iter().filter_map(Weak::upgrade).collect();
        drop(slot);
        open.iter().for_each(|file| file.forget_size());
    }

    /// `true` for what was found under the same key with this handle, or with a descriptor open when there is none.
    pub(crate) fn is(&self, handle: Option<&FileHandle>) -> bool {
        match (&self.handle, handle) {
            (Some(own), Some(other)) => own == other,
            (Some(_), None) => self.is_pinned(),
            (None, _) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_million_nodes_fit() {
        // Twice this, with the two tables.
        assert!(size_of::<super::Inode>() <= 144, "{} bytes a node", size_of::<super::Inode>());
    }
}
