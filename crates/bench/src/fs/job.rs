//! What can be measured: jobs, and the requests that one operation of each is made of.

use serde::Serialize;

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Sequential READ
    ReadSeq,
    /// READ at random offsets
    ReadRand,
    /// Sequential WRITE
    WriteSeq,
    /// WRITE at random offsets
    WriteRand,
    /// GETATTR of known files
    Getattr,
    /// LOOKUP of known files
    LookupHit,
    /// LOOKUP of names that do not exist
    LookupMiss,
    /// OPEN and RELEASE
    OpenRelease,
    /// CREATE, RELEASE, UNLINK and FORGET
    CreateUnlink,
    /// MKDIR, RMDIR and FORGET
    MkdirRmdir,
    /// RENAME, there and back
    Rename,
    /// READDIRPLUS of a large directory whose files the server knows; counts entries
    Readdirplus,
    /// READDIRPLUS of a large directory, with every file forgotten at once; counts entries
    ReaddirplusCold,
    /// stat of files in a tree: LOOKUP of two directories and a file, GETATTR, and the file forgotten
    Tree,
}

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
    Unlink,
    Mkdir,
    Rmdir,
    Rename,
    Readdirplus,
    LookupOuter,
    LookupInner,
    LookupFile,
    GetattrFile,
    Forget,
}

impl Job {
    /// The requests of one operation, in order.
    pub(crate) fn steps(self) -> &'static [Step] {
        match self {
            Self::ReadSeq | Self::ReadRand => &[Step::Read],
            Self::WriteSeq | Self::WriteRand => &[Step::Write],
            Self::Getattr => &[Step::Getattr],
            Self::LookupHit => &[Step::LookupHit],
            Self::LookupMiss => &[Step::LookupMiss],
            Self::OpenRelease => &[Step::Open, Step::Release],
            Self::CreateUnlink => &[Step::Create, Step::Release, Step::Unlink, Step::Forget],
            Self::MkdirRmdir => &[Step::Mkdir, Step::Rmdir, Step::Forget],
            Self::Rename => &[Step::Rename],
            Self::Readdirplus | Self::ReaddirplusCold => &[Step::Readdirplus],
            Self::Tree => &[Step::LookupOuter, Step::LookupInner, Step::LookupFile, Step::GetattrFile, Step::Forget],
        }
    }

    /// The word for it, which is the option's value too.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadSeq => "read-seq",
            Self::ReadRand => "read-rand",
            Self::WriteSeq => "write-seq",
            Self::WriteRand => "write-rand",
            Self::Getattr => "getattr",
            Self::LookupHit => "lookup-hit",
            Self::LookupMiss => "lookup-miss",
            Self::OpenRelease => "open-release",
            Self::CreateUnlink => "create-unlink",
            Self::MkdirRmdir => "mkdir-rmdir",
            Self::Rename => "rename",
            Self::Readdirplus => "readdirplus",
            Self::ReaddirplusCold => "readdirplus-cold",
            Self::Tree => "tree",
        }
    }

    /// Whether it moves a file's data.
    pub(crate) fn is_data(self) -> bool {
        self.reads_data() || self.writes_data()
    }

    /// Whether it reads a file's data.
    pub(crate) fn reads_data(self) -> bool {
        matches!(self, Self::ReadSeq | Self::ReadRand)
    }

    /// Whether it writes a file's data.
    pub(crate) fn writes_data(self) -> bool {
        matches!(self, Self::WriteSeq | Self::WriteRand)
    }

    /// Whether its offsets are random.
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::ReadRand | Self::WriteRand)
    }

    /// Whether it lists a directory. A listing goes on where its last reply ended, so there is one on each queue.
    pub(crate) fn lists(self) -> bool {
        matches!(self, Self::Readdirplus | Self::ReaddirplusCold)
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
            Self::Unlink => "UNLINK",
            Self::Mkdir => "MKDIR",
            Self::Rmdir => "RMDIR",
            Self::Rename => "RENAME",
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
    fn names_are_those_of_the_option() {
        for job in Job::value_variants() {
            assert_eq!(job.to_possible_value().unwrap().get_name(), job.name());
            assert_eq!(serde_json::to_value(job).unwrap(), job.name());
        }
    }

    #[test]
    fn nothing_is_left_behind_by_an_operation() {
        for job in Job::value_variants() {
            let count = |wanted: &[Step]| job.steps().iter().filter(|step| wanted.contains(step)).count();
            assert_eq!(count(&[Step::Open, Step::Create]), count(&[Step::Release]), "{job:?}");
            assert_eq!(count(&[Step::Create, Step::Mkdir]), count(&[Step::Unlink, Step::Rmdir]), "{job:?}");
            assert_eq!(count(&[Step::Create, Step::Mkdir, Step::LookupFile]), count(&[Step::Forget]), "{job:?}");
        }
    }
}
