//! The way into a sandbox.

use crate::error::SandboxError;
use crate::mode::{Entered, Mode, Sandbox};
use crate::{chroot, mounts, namespace};
use rustix::io::Errno;

impl Sandbox {
    /// Enters the sandbox. The process must have one thread.
    ///
    /// With [`Mode::Namespace`] this returns in a child: the process that called stays outside, without rights and files,
    /// hands SIGTERM, SIGINT, SIGHUP and SIGQUIT on, and exits as the child does. The child is the first process of its
    /// process namespace. It ends when its parent does, and a signal that it has no handler for ends it as usual. A path
    /// names something in the shared directory, or nothing, afterwards.
    ///
    /// # Errors
    /// What stands against it, and what to do.
    pub fn enter(self) -> Result<Entered, SandboxError> {
        crate::one_thread()?;
        let root = rustix::process::geteuid().is_root();
        if self.mode == Mode::Chroot && !root {
            return Err(SandboxError::ChrootNeedsRoot);
        }
        if !(self.uid_map.is_empty() && self.gid_map.is_empty()) && (root || self.mode != Mode::Namespace) {
            return Err(SandboxError::MapWithoutUserNamespace);
        }
        // Mounts are moved onto the last component of a path, so it must not be a symbolic link.
        let sandbox = match self.shared_dir.canonicalize() {
            Ok(shared_dir) => Sandbox { shared_dir, ..self },
            Err(error) => {
                let source = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                return Err(SandboxError::SharedDir { path: self.shared_dir, source });
            }
        };
        let opened = mounts::open_directory(&sandbox.shared_dir)?;
        if root {
            drop_groups()?;
        }
        match sandbox.mode {
            Mode::Namespace => {
                drop(opened);
                namespace::enter(&sandbox)
            }
            Mode::Chroot => chroot::enter(&sandbox.shared_dir),
            Mode::None => Ok(Entered { root: opened, proc_self_fd: mounts::proc_self_fd()? }),
        }
    }
}

/// Supplementary groups of root would be power that no caller of the daemon has asked for, and two more system calls for
/// every file that is created as somebody else.
fn drop_groups() -> Result<(), SandboxError> {
    let some = rustix::process::getgroups().map_or(true, |groups| !groups.is_empty());
    if !some {
        return Ok(());
    }
    match rustix::thread::set_thread_groups(&[]) {
        // In a user namespace of one id nobody may, and nobody can take another id either.
        Err(Errno::PERM) if std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|word| word.trim() == "deny") => {
            Ok(())
        }
        answer => answer.map_err(SandboxError::kernel(
            "drop supplementary groups",
            "start the daemon with CAP_SETGID, or without supplementary groups",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for mode in [Mode::Namespace, Mode::Chroot, Mode::None] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(mode.to_string().to_uppercase().parse(), Ok(mode));
        }
        let error = "jail".parse::<Mode>().expect_err("no mode").to_string();
        assert_eq!(error, "`jail` is no sandbox: use namespace, chroot or none");
    }
}
