//! Errors of the API: each has a machine-readable code, an HTTP status and a line for a person.
//!
//! The meanings follow the kernel's vhost worker interface (linux/vhost.h, VHOST_NEW_WORKER, VHOST_FREE_WORKER,
//! VHOST_ATTACH_VRING_WORKER, VHOST_GET_VRING_WORKER): a worker that still has rings is not freed (EBUSY), an unknown
//! worker is ENODEV, a ring index out of range is ENOBUFS.

use crate::model::{JobState, RingRef};
use crate::scope::Scope;
use disk::DiskError;
use displaydoc::Display;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use values::{FieldError, Lun};

/// What the API refuses, and why. The doc comments are the messages.
#[derive(Debug, Clone, PartialEq, Eq, Display, thiserror::Error)]
pub enum ApiError {
    /// there is no export `{name}`
    NoSuchExport {
        /// The name that was asked for.
        name: String,
    },
    /// there is already an export `{name}`: choose another name, or remove that one first
    ExportExists {
        /// The name that is taken.
        name: String,
    },
    /// export `{name}` has a connected frontend: stop its guest first, or remove the export by force
    Connected {
        /// The export.
        name: String,
    },
    /// {scope} has no worker {id}
    NoSuchWorker {
        /// Where the worker was looked for.
        scope: Scope,
        /// The identifier that was asked for.
        id: u32,
    },
    /// export `{export}` has no ring {index}: its rings are 0 to {last}
    NoSuchRing {
        /// The export.
        export: String,
        /// The index that was asked for.
        index: u16,
        /// The highest index the export has.
        last: u16,
    },
    /// export `{export}` has no LUN {lun}
    NoSuchUnit {
        /// The export.
        export: String,
        /// The LUN that was asked for.
        lun: Lun,
    },
    /// there is no group `{name}`
    NoSuchGroup {
        /// The name that was asked for.
        name: String,
    },
    /// there is already a group `{name}`: change that one, or choose another name
    GroupExists {
        /// The name that is taken.
        name: String,
    },
    /// group `{name}` limits {exports}: take them out of the group first
    GroupInUse {
        /// The group.
        name: String,
        /// Names of its exports.
        exports: String,
    },
    /// {0}
    Disk(#[from] DiskError),
    /// disk `{disk}` cannot do this: {message}
    DiskUnsupported {
        /// The disk.
        disk: String,
        /// What it cannot do, and why.
        message: String,
    },
    /// disk `{disk}` has no bitmap `{bitmap}`
    NoSuchBitmap {
        /// The disk.
        disk: String,
        /// The name that was asked for.
        bitmap: String,
    },
    /// there is no job {id}
    NoSuchJob {
        /// The identifier that was asked for.
        id: u64,
    },
    /// job {id} is {state}, not {wanted}: {message}
    JobInState {
        /// The job.
        id: u64,
        /// How far it is.
        state: JobState,
        /// How far it would have to be.
        wanted: JobState,
        /// Why, or what to do.
        message: String,
    },
    /// job {id} cannot do this: {message}
    JobUnsupported {
        /// The job.
        id: u64,
        /// What it cannot do, and why.
        message: String,
    },
    /// there is no trace {id}: it has ended
    NoSuchTrace {
        /// The identifier that was asked for.
        id: u64,
    },
    /// {max} traces are read already, the most there can be: end one first
    TooManyTraces {
        /// The bound.
        max: usize,
    },
    /// worker {id} still serves {rings}: attach to another worker first
    Busy {
        /// The worker.
        id: u32,
        /// The rings attached to it.
        rings: RingRefs,
    },
    /// worker {id} is dead: attach the ring to another one, or make a new worker
    WorkerDead {
        /// The worker.
        id: u32,
    },
    /// the daemon already runs {max} workers, the most it will run: free one first
    TooManyWorkers {
        /// The bound.
        max: usize,
    },
    /// {field}: {message}
    InvalidField {
        /// Path of the field, as in `storage.size`.
        field: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// export `{export}` cannot do this: {message}
    Unsupported {
        /// The export.
        export: String,
        /// What it cannot do, and why.
        message: String,
    },
    /// {message}
    Failed {
        /// What was tried, on what, and how the system answered.
        message: String,
    },
    /// the daemon is stopping
    Stopping,
}

impl ApiError {
    /// A code for machines; it stays the same when the wording changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoSuchExport { .. } => "no-such-export",
            Self::ExportExists { .. } => "export-exists",
            Self::Connected { .. } => "connected",
            Self::NoSuchWorker { .. } => "no-such-worker",
            Self::NoSuchRing { .. } => "no-such-ring",
            Self::NoSuchUnit { .. } => "no-such-lun",
            Self::NoSuchGroup { .. } => "no-such-group",
            Self::GroupExists { .. } => "group-exists",
            Self::GroupInUse { .. } => "group-in-use",
            Self::Disk(DiskError::Missing { .. }) => "no-such-disk",
            Self::Disk(DiskError::Exists { .. }) => "disk-exists",
            Self::Disk(_) => "disk-in-use",
            Self::NoSuchBitmap { .. } => "no-such-bitmap",
            Self::NoSuchJob { .. } => "no-such-job",
            Self::JobInState { .. } => "job-in-state",
            Self::NoSuchTrace { .. } => "no-such-trace",
            Self::TooManyTraces { .. } => "too-many-traces",
            Self::Busy { .. } => "busy",
            Self::WorkerDead { .. } => "worker-dead",
            Self::TooManyWorkers { .. } => "too-many-workers",
            Self::InvalidField { .. } => "invalid-field",
            Self::Unsupported { .. } | Self::DiskUnsupported { .. } | Self::JobUnsupported { .. } => "unsupported",
            Self::Failed { .. } => "failed",
            Self::Stopping => "stopping",
        }
    }

