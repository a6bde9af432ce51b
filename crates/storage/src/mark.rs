//! What a disk says of an intent log in front of it: as long as it says so, the log may hold what the disk has not.

use crate::StorageError;
use uuid::Uuid;

/// Which log that is, and which opening of it. Epochs are those of the log's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMark {
    /// Names the log: the UUID of its superblock's `volume`.
    pub log: Uuid,
    /// The epoch that the opening came from: the log was empty.
    pub from: u64,
    /// The epoch of the opening.
    pub epoch: u64,
}

/// A storage whose format has room for a [`LogMark`]; see [`Storage::marked`](crate::Storage::marked).
pub trait Marked {
    /// The mark, as it is on the storage. Blocks.
    ///
    /// # Errors
    /// It cannot be read.
    fn log_mark(&self) -> Result<Option<LogMark>, StorageError>;

    /// Looks whether a mark can be set. Changes nothing. Blocks.
    ///
    /// # Errors
    /// There is no room for one, or what there is cannot be read.
    fn check_log_mark(&self) -> Result<(), StorageError>;

    /// Sets the mark, or takes it away, on stable storage: a power cut leaves either. Blocks.
    ///
    /// # Errors
    /// It cannot be written, or there is no room for it.
    fn set_log_mark(&self, mark: Option<LogMark>) -> Result<(), StorageError>;
}
