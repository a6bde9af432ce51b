//! How a command ends badly: one line for a person, and an exit status for a program; and a request, by the field at fault.

use control::ApiError;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub(crate) enum Failure {
    /// {0}
    Usage(String),
    /// {0}
    Runtime(String),
}

impl Failure {
    /// 2 for what the person can mend in what they typed or wrote, 1 for everything else.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Runtime(_) => ExitCode::from(1),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::InvalidField { .. } | ApiError::ExportExists { .. } | ApiError::Disk(_) => {
                Failure::Usage(error.to_string())
            }
            _ => Failure::Runtime(error.to_string()),
        }
    }
}

/// A field of a request is at fault.
pub(crate) fn field(field: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::InvalidField { field: field.to_owned(), message: message.to_string() }
}
