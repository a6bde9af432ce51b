//! What a storage keeps open, for the program that goes on with it.

use crate::{FileStorage, MemoryStorage, NullStorage, OpenError, SimStorage, Storage, StorageSpec};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

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
}

impl Handed {
    pub(crate) fn new(capacity_bytes: u64, data: impl AsFd, lock: Option<&OwnedFd>) -> io::Result<Handed> {
        Ok(Handed {
            capacity_bytes,
            data: Some(data.as_fd().try_clone_to_owned()?),
            lock: lock.map(OwnedFd::try_clone).transpose()?,
            log: None,
            memory: None,
        })
    }

    /// The descriptor of the contents.
    pub(crate) fn take_data(&mut self) -> Result<OwnedFd, OpenError> {
        self.data.take().ok_or(OpenError::NothingHanded)
    }
}

/// Goes on with a storage that another program has opened as `spec` says. Paths are not looked up again.
///
/// # Errors
/// As for [`open`](crate::open()); also a descriptor that is missing or of another kind.
pub fn adopt(spec: &StorageSpec, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
    Ok(match spec {
        StorageSpec::File(options) => Arc::new(FileStorage::adopt(options, handed)?),
        StorageSpec::Memory(options) => Arc::new(MemoryStorage::adopt(options, handed)?),
        StorageSpec::Null(options) => Arc::new(NullStorage::adopt(options, &handed)?),
        StorageSpec::Sim(options) => Arc::new(SimStorage::adopt(options, handed)?),
        StorageSpec::Volume(options) => Arc::new(options.adopt(handed)?),
        StorageSpec::Logged(spec) => Arc::new(spec.adopt(handed)?),
    })
}
