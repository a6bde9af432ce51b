//! What a person may see and change of a volume while it is served: a storage with an intent log has more to show than others.

use crate::{OpenError, Storage, StorageError};
use std::sync::Arc;
use std::time::Duration;
use values::SyncMode;

/// What a volume is like now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// What tells this opening of it from all others: what [`Look::close_left`](crate::Look::close_left) takes.
    fn opening(&self) -> u64;

    /// Changes when writes have to be stable. Requests that have begun end as they began.
    fn set_sync(&self, mode: SyncMode);

    /// Brings everything that was written before to the lower storage, stably. Blocks.
    ///
    /// # Errors
    /// The lower storage does not take it, or the volume has failed.
    fn sync_now(&self) -> Result<(), StorageError>;

    /// As [`sync_now`](Self::sync_now), by somebody who waits no longer than that. Write-back goes on.
    ///
    /// # Errors
    /// As of that; [`StorageError::is_timeout`] when it is too late.
    fn sync_within(&self, patience: Duration) -> Result<(), StorageError>;

    /// Closes it in order, as dropping it does, and says whether that went well. It serves nothing any more, whatever comes of it. No request
    /// is in flight. Blocks.
    ///
    /// # Errors
    /// It is left as a killed process leaves it.
    fn close(&self) -> Result<(), StorageError>;
}

/// A volume whose log is in front of a disk that is a storage of its own; see [`Storage::in_front`].
pub trait InFront: VolumeControl {
    /// That disk.
    fn disk(&self) -> Arc<dyn Storage>;

    /// Brings everything to that disk, and has it miss no log any more: whatever takes its place may be put in. No request is in flight.
    /// Blocks.
    ///
    /// # Errors
    /// The disk does not take it: all is as before. So it is when the mark cannot be taken away, and is set once more, as
    /// [`come_back`](Self::come_back) does it; where that fails, too, nobody knows what the disk says, and the volume serves nothing any more.
    fn leave(&self) -> Result<(), StorageError>;

    /// Undoes [`leave`](Self::leave). Blocks.
    ///
    /// # Errors
    /// The disk cannot be marked. From now on the volume serves nothing.
    fn come_back(&self) -> Result<(), StorageError>;

    /// Goes before another disk with the same contents, in what is answered with; this one has been [left](Self::leave), and serves nothing
    /// any more, whatever comes of it. Blocks.
    ///
    /// # Errors
    /// The log cannot be opened again. The disk that was left has all that was written. Which of the two failed decides what becomes of the
    /// log: [`GoBeforeError`].
    fn go_before(&self, disk: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, GoBeforeError>;
}

/// Why a log does not go before another disk, by what is at fault. A disk that does not even take the word that it misses no log leaves the
/// log as it is, which may go before another one. Any other disk misses none and goes on without; the log is closed in order and its memory
/// gone, as far as that can be.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum GoBeforeError {
    /// {0}
    Disk(#[source] OpenError),
    /// {0}
    Log(#[source] OpenError),
}

/// Buckets of a latency: bucket n counts what took less than 2^n microseconds and not less than the half of that; the last
/// one, everything longer.
pub const LATENCY_BUCKETS: usize = 26;

/// How long something took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyFigures {
    /// How often.
    pub count: u64,
    /// All of it together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// By duration, see [`LATENCY_BUCKETS`]: bucket 0 is below 1 µs, bucket 1 below 2 µs, bucket 2 below 4 µs...
    pub buckets: [u64; LATENCY_BUCKETS],
}

impl LatencyFigures {
    /// The mean, in nanoseconds; 0 for nothing.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// Upper bound of bucket `index`, in nanoseconds; `None` for the last, which has none.
    pub fn bound_ns(index: usize) -> Option<u64> {
        (index + 1 < LATENCY_BUCKETS).then(|| 1000 << index)
    }
}

/// What a volume has done since it was opened, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFigures {
    /// Log records written and completed.
    pub commits: u64,
    /// Flushes and durable writes that those commits answered.
    pub committed_requests: u64,
    /// Blocks of 4096 bytes in those commits.
    pub committed_blocks: u64,
    /// Bytes of those commits in the log, with headers.
    pub committed_bytes: u64,
    /// Flushes that had nothing to wait for: all that was written before them was safe already.
    pub flushes_for_nothing: u64,
    /// Waits for company before a commit: how often, and how long.
    pub company_wait: LatencyFigures,
    /// From the start of a log write to its completion.
    pub commit_latency: LatencyFigures,
    /// From a flush or durable write to its answer, where it had to wait at all.
    pub flush_latency: LatencyFigures,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes in memory that are not written back yet.
    pub dirty_bytes: u64,
    /// Bytes of memory for them.
    pub dirty_bytes_max: u64,
    /// Bytes written back to the lower storage.
    pub written_back_bytes: u64,
    /// Writes of the write-back that failed, and were or will be tried again.
    pub write_back_errors: u64,
    /// Log writes that failed.
    pub log_errors: u64,
    /// Sweeps of the write-back that came to their end.
    pub sweeps: u64,
    /// Writers that had to wait for a free slot, ever.
    pub parked_writers: u64,
    /// Writers that wait for a free slot now.
    pub parked_writers_now: u64,
    /// Times a commit had to wait for room in the log.
    pub parked_commits: u64,
}
