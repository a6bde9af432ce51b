//! Whose power a thread has: the ids, groups, capabilities and umask of the calling thread, one operation long.

use rustix::io::Errno;

/// Who asks: the ids, as the host knows them, that a new file is created with.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Supplementary groups the file may be created with, usually none or one.
    pub groups: &'a [u32],
}

/// Runs one creating system call as `caller`, and is the daemon again afterwards.
///
/// # Errors
/// What `call` answers; `EPERM` where the daemon may not take these ids.
pub(crate) fn as_caller<T>(_caller: Caller<'_>, _call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    Err(Errno::NOSYS)
}

/// Runs `call` without `CAP_FSETID`, so that the kernel drops set-id bits and file capabilities as it does for a user.
///
/// # Errors
/// What `call` answers, or what stood against the change of capabilities.
pub(crate) fn without_fsetid<T>(_call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    Err(Errno::NOSYS)
}

/// Runs `call` under `umask`, which is this thread's alone. Every creating call goes through here, those that want 0 too.
///
/// # Errors
/// What `call` answers, or what stood against a umask of the thread's own.
pub(crate) fn with_umask<T>(_umask: u32, _call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    Err(Errno::NOSYS)
}
