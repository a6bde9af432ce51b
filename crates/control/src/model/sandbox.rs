//! What the daemon has given up, as the API shows it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What holds the daemon. All but `landlock` and `file_system` is what the kernel answers at the moment of the question.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxInfo {
    /// Whether no program that the daemon starts can have more rights than the daemon (PR_SET_NO_NEW_PRIVS).
    pub no_new_privs: bool,
    /// Effective capabilities, as in `cap_chown`.
    pub capabilities: Vec<String>,
    /// What becomes of a system call that the daemon has no use for.
    pub seccomp: SeccompState,
    /// What the process sees of the host's files.
    pub file_system: FileSystem,
    /// The paths within reach; absent when Landlock does not hold the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock: Option<LandlockInfo>,
    /// Why Landlock does not hold the daemon; absent when it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock_off: Option<String>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// What becomes of a system call that the daemon has no use for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SeccompState {
    /// It is made: nothing is filtered.
    #[default]
    None,
    /// The daemon is killed.
    Kill,
    /// The daemon gets SIGSYS.
    Trap,
    /// It is made, and noted in the kernel's log.
    Log,
    /// It is filtered by who started the daemon, such as a container or a service manager.
    Foreign,
}

/// What a process sees of the host's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileSystem {
    /// All that its user may see, as far as Landlock allows.
    #[default]
    Host,
    /// The shared directory as its root directory.
    Chroot,
    /// The shared directory as the only mount of its namespaces.
    Namespace,
}

/// The paths within reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LandlockInfo {
    /// Version of the kernel's interface that is used.
    pub abi: u32,
    /// Whether the kernel knew all that was asked for; a kernel that is too old for some of it leaves that allowed.
    pub complete: bool,
    /// Images and directories of the exports and the operator; the system's programs and settings, which can be read, are
    /// not among them.
    pub paths: Vec<String>,
}
