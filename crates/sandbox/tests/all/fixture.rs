//! Runs the probe as root or as somebody else, in a directory of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

/// A user that is not root, where root runs the tests; otherwise whoever does.
pub(crate) const USER: u32 = 65534;

/// A directory to share, with `file` in it, and the probe where everybody may run it.
pub(crate) struct Fixture {
    directory: tempfile::TempDir,
    user: u32,
}

impl Fixture {
    /// For probes run by root. Nothing when the tests are not, which say less then.
    pub(crate) fn of_root() -> Option<Fixture> {
        rustix::process::geteuid().is_root().then(|| Fixture::new(0))
    }

    /// For probes run by somebody who is not root.
    pub(crate) fn of_user() -> Fixture {
        let own = rustix::process::geteuid();
        Fixture::new(if own.is_root() { USER } else { own.as_raw() })
    }

    fn new(user: u32) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let fixture = Fixture { directory, user };
        fs::set_permissions(fixture.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(fixture.shared()).unwrap();
        fs::write(fixture.shared().join("file"), "content").unwrap();
        fs::write(fixture.directory.path().join("secret"), "secret").unwrap();
        // By another process: a child that is forked meanwhile would keep our descriptor, and nobody could run the file.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sandbox-probe")).arg(fixture.probe()).status();
        assert!(copied.unwrap().success());
        if rustix::process::geteuid().is_root() {
            chown(fixture.shared(), Some(user), Some(user)).unwrap();
        }
        fixture
    }

    pub(crate) fn user(&self) -> u32 {
        self.user
    }

    pub(crate) fn shared(&self) -> PathBuf {
        self.directory.path().join("shared")
    }

    fn probe(&self) -> PathBuf {
        self.directory.path().join("probe")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.probe());
        command.args(arguments).stdin(Stdio::null());
        if !rustix::process::geteuid().is_root() {
            return command;
        }
        // This drops the supplementary groups as well.
        command.uid(self.user).gid(self.user);
        command
    }

    /// The probe's lines, and how it ended.
    pub(crate) fn run(&self, arguments: &[&str]) -> (Vec<String>, ExitStatus) {
        let output = self.command(arguments).output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        (lines, output.status)
    }

    /// The probe's lines inside of a sandbox around the shared directory.
    pub(crate) fn inside(&self, mode: &str, ids: &str, arguments: &[&str]) -> Vec<String> {
        let shared = self.shared();
        let enter = ["enter", mode, shared.to_str().unwrap(), ids, ids];
        let (lines, status) = self.run(&[&enter, arguments].concat());
        assert!(status.success(), "{status}: {lines:?}");
        assert_eq!(lines.first().map(String::as_str), Some("entered"));
        lines[1..].to_vec()
    }
}

/// The signal that a process in a sandbox ended by, as its parent outside tells it.
pub(crate) fn signal_of_child(status: ExitStatus) -> Option<i32> {
    status.code().map(|code| code - 128).filter(|signal| *signal > 0).or(status.signal())
}
