//! The requests that one operation of a job is made of, over FUSE.

use crate::fs::job::Job;

/// One request of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Read,
    Write,
    Getattr,
    LookupHit,
    LookupMiss,
    Open,
    Release,
    Create,
    /// Of what the operation created.
    LookupNew,
    Unlink,
    Mkdir,
    Rmdir,
    Rename,
    Readdir,
    Readdirplus,
    LookupOuter,
    LookupInner,
    LookupFile,
    /// Of what the operation created or looked up.
    GetattrFile,
    Forget,
}

/// The requests of one operation of `job`, in order.
pub(crate) fn steps(job: Job) -> &'static [Step] {
    use Step::*;
    match job {
        Job::ReadSeq | Job::ReadRand => &[Read],
        Job::WriteSeq | Job::WriteRand => &[Write],
        Job::Getattr => &[Getattr],
        Job::LookupHit => &[LookupHit],
        Job::LookupMiss => &[LookupMiss],
        Job::OpenRelease => &[Open, Release],
        Job::CreateUnlink => &[Create, Release, Unlink, Forget],
        Job::CreateStatUnlink => &[Create, Release, LookupNew, GetattrFile, Unlink, Forget, Forget],
        Job::MkdirRmdir => &[Mkdir, Rmdir, Forget],
        Job::Rename => &[Rename],
        Job::Readdir => &[Readdir],
        Job::Readdirplus | Job::ReaddirplusCold => &[Readdirplus],
        Job::Tree => &[LookupOuter, LookupInner, LookupFile, GetattrFile, Forget],
    }
}

impl Step {
    /// Name of the request in FUSE, with what tells it from others of its kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Getattr | Self::GetattrFile => "GETATTR",
            Self::LookupHit => "LOOKUP, known",
            Self::LookupMiss => "LOOKUP, missing",
            Self::Open => "OPEN",
            Self::Release => "RELEASE",
            Self::Create => "CREATE",
            Self::LookupNew => "LOOKUP, created",
            Self::Unlink => "UNLINK",
            Self::Mkdir => "MKDIR",
            Self::Rmdir => "RMDIR",
            Self::Rename => "RENAME",
            Self::Readdir => "READDIR",
            Self::Readdirplus => "READDIRPLUS",
            Self::LookupOuter => "LOOKUP, first directory",
            Self::LookupInner => "LOOKUP, second directory",
            Self::LookupFile => "LOOKUP, file",
            Self::Forget => "FORGET",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn nothing_is_left_behind_by_an_operation() {
        for job in Job::value_variants() {
            let count = |wanted: &[Step]| steps(*job).iter().filter(|step| wanted.contains(step)).count();
            assert_eq!(count(&[Step::Open, Step::Create]), count(&[Step::Release]), "{job:?}");
            assert_eq!(count(&[Step::Create, Step::Mkdir]), count(&[Step::Unlink, Step::Rmdir]), "{job:?}");
            let looked_up = [Step::Create, Step::Mkdir, Step::LookupFile, Step::LookupNew];
            assert_eq!(count(&looked_up), count(&[Step::Forget]), "{job:?}");
        }
    }
}
