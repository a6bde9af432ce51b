//! How much of what a thin disk lies on is used, and how much is left.

use crate::{Action, StorageError};
use std::os::fd::AsFd;

/// The space of a disk that is thin: blocks have some when they are written, and give it back when they are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that the disk has used, what its format needs beside the data included.
    pub used_bytes: u64,
    /// Bytes that it may still use, if somebody knows.
    pub available_bytes: Option<u64>,
    /// Others use the same bytes.
    pub is_shared: bool,
}

/// What only a storage has whose space is counted.
pub trait Counted: Send + Sync {
    /// The space of this moment. Blocks: not for a worker.
    ///
    /// # Errors
    /// The kernel's.
    fn room(&self) -> Result<Room, StorageError>;
}

impl Room {
    /// That of a regular file: what its file system has left is anybody's.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of_file(fd: impl AsFd) -> Result<Room, StorageError> {
        /// Unit of `st_blocks`, in bytes (stat(2)).
        const STAT_BLOCK_BYTES: u64 = 512;
        let failed = |error: rustix::io::Errno| StorageError::errno(Action::Look, error.raw_os_error());
        let about = rustix::fs::fstat(&fd).map_err(failed)?;
        let system = rustix::fs::fstatvfs(&fd).map_err(failed)?;
        Ok(Room {
            used_bytes: u64::try_from(about.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES),
            // A file system without a bound says that it has no blocks: a tmpfs of `size=0`.
            available_bytes: (system.f_blocks > 0).then(|| system.f_bavail.saturating_mul(system.f_frsize)),
            is_shared: true,
        })
    }
}
