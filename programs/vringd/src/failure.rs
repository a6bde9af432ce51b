//! How a command ends badly: one line for a person, and an exit status for a program; and a request, by the field at fault.

use control::ApiError;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use storage::StorageError;
use storage::target::TargetError;

/// Why a command did not do what it was asked.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub(crate) enum Failure {
    /// {0}
    Usage(String),
    /// {0}
    Runtime(String),
}

impl Failure {
    /// Refused, or failed on the way: the system's answer tells, unless it is about a name that was typed.
    pub(crate) fn of(error: impl Error + 'static) -> Failure {
        let text = error.to_string();
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        let mut answer = None;
        while let Some(error) = cause {
            answer = error.downcast_ref::<io::Error>().or(answer);
            // What was open has failed on the way, or what was written cannot be kept.
            let fails = matches!(
                error.downcast_ref(),
                Some(StorageError::Io { .. } | StorageError::Failed { .. } | StorageError::Injected(_))
            );
            if fails || matches!(error.downcast_ref(), Some(TargetError::Keep { .. })) {
                return Failure::Runtime(text);
            }
            cause = error.source();
        }
        match answer.map(io::Error::kind) {
            None
            | Some(
                ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::AlreadyExists
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidInput
                | ErrorKind::ReadOnlyFilesystem,
            ) => Failure::Usage(text),
            Some(_) => Failure::Runtime(text),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use volume::VolumeError;

    #[test]
    fn what_a_person_can_mend_is_told_from_what_failed() {
        let io = |kind| VolumeError::Io { path: "/v".into(), what: "open", source: io::Error::from(kind) };
        assert!(matches!(Failure::of(io(ErrorKind::NotFound)), Failure::Usage(_)));
        assert!(matches!(Failure::of(io(ErrorKind::StorageFull)), Failure::Runtime(_)));
        let source = || io::Error::from(ErrorKind::PermissionDenied);
        let failed = StorageError::Io { action: storage::Action::Write, source: source() };
        assert!(matches!(Failure::of(VolumeError::Storage { path: "/v".into(), source: failed }), Failure::Runtime(_)));
        let small = StorageError::Grow { target: "/v".into(), asked_bytes: 1, reason: "small".into() };
        assert!(matches!(Failure::of(VolumeError::Storage { path: "/v".into(), source: small }), Failure::Usage(_)));
        let kept = TargetError::Keep { path: "/v".into(), source: source() };
        assert!(matches!(Failure::of(VolumeError::Target(kept)), Failure::Runtime(_)));
        let named = VolumeError::NoLogNamed { path: "/v".into() };
        assert!(matches!(Failure::of(named), Failure::Usage(line) if line.contains("--log")));
    }
}
