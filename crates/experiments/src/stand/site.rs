//! What a person gave on the command line: programs, directories, guests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::programs::{self, VIRTIOFSD_DIRECTORIES};
use guest::Kit;

use super::Trouble;

/// What stands are made of on this machine.
#[derive(Clone, Debug)]
pub struct Site {
    /// Files that guests are made of.
    pub kit: Kit,
    /// Our own program.
    pub vringd: PathBuf,
    /// A directory for data on a disk.
    pub data: PathBuf,
    /// A directory for data in memory, on a tmpfs.
    pub memory: PathBuf,
    /// A directory for sockets and logs. Its path must be short: a socket's path has at most 107 bytes.
    pub scratch: PathBuf,
    /// Programs of others.
    pub programs: Programs,
    /// A guest that the person runs.
    pub ssh: Option<SshSite>,
    /// How long things may take.
    pub limits: Limits,
}

/// Programs of others; `None` where one was not found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// The Rust virtiofsd.
    pub virtiofsd: Option<PathBuf>,
    /// qemu-storage-daemon.
    pub storage_daemon: Option<PathBuf>,
    /// fio, for the host.
    pub fio: Option<PathBuf>,
}

impl Programs {
    /// Completes what the person gave (`given`) from the lab's directory of programs, then from `PATH`.
    pub fn find(given: &Self, lab: Option<&Path>) -> Self {
        let of_lab = |name: &str| lab.map(|lab| lab.join(name)).filter(|path| programs::is_program(path));
        let search = |given: &Option<PathBuf>, name: &str, further: &[&str]| {
            given.clone().or_else(|| of_lab(name)).or_else(|| programs::find(name, further))
        };
        Self {
            virtiofsd: search(&given.virtiofsd, "virtiofsd", &VIRTIOFSD_DIRECTORIES),
            storage_daemon: search(&given.storage_daemon, "qemu-storage-daemon", &[]),
            fio: search(&given.fio, "fio", &[]),
        }
    }
}

/// A program that can be started, or one clear line.
pub(crate) fn require<'a>(program: Option<&'a Path>, name: &str, option: &str) -> Result<&'a Path, Trouble> {
    match program {
        None => Err(Trouble::Unsupported(format!("{name} was not found: install it or give {option} PATH"))),
        Some(path) if !programs::is_program(path) => {
            Err(Trouble::Unsupported(format!("{name} cannot be started: {} is no program", path.display())))
        }
        Some(path) => Ok(path),
    }
}

/// A guest that the person runs, and reaches by ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshSite {
    /// What ssh connects to, such as `root@guest`.
    pub target: String,
    /// A shell command on this host that gives the guest the device, after its server has started. `{socket}` and
    /// `{tag}` are replaced.
    pub attach: String,
    /// A shell command on this host that takes the device away, before its server ends.
    pub detach: Option<String>,
}

/// How long things may take before they count as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A server, until it listens.
    pub server: Duration,
    /// A guest, until it answers; also each mount and each hook of ssh.
    pub boot: Duration,
    /// A measurement, besides its time and warm-up: to start fio, and to finish what is in flight.
    pub slack: Duration,
    /// Writing what a guest holds in its caches to the disk.
    pub sync: Duration,
    /// A guest or a server, to end when asked to.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            server: Duration::from_secs(15),
            boot: Duration::from_secs(90),
            slack: Duration::from_secs(90),
            sync: Duration::from_secs(120),
            end: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_was_given_comes_first_then_the_lab_then_the_path() {
        let lab = tempfile::tempdir().unwrap();
        for name in ["fio", "virtiofsd"] {
            let file = lab.path().join(name);
            fs::write(&file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(lab.path().join("qemu-storage-daemon"), "not executable").unwrap();
        let given = Programs { virtiofsd: Some("/given/virtiofsd".into()), ..Programs::default() };
        let found = Programs::find(&given, Some(lab.path()));
        assert_eq!(found.virtiofsd.as_deref(), Some(Path::new("/given/virtiofsd")));
        assert_eq!(found.fio, Some(lab.path().join("fio")));
        assert!(found.storage_daemon.is_none_or(|path| !path.starts_with(lab.path())));
    }

    #[test]
    fn a_missing_program_is_one_clear_line() {
        let trouble = require(None, "virtiofsd", "--virtiofsd").unwrap_err();
        let expected = "virtiofsd was not found: install it or give --virtiofsd PATH";
        assert_eq!(trouble, Trouble::Unsupported(expected.into()));
        let trouble = require(Some(Path::new("/nonexistent/x")), "fio", "--fio").unwrap_err();
        assert_eq!(trouble, Trouble::Unsupported("fio cannot be started: /nonexistent/x is no program".into()));
    }
}
