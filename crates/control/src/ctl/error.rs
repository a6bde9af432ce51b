//! Why commands fail.

use super::add::DescriptionError;
use crate::client::ClientError;
use std::io;
use std::path::PathBuf;

/// Why a command failed. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum CtlError {
    /// {0}
    Client(#[from] ClientError),
    /// {0}
    Description(#[from] DescriptionError),
    /// {name} was refused after {added} of {all} exports were added: {source}
    AddedSome {
        /// The export.
        name: String,
        /// Exports that were added before it.
        added: usize,
        /// Exports in the file.
        all: usize,
        /// Why it was refused.
        source: ClientError,
    },
    /// the daemon did not come back from its upgrade ({source}): its log says why
    Gone {
        /// How it cannot be reached.
        source: ClientError,
    },
    /// the daemon answers, but its program was not replaced: its log may say why
    NotUpgraded,
    /// job {id} failed: {message}
    JobFailed {
        /// The job.
        id: u64,
        /// Why.
        message: String,
    },
    /// job {id} goes on, it could not be completed: {message}
    JobNotCompleted {
        /// The job.
        id: u64,
        /// Why.
        message: String,
    },
    /// job {id} was cancelled
    JobCancelled {
        /// The job.
        id: u64,
    },
    /// job {id} goes on: `vringd ctl job wait {id}` waits for it again, `vringd ctl job cancel {id}` cancels it
    Interrupted {
        /// The job.
        id: u64,
    },
    /// cannot write {path}: {source}
    Open {
        /// The file.
        path: PathBuf,
        /// How the system answered.
        source: io::Error,
    },
    /// cannot write {path}: {source} (what is there now is no record)
    Save {
        /// The file.
        path: PathBuf,
        /// How the system answered.
        source: io::Error,
    },
    /// cannot write the output: {source}
    Output {
        /// How the system answered.
        source: io::Error,
    },
}

impl From<io::Error> for CtlError {
    fn from(source: io::Error) -> Self {
        Self::Output { source }
    }
}

impl CtlError {
    /// The exit status: 1 when the daemon refused or a job failed, 2 when it cannot be reached or the command is wrong,
    /// 130 when Ctrl-C ended the wait for a job.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Client(ClientError::Refused { .. })
            | Self::AddedSome { .. }
            | Self::Gone { .. }
            | Self::NotUpgraded
            | Self::JobFailed { .. }
            | Self::JobNotCompleted { .. }
            | Self::JobCancelled { .. }
            | Self::Save { .. }
            | Self::Output { .. } => 1,
            Self::Client(_) | Self::Description(_) | Self::Open { .. } => 2,
            Self::Interrupted { .. } => 130,
        }
    }
}
