//! What a process that serves one directory may do besides: its sandbox, system calls, capabilities and descriptors.

use crate::confine::Held;
use crate::failure::Failure;
use control::model::FileSystem;
use control::model::directory::Directory;
use control::model::{FileHandles, MigrationMode};
use passthrough::Source;
use sandbox::{Capabilities, IdMapping, Mode, Role, Sandbox, SandboxError, Seccomp};
use std::fmt::Display;

/// Options of the isolation.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Isolation")]
pub(crate) struct IsolationArgs {
    /// What hides the rest of the host: namespace, chroot or none
    #[arg(long, value_name = "MODE", default_value_t)]
    pub(crate) sandbox: Mode,
    /// Map user ids into the sandbox's user namespace, as in :0:100000:65536: (inside, outside, count); may be repeated
    #[arg(long, value_name = "MAP")]
    pub(crate) uid_map: Vec<IdMapping>,
    /// Map group ids into the sandbox's user namespace; may be repeated
    #[arg(long, value_name = "MAP")]
    pub(crate) gid_map: Vec<IdMapping>,
    /// What becomes of a system call that the server has no use for: kill, log, trap or none (allow all)
    #[arg(long, value_name = "ACTION", default_value_t)]
    pub(crate) seccomp: Seccomp,
    /// Capabilities to keep or drop besides the usual ones, as in +sys_admin:-chown
    #[arg(long, value_name = "LIST")]
    pub(crate) modcaps: Option<String>,
    /// Most descriptors of the process; 0 to leave the limit alone [default: 1000000, or what the kernel allows]
    #[arg(long, value_name = "N")]
    pub(crate) rlimit_nofile: Option<u64>,
}

impl IsolationArgs {
    /// Isolates this process, which has one thread and serves one directory. What is returned stands for that directory,
    /// whose path may be out of sight. `role` says whether another program may take this one's place. With a sandbox of namespaces it returns in a child; see [`Sandbox::enter`].
    ///
    /// # Errors
    /// [`Failure::Usage`]: what cannot be had, after the option that asked for it.
    pub(crate) fn enter(&self, directory: &Directory, role: Role) -> Result<(Source, Held), Failure> {
        let by_handles = directory.inode_file_handles != FileHandles::Never
            || directory.migration_mode == MigrationMode::FileHandles;
        let capabilities =
            Capabilities::new(by_handles, self.modcaps.as_deref()).map_err(|error| refused("--modcaps", error))?;
        sandbox::set_open_files_max(self.rlimit_nofile).map_err(|error| refused("--rlimit-nofile", error))?;
        let label = std::path::absolute(&directory.path).unwrap_or_else(|_| directory.path.clone());
        let sandbox = Sandbox {
            mode: self.sandbox,
            shared_dir: directory.path.clone(),
            uid_map: self.uid_map.clone(),
            gid_map: self.gid_map.clone(),
        };
        let entered = sandbox.enter().map_err(|error| match error {
            // That is about the directory, not about how it is isolated.
            SandboxError::SharedDir { .. } => Failure::Usage(error.to_string()),
            error => refused("--sandbox", error),
        })?;
        sandbox::give_up_new_privileges().map_err(|error| refused("--sandbox", error))?;
        capabilities.apply().map_err(|error| refused("--modcaps", error))?;
        self.seccomp.apply(role).map_err(|error| refused("--seccomp", error))?;
        let file_system = match self.sandbox {
            Mode::Namespace => FileSystem::Namespace,
            Mode::Chroot => FileSystem::Chroot,
            Mode::None => FileSystem::Host,
        };
        let held = Held::around_directory(self.seccomp, file_system, role);
        Ok((Source::Opened { root: entered.root, proc_self_fd: entered.proc_self_fd, label }, held))
    }
}

fn refused(option: &str, error: impl Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}
