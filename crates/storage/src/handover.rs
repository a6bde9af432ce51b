//! What a storage keeps open, for the program that goes on with it.

use crate::{Description, OpenError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Duplicates of what a storage keeps open, and its size. Locks of an image belong to the open file descriptions behind
/// the descriptors, so that they are held without a gap.
#[derive(Debug)]
pub struct Handed {
    /// Size as guests see it, in bytes.
    pub capacity_bytes: u64,
    /// The image, or the file that holds the memory's contents. `None` where there are no contents.
    pub data: Option<OwnedFd>,
    /// What holds the image's locks; of an image without locks, what says that it is in use by the living.
    pub lock: Option<OwnedFd>,
    /// The same of a volume's log, where that has a file of its own.
    pub log: Option<Box<Handed>>,
    /// The memory of a volume, with what is not written back.
    pub memory: Option<OwnedFd>,
    /// What an image that is not open was when it was last seen.
    pub seen: Option<Description>,
}

impl Handed {
    /// Of a storage of this size that keeps nothing open.
    pub fn empty(capacity_bytes: u64) -> Handed {
        Handed { capacity_bytes, data: None, lock: None, log: None, memory: None, seen: None }
    }

    /// Duplicates of `data` and `lock`.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn new(capacity_bytes: u64, data: impl AsFd, lock: Option<&OwnedFd>) -> io::Result<Handed> {
        let (data, lock) = (data.as_fd().try_clone_to_owned()?, lock.map(OwnedFd::try_clone).transpose()?);
        Ok(Handed { data: Some(data), lock, ..Handed::empty(capacity_bytes) })
    }

    /// The descriptor of the contents.
    ///
    /// # Errors
    /// There is none.
    pub fn take_data(&mut self) -> Result<OwnedFd, OpenError> {
        self.data.take().ok_or(OpenError::NothingHanded)
    }
}