    /// The HTTP status it is answered with.
    pub fn status(&self) -> u16 {
        match self {
            Self::NoSuchExport { .. }
            | Self::NoSuchWorker { .. }
            | Self::NoSuchRing { .. }
            | Self::NoSuchUnit { .. }
            | Self::NoSuchGroup { .. }
            | Self::NoSuchBitmap { .. }
            | Self::NoSuchJob { .. }
            | Self::NoSuchTrace { .. }
            | Self::Disk(DiskError::Missing { .. }) => 404,
            Self::ExportExists { .. }
            | Self::Connected { .. }
            | Self::Busy { .. }
            | Self::GroupExists { .. }
            | Self::GroupInUse { .. }
            | Self::Disk(_)
            | Self::DiskUnsupported { .. }
            | Self::JobInState { .. }
            | Self::JobUnsupported { .. }
            | Self::TooManyTraces { .. }
            | Self::WorkerDead { .. }
            | Self::TooManyWorkers { .. }
            | Self::Unsupported { .. } => 409,
            Self::InvalidField { .. } => 422,
            Self::Failed { .. } => 500,
            Self::Stopping => 503,
        }
    }

    /// The field at fault, where one is.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::InvalidField { field, .. } => Some(field),
            _ => None,
        }
    }
}

impl From<FieldError> for ApiError {
    fn from(FieldError { field, message }: FieldError) -> Self {
        Self::InvalidField { field, message }
    }
}

/// Rings, for a message: names the first few of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingRefs(pub Vec<RingRef>);

impl RingRefs {
    /// Rings that a message names before it goes on to count them.
    const NAMED_MAX: usize = 4;
}

impl fmt::Display for RingRefs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ring) in self.0.iter().take(Self::NAMED_MAX).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}ring {} of `{}`", ring.index, ring.export)?;
        }
        match self.0.len().saturating_sub(Self::NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A code for machines, as in `busy` or `no-such-worker`.
    pub code: String,
    /// A line for a person.
    pub message: String,
    /// Path of the field at fault, where one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl From<&ApiError> for ErrorBody {
    fn from(error: &ApiError) -> Self {
        let field = error.field().map(str::to_owned);
        Self { error: ErrorDetail { code: error.code().to_owned(), message: error.to_string(), field } }
    }
}
