//! Volumes as they are shown.

use super::latency::LatencySummary;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use values::SyncMode;

/// The intent log of a disk, and what it has done since the disk was opened. Counts, unless the name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeInfo {
    /// When writes are on stable storage.
    pub sync: SyncMode,
    /// Path of the log; absent when it lies in the volume itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Why it answers every request with an error; absent while it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Size of the log, in bytes.
    pub log_bytes: u64,
    /// Part of the log that is in use: what would be replayed after a power cut, in bytes.
    pub log_used_bytes: u64,
    /// Data in memory that is not written back yet, in bytes.
    pub dirty_bytes: u64,
    /// Most data in memory that is not written back, in bytes: writes wait for room beyond it.
    pub dirty_bytes_max: u64,
    /// Writes that wait for room in memory now.
    pub parked: u64,
    /// Writes that had to wait for room in memory.
    pub parked_writes: u64,
    /// Times that a commit had to wait for room in the log.
    pub parked_commits: u64,
    /// Commits: sequential writes to the log, each with the flush behind it.
    pub commits: u64,
    /// Requests that waited for a commit: flushes and durable writes. Divided by `commits`, how many share one.
    pub committed_requests: u64,
    /// Data in commits, in blocks of 4096 bytes.
    pub committed_blocks: u64,
    /// Bytes written to the log.
    pub committed_bytes: u64,
    /// Flushes that had nothing to wait for: what was written before them was safe already.
    pub flushes_for_nothing: u64,
    /// Commits that failed: their requests were answered with an error.
    pub log_errors: u64,
    /// Data written back to the storage below, in bytes.
    pub written_back_bytes: u64,
    /// Times that everything was written back.
    pub sweeps: u64,
    /// Writes to the storage below that failed and are tried again.
    pub write_back_errors: u64,
    /// Time for which commits were held back for more requests to join them, of those that were.
    pub company_wait: LatencySummary,
    /// Time from the begin of a commit to its end.
    pub commit_latency: LatencySummary,
    /// Time from a request for durability to its answer, where it had to wait: for company and for other commits as well.
    pub flush_latency: LatencySummary,
}

impl VolumeInfo {
    /// How many requests share a commit; 0 before the first commit.
    pub fn requests_a_commit(&self) -> f64 {
        if self.commits == 0 { 0.0 } else { self.committed_requests as f64 / self.commits as f64 }
    }

    /// Share of the log that is in use, 0 to 1.
    pub fn log_fill(&self) -> f64 {
        share(self.log_used_bytes, self.log_bytes)
    }

    /// Share of the memory for dirty data that is in use, 0 to 1.
    pub fn dirty_fill(&self) -> f64 {
        share(self.dirty_bytes, self.dirty_bytes_max)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_nothing_are_nothing() {
        let nothing = VolumeInfo::default();
        assert_eq!((nothing.requests_a_commit(), nothing.log_fill(), nothing.dirty_fill()), (0.0, 0.0, 0.0));
        let some = VolumeInfo { commits: 4, committed_requests: 10, log_bytes: 8, log_used_bytes: 2, ..nothing };
        assert_eq!((some.requests_a_commit(), some.log_fill()), (2.5, 0.25));
    }
}
