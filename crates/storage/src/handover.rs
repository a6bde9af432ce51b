//! What a storage keeps open, for the program that goes on with it.

use crate::{Description, OpenError};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a storage keeps open, and its size. Locks of an image belong to the open file descriptions behind the descriptors,
/// so that they are held without a gap.
///
/// Files are the storage's own descriptors, shared and not duplicated: some file systems (FUSE, NFS) write back, or ask a
/// server, at each close of a descriptor, and guests would wait for the duplicates' as well. Memory is on tmpfs, where a close
/// is nothing.
#[derive(Debug)]
pub struct Handed {
    /// Size as guests see it, in bytes.
    pub capacity_bytes: u64,
    /// The image, or the file that holds the memory's contents. `None` where there are no contents.
    pub data: Option<Arc<OwnedFd>>,
    /// What holds the image's locks; of an image without locks, what says that it is in use by the living.
    pub lock: Option<Arc<OwnedFd>>,
    /// The same of a volume's log, where that has a file of its own.
    pub log: Option<Box<Handed>>,
    /// The memory of a volume, with what is not written back.
    pub memory: Option<OwnedFd>,
    /// What an image that is not open was when it was last seen.
    pub seen: Option<Description>,
    /// What the storage has to know of what it was, in words of its own, where it opens that again: nothing of it goes along open.
    pub again: Option<String>,
}

impl Handed {
    /// Of a storage of this size that keeps nothing open.
    pub fn empty(capacity_bytes: u64) -> Handed {
        Handed { capacity_bytes, data: None, lock: None, log: None, memory: None, seen: None, again: None }
    }

    /// With `data` and `lock`.
    pub fn new(capacity_bytes: u64, data: Arc<OwnedFd>, lock: Option<Arc<OwnedFd>>) -> Handed {
        Handed { data: Some(data), lock, ..Handed::empty(capacity_bytes) }
    }

    /// The descriptor of the contents.
    ///
    /// # Errors
    /// There is none.
    pub fn take_data(&mut self) -> Result<Arc<OwnedFd>, OpenError> {
        self.data.take().ok_or(OpenError::NothingHanded)
    }
}
