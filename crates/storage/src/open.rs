//! From a description to a running storage.

use crate::{
    FileOptions, FileStorage, MemoryOptions, MemoryStorage, NullOptions, NullStorage, OpenError, SimOptions,
    SimStorage, Storage,
};
use std::sync::Arc;

/// What to open.
#[derive(Clone, Debug, PartialEq)]
pub enum StorageSpec {
    /// A regular file or a block device.
    File(FileOptions),
    /// Memory, anonymous or of a file on tmpfs or hugetlbfs.
    Memory(MemoryOptions),
    /// Nothing, quickly.
    Null(NullOptions),
    /// A model of a device.
    Sim(SimOptions),
}

/// Opens a storage.
///
/// # Errors
/// One line that names the path or the field, and what to do.
pub fn open(spec: &StorageSpec) -> Result<Arc<dyn Storage>, OpenError> {
    Ok(match spec {
        StorageSpec::File(options) => Arc::new(FileStorage::open(options)?),
        StorageSpec::Memory(options) => Arc::new(MemoryStorage::open(options)?),
        StorageSpec::Null(options) => Arc::new(NullStorage::open(options)?),
        StorageSpec::Sim(options) => Arc::new(SimStorage::open(options)?),
    })
}
