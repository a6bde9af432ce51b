//! Which files the daemon may reach by their names: Landlock (`linux/landlock.h`).
//!
//! Rules name files and directories. What is open already stays open, whatever the rules say, and what a frontend hands over
//! may be used. A rule holds for the file it was made for, not for its name: a file that is put in its place later is another.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, NetPort, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::FileType;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// What is forbidden unless a rule allows it: everything that this version of the interface (Linux 6.12) knows. Connecting to
/// sockets that have a path is not yet among it, so that name services and service managers stay within reach.
const INTERFACE: ABI = ABI::V6;

/// Where programs and their libraries are. What is not there on some system is left out.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Names of users, groups and time zones; processes; devices and their limits.
const SETTINGS: [&str; 3] = ["/etc", "/proc", "/sys"];
/// Devices that hold nothing of anybody's.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/urandom"];

/// What may be done with what a path names, and with all that is below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Open it for reading.
    Read,
    /// Open it for reading, and run it.
    Run,
    /// Open it for reading and writing, change its size, and control the device that it is.
    Image,
    /// Make sockets in it, and remove files from it.
    Sockets,
    /// Make files in it, and open and remove those.
    Files,
    /// Everything.
    All,
}

impl Grant {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Grant::Read => read,
            Grant::Run => read | AccessFs::Execute,
            Grant::Image => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
            Grant::Sockets => AccessFs::MakeSock | AccessFs::RemoveFile,
            Grant::Files => {
                AccessFs::MakeReg | AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::RemoveFile
            }
            Grant::All => AccessFs::from_all(INTERFACE),
        }
    }
}

/// Why a process could not be confined to paths.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum LandlockError {
    /// {0}; name what exists and may be looked at, or use --landlock=off
    Path(#[from] PathFdError),
    /// {path}: {source}; name what may be looked at, or use --landlock=off
    Look {
        /// The path.
        path: PathBuf,
        /// The kernel's answer.
        source: rustix::io::Errno,
    },
    /// the kernel refuses the rules: {0}; use --landlock=off
    Rules(#[from] RulesetError),
}

/// What became of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Landlock {
    /// They hold, for this thread and all that it starts, for ever.
    Held {
        /// Version of the interface that the kernel and this program have in common.
        abi: u32,
        /// Whether the kernel knew everything that was asked for. Without, it is too old for some of it.
        complete: bool,
    },
    /// The kernel has no Landlock; what would help.
    Missing(&'static str),
}

/// The paths that a process may reach.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    rules: Vec<(PathBuf, Grant)>,
    /// Let the process connect to sockets in the abstract name space, which have no path.
    pub abstract_sockets: bool,
    /// TCP ports that the process may still bind; what is bound already needs no rule. Kernels before Linux 6.7 have no rules
    /// for ports, and forbid none.
    pub tcp_ports: Vec<u16>,
    /// Let the process connect by TCP, to anybody.
    pub connects: bool,
}

impl Reach {
    /// What any daemon reads while it runs: programs and libraries, so that it can be replaced by a newer one; the settings of
    /// the system; what the kernel tells about processes and devices. `program` is the daemon's own file.
    pub fn of_system(program: Option<&Path>) -> Reach {
        let mut reach = Reach::default();
        let own = program.and_then(Path::parent);
        let programs = PROGRAMS.into_iter().map(Path::new).chain(own);
        let rules = programs
            .map(|path| (path, Grant::Run))
            .chain(SETTINGS.into_iter().map(|path| (Path::new(path), Grant::Read)))
            .chain(DEVICES.into_iter().map(|path| (Path::new(path), Grant::Image)));
        reach.rules.extend(rules.filter(|(path, _)| path.exists()).map(|(path, grant)| (path.to_owned(), grant)));
        reach
    }

    /// Allows `grant` for what `path` names, which must exist when the rules are made.
    pub fn allow(&mut self, path: impl Into<PathBuf>, grant: Grant) {
        self.rules.push((path.into(), grant));
    }

    /// The paths with what is allowed, in the order they came.
    pub fn rules(&self) -> &[(PathBuf, Grant)] {
        &self.rules
    }

    /// Forbids everything else, and any other use of TCP, and signals to processes outside, for this thread and all that it starts, for ever.
    /// It gives up new privileges as well. Threads that run already are not held: call it when there are none.
    ///
    /// # Errors
    /// For a path that does not exist, or when the kernel refuses. A kernel without Landlock is no error.
    pub fn enforce(&self) -> Result<Landlock, LandlockError> {
        let scope = match self.abstract_sockets {
            true => BitFlags::from(Scope::Signal),
            false => Scope::from_all(INTERFACE),
        };
        let network = match self.connects {
            true => AccessNet::from_all(INTERFACE) & !AccessNet::ConnectTcp,
            false => AccessNet::from_all(INTERFACE),
        };
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(INTERFACE))?
            .handle_access(network)?
            .scope(scope)?
            .create()?;
        for (path, grant) in &self.rules {
            let opened = PathFd::new(path)?;
            let about = rustix::fs::fstat(opened.as_fd())
                .map_err(|source| LandlockError::Look { path: path.clone(), source })?;
            // A right that a kind of file does not have would count as a restriction that the kernel lacks.
            let rights = match FileType::from_raw_mode(about.st_mode) {
                FileType::Directory => grant.rights(),
                _ => grant.rights() & AccessFs::from_file(INTERFACE),
            };
            if !rights.is_empty() {
                ruleset = ruleset.add_rule(PathBeneath::new(opened, rights))?;
            }
        }
        for port in &self.tcp_ports {
            ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
        }
        let status = ruleset.restrict_self()?;
        Ok(match (status.ruleset, status.landlock) {
            (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
                Landlock::Missing("add landlock to the kernel's lsm= parameter")
            }
            (RulesetStatus::NotEnforced, _) => Landlock::Missing("use Linux 5.13 or newer, built with Landlock"),
            (enforced, landlock) => {
                Landlock::Held { abi: number(landlock), complete: enforced == RulesetStatus::FullyEnforced }
            }
        })
    }
}

fn number(status: LandlockStatus) -> u32 {
    match status {
        LandlockStatus::Available { effective_abi, .. } => effective_abi.to_string().parse().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_read_and_not_written() {
        let program = std::env::current_exe().unwrap();
        let reach = Reach::of_system(Some(&program));
        let grant = |path: &Path| reach.rules().iter().find(|(named, _)| named == path).map(|(_, grant)| *grant);
        assert_eq!(grant(Path::new("/usr")), Some(Grant::Run));
        assert_eq!(grant(program.parent().unwrap()), Some(Grant::Run));
        assert_eq!(grant(Path::new("/etc")), Some(Grant::Read));
        assert_eq!(grant(Path::new("/")), None);
        // Who may write there can kill the processes of any control group.
        assert_eq!(grant(Path::new("/sys/fs/cgroup")), None);
        for grant in [Grant::Read, Grant::Run] {
            assert!((grant.rights() & AccessFs::from_write(INTERFACE)).is_empty(), "{grant:?}");
        }
    }

    #[test]
    fn a_path_that_is_not_there_is_named() {
        let mut reach = Reach::default();
        reach.allow("/nonexistent/image", Grant::Image);
        let error = reach.enforce().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/image") && error.contains("--landlock=off"), "{error}");
    }
}
