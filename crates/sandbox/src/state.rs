//! What holds a process, as the kernel tells.

use caps::CapSet;
use rustix::thread::SecureComputingMode;

/// What holds the thread that asks, and all that was started after it was made to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// No program that is started can have more rights (`PR_GET_NO_NEW_PRIVS`).
    pub no_new_privs: bool,
    /// Effective capabilities, as capabilities(7) spells them in lower case, in order.
    pub capabilities: Vec<String>,
    /// System calls are filtered, by this program or by who started it (`PR_GET_SECCOMP`).
    pub seccomp: bool,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl State {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn of_thread() -> std::io::Result<State> {
        let effective = caps::read(None, CapSet::Effective).map_err(std::io::Error::other)?;
        let mut capabilities: Vec<_> =
            effective.into_iter().map(|capability| capability.to_string().to_ascii_lowercase()).collect();
        capabilities.sort_unstable();
        Ok(State {
            no_new_privs: rustix::thread::no_new_privs()?,
            capabilities,
            // Who is held by the strict mode cannot ask.
            seccomp: matches!(rustix::thread::secure_computing_mode()?, SecureComputingMode::Filter),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        })
    }
}

/// Gives up, for this thread and all that it starts, that a program could ever have more rights than its starter.
///
/// # Errors
/// When the kernel does not know of it.
pub fn give_up_new_privileges() -> Result<(), crate::SandboxError> {
    rustix::thread::set_no_new_privs(true)
        .map_err(crate::SandboxError::kernel("give up new privileges", "use Linux 3.5 or newer"))
}

/// That this process has one thread: what is given up by one is not given up by those that run already.
///
/// # Errors
/// [`SandboxError::Threads`](crate::SandboxError::Threads).
pub fn one_thread() -> Result<(), crate::SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads == 1 { Ok(()) } else { Err(crate::SandboxError::Threads(threads)) }
}
