//! What a person may see and change of a volume while it is served.

use super::{SyncMode, VolumeFigures};
use crate::StorageError;

/// What a volume is like now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// When writes have to be stable.
    pub sync: SyncMode,
    /// Where the log is, if it has a file or device of its own.
    pub log_path: Option<String>,
    /// Why it serves nothing any more, if so.
    pub failure: Option<String>,
    /// What it counts and holds.
    pub figures: VolumeFigures,
}

/// A storage that is a volume; see [`Storage::volume`](crate::Storage::volume).
pub trait VolumeControl: Send + Sync {
    /// What it is like now. Reads counters, and takes the committer's lock for a moment: not for the path of a request.
    fn status(&self) -> VolumeStatus;

    /// Changes when writes have to be stable. Requests that have begun end as they began.
    fn set_sync(&self, mode: SyncMode);

    /// Brings everything that was written before to the lower storage, stably. Blocks.
    ///
    /// # Errors
    /// The lower storage does not take it, or the volume has failed.
    fn sync_now(&self) -> Result<(), StorageError>;
}
