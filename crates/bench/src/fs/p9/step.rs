//! The requests that one operation of a job is made of, over 9P: those that Linux's client sends for it.

use crate::fs::job::Job;

/// One request of an operation, which has two fids: one that it works with, and one for what it made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Read,
    Write,
    Getattr,
    /// To a known file, its attributes, and the fid given back.
    WalkKnown,
    GetattrKnown,
    Clunk,
    WalkMissing,
    /// A second fid for a known file, which Tlopen will change.
    CloneKnown,
    Open,
    /// A second fid for the directory, which Tlcreate will make the new file's.
    CloneDir,
    Create,
    /// To what the operation made.
    WalkMade,
    GetattrMade,
    ClunkMade,
    UnlinkAt,
    Mkdir,
    RemoveDirAt,
    RenameAt,
    /// Where the server has no Trenameat.
    Rename,
    /// Where the server has no Tunlinkat; it gives the fid back, too.
    Remove,
    ReadDir,
    /// Through two directories to a file.
    WalkTree,
    GetattrTree,
}

/// The requests of one operation of `job`, in order; `has_at` says whether the server has Tunlinkat and Trenameat.
/// There are none where 9P has none for it.
pub(crate) fn steps(job: Job, has_at: bool) -> &'static [Step] {
    use Step::*;
    match (job, has_at) {
        (Job::ReadSeq | Job::ReadRand, _) => &[Read],
        (Job::WriteSeq | Job::WriteRand, _) => &[Write],
        (Job::Getattr, _) => &[Getattr],
        (Job::LookupHit, _) => &[WalkKnown, GetattrKnown, Clunk],
        (Job::LookupMiss, _) => &[WalkMissing],
        (Job::OpenRelease, _) => &[CloneKnown, Open, Clunk],
        (Job::CreateUnlink, true) => &[CloneDir, Create, Clunk, UnlinkAt],
        (Job::CreateUnlink, false) => &[CloneDir, Create, Clunk, WalkMade, Remove],
        (Job::CreateStatUnlink, true) => &[CloneDir, Create, Clunk, WalkMade, GetattrMade, UnlinkAt, ClunkMade],
        (Job::CreateStatUnlink, false) => &[CloneDir, Create, Clunk, WalkMade, GetattrMade, Remove],
        (Job::MkdirRmdir, true) => &[Mkdir, RemoveDirAt],
        (Job::MkdirRmdir, false) => &[Mkdir, WalkMade, Remove],
        (Job::Rename, true) => &[RenameAt],
        (Job::Rename, false) => &[Rename],
        (Job::Readdir, _) => &[ReadDir],
        (Job::Tree, _) => &[WalkTree, GetattrTree, Clunk],
        (Job::Readdirplus | Job::ReaddirplusCold, _) => &[],
    }
}

impl Step {
    /// Name of the request in 9P, with what tells it from others of its kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "Tread",
            Self::Write => "Twrite",
            Self::Getattr | Self::GetattrKnown | Self::GetattrMade | Self::GetattrTree => "Tgetattr",
            Self::WalkKnown => "Twalk, known",
            Self::Clunk | Self::ClunkMade => "Tclunk",
            Self::WalkMissing => "Twalk, missing",
            Self::CloneKnown | Self::CloneDir => "Twalk, no names",
            Self::Open => "Tlopen",
            Self::Create => "Tlcreate",
            Self::WalkMade => "Twalk, created",
            Self::UnlinkAt | Self::RemoveDirAt => "Tunlinkat",
            Self::Mkdir => "Tmkdir",
            Self::RenameAt => "Trenameat",
            Self::Rename => "Trename",
            Self::Remove => "Tremove",
            Self::ReadDir => "Treaddir",
            Self::WalkTree => "Twalk, three names",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::protocol::Protocol;
    use clap::ValueEnum;

    #[test]
    fn nothing_is_left_behind_by_an_operation() {
        for (job, has_at) in Job::value_variants().iter().flat_map(|job| [(*job, true), (*job, false)]) {
            let count = |wanted: &[Step]| steps(job, has_at).iter().filter(|step| wanted.contains(step)).count();
            assert_eq!(steps(job, has_at).is_empty(), !job.is_in(Protocol::P9), "{job:?}");
            let taken = [Step::WalkKnown, Step::CloneKnown, Step::CloneDir, Step::WalkTree];
            assert_eq!(count(&taken), count(&[Step::Clunk]), "{job:?}");
            assert_eq!(count(&[Step::WalkMade]), count(&[Step::ClunkMade, Step::Remove]), "{job:?}");
            let removed = [Step::UnlinkAt, Step::RemoveDirAt, Step::Remove];
            assert_eq!(count(&[Step::Create, Step::Mkdir]), count(&removed), "{job:?}");
            let newer = [Step::UnlinkAt, Step::RemoveDirAt, Step::RenameAt];
            assert!(has_at || count(&newer) == 0, "{job:?}");
        }
    }
}
