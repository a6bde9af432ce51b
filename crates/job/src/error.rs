//! Why a job ends without its copy.

use storage::{Action, Description, Storage, StorageError};

/// Why a job has failed. The disk and its guests are none the worse for it; what is in the target is of no use.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum JobError {
    /// cannot {what}: {source}
    Storage {
        /// What was being done.
        what: &'static str,
        /// What the storage said.
        source: StorageError,
    },
    /// a guest has waited for {ms} ms for the job to read what it is about to write over: the disk or the target is too slow, or hangs
    Slow {
        /// How long, in milliseconds.
        ms: u64,
    },
    /// a guest has waited for {ms} ms for the job to save what it is about to write over: the disk or the scratch directory is too slow, or hangs
    SlowScratch {
        /// How long, in milliseconds.
        ms: u64,
    },
    /// cannot serve the disk to backup programs: {0}
    Serve(String),
    /// the job was cancelled
    Cancelled,
    /// the disk was resized while it was copied: make the copy as large and start again
    Resized,
}

impl JobError {
    pub(crate) fn storage(what: &'static str) -> impl FnOnce(StorageError) -> JobError {
        move |source| JobError::Storage { what, source }
    }

    /// The same where the copy is a scratch file.
    pub(crate) fn in_scratch(self) -> JobError {
        match self {
            JobError::Storage { what: WRITE_COPY, source } => {
                JobError::Storage { what: "save what guests write over in the scratch directory (`--scratch`)", source }
            }
            JobError::Slow { ms } => JobError::SlowScratch { ms },
            other => other,
        }
    }
}

/// What a storage error is of that the target's write has.
pub(crate) const WRITE_COPY: &str = "write the copy";

/// Refuses a target that cannot hold what is in `from`.
pub(crate) fn check_target(from: &dyn Storage, to: &dyn Storage) -> Result<(), StorageError> {
    let Description { read_only, .. } = to.describe();
    if read_only {
        return Err(StorageError::ReadOnly(Action::Write));
    }
    if to.capacity_bytes() < from.capacity_bytes() {
        return Err(StorageError::OutOfRange(Action::Write));
    }
    Ok(())
}
