//! Why a sandbox could not be entered, in words that name the fix.

use rustix::io::Errno;
use std::path::PathBuf;

/// Why a sandbox could not be entered.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum SandboxError {
    /// a sandbox is entered by a process of one thread, and this one has {0}: enter it first, start threads afterwards
    Threads(usize),
    /// {path}: {source}; share a directory that exists and that this daemon may read
    SharedDir {
        /// The directory to share.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// --sandbox=chroot needs root: use --sandbox=namespace, or --sandbox=none
    ChrootNeedsRoot,
    /// --uid-map and --gid-map describe the user namespace of a daemon that is not root and runs with --sandbox=namespace: leave them away, or use --translate-uid and --translate-gid
    MapWithoutUserNamespace,
    /// {doing}: {source}; {fix}
    Kernel {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        source: Errno,
        /// What the reader can do about it.
        fix: &'static str,
    },
    /// the ids of the user namespace could not be set: {0}; map the caller's own id alone, or install newuidmap and newgidmap and give the caller's ranges in /etc/subuid and /etc/subgid
    IdMap(String),
    /// the process that started the sandbox has died
    ParentDied,
}

impl SandboxError {
    pub(crate) fn kernel(doing: &'static str, fix: &'static str) -> impl FnOnce(Errno) -> SandboxError {
        move |source| SandboxError::Kernel { doing, source, fix }
    }
}

/// The answer of a call that libc makes.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
