//! Which sandbox, around which directory.

use crate::IdMapping;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

/// How a daemon is locked into the directory that it shares: the words of `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Namespaces of its own for processes, mounts and networks, and for users unless root starts it.
    #[default]
    Namespace,
    /// Another root directory. Root only, and a process of root that is broken into can leave it.
    Chroot,
    /// Nothing: names are confined by the tree alone.
    None,
}

/// `{0}` is no sandbox: use namespace, chroot or none
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Mode, UnknownMode> {
        match text.to_ascii_lowercase().as_str() {
            "namespace" => Ok(Mode::Namespace),
            "chroot" => Ok(Mode::Chroot),
            "none" => Ok(Mode::None),
            _ => Err(UnknownMode(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Namespace => "namespace",
            Mode::Chroot => "chroot",
            Mode::None => "none",
        })
    }
}

/// A sandbox, not yet entered.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Which one.
    pub mode: Mode,
    /// The directory to share.
    pub shared_dir: PathBuf,
    /// User ids of the user namespace. Empty: the caller's own, standing for itself.
    pub uid_map: Vec<IdMapping>,
    /// Group ids of the user namespace. Empty: the caller's own, standing for itself.
    pub gid_map: Vec<IdMapping>,
}

/// What a process inside of its sandbox holds of the outside.
#[derive(Debug)]
pub struct Entered {
    /// The shared directory, opened with `O_PATH`.
    pub root: OwnedFd,
    /// `/proc/self/fd` of this process, to open again what is open: nothing else can be reached from it where the system
    /// lets the daemon make a mount of it.
    pub proc_self_fd: OwnedFd,
}
