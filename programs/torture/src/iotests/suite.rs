//! One test after the other, by QEMU's own `check`.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::lab::Lab;
use guest::process::Group;

use super::Server;
use super::client;

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// What came of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// What it said otherwise; also why it did not run.
    Failed(String),
}

impl Outcome {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Outcome::Passed => "passes",
            Outcome::Failed(_) => "does not pass",
        }
    }
}

/// Where tests are, and where they run.
pub(super) struct Suite<'a> {
    lab: &'a Lab,
    vringd: &'a Path,
    scratch: &'a Path,
    /// In the place of `qemu-io`.
    client: PathBuf,
}

impl<'a> Suite<'a> {
    pub(super) fn new(lab: &'a Lab, vringd: &'a Path, scratch: &'a Path) -> Result<Suite<'a>> {
        let python = Command::new("python3").arg("--version").output();
        ensure!(python.is_ok_and(|it| it.status.success()), "QEMU's tests are run by python3: install that package");
        let client = scratch.join("qemu-io");
        let this = env::current_exe().context("a program has a path")?;
        let script = format!("#!/bin/sh\nexec '{}' iotests-client -- \"$@\"\n", this.display());
        fs::write(&client, script).and_then(|()| fs::set_permissions(&client, Permissions::from_mode(0o755)))?;
        Ok(Suite { lab, vringd, scratch, client })
    }

    /// Shell scripts that call `qemu-io` on qcow2 images and start no virtual machine.
    pub(super) fn all(&self) -> Result<Vec<String>> {
        let root = self.lab.iotests();
        let mut names = Vec::new();
        for directory in ["", "tests/"] {
            for file in fs::read_dir(root.join(directory))? {
                let name = format!("{directory}{}", file?.file_name().to_string_lossy());
                // What is no text is no test.
                let Ok(text) = fs::read_to_string(root.join(&name)) else { continue };
                let is_test = root.join(format!("{name}.out")).exists();
                let formats = text.lines().find_map(|line| line.strip_prefix("_supported_fmt "));
                let fits = formats.is_some_and(|formats| formats.contains("qcow2") || formats.contains("generic"));
                let has_machine = ["_launch_qemu", "common.qemu"].iter().any(|word| text.contains(word));
                if is_test && fits && text.contains("QEMU_IO") && !has_machine {
                    names.push(name);
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// Runs a test, by QEMU alone or with the images served.
    pub(super) fn run(&self, name: &str, server: Option<Server>) -> Result<Outcome> {
        let directory = self.scratch.join("images");
        // Whatever the one before has left.
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        let log = self.log();
        for place in [&directory, &self.scratch.join("sockets")] {
            fs::create_dir_all(place)?;
        }
        fs::write(&log, "")?;
        let mut command = Command::new(self.lab.iotests().join("check"));
        command.args(["-qcow2", name]).current_dir(self.lab.iotests());
        command.env("TEST_DIR", &directory).env("SOCK_DIR", self.scratch.join("sockets"));
        for (variable, program) in [
            ("QEMU_PROG", "qemu-system-x86_64"),
            ("QEMU_IMG_PROG", "qemu-img"),
            ("QEMU_IO_PROG", "qemu-io"),
            ("QEMU_NBD_PROG", "qemu-nbd"),
            ("QSD_PROG", "qemu-storage-daemon"),
        ] {
            command.env(variable, self.lab.program(program));
        }
        if let Some(server) = server {
            command.env("QEMU_IO_PROG", &self.client);
            let serve = match server {
                Server::Vringd => self.vringd.to_owned(),
                Server::QemuStorageDaemon => self.lab.program("qemu-storage-daemon"),
            };
            command.env(client::SERVER, serve).env(client::QEMU_IO, self.lab.program("qemu-io"));
            command.env(client::LOG, &log).env(client::PLACE, self.scratch);
        }
        let mut check = Group::start(&command, &self.scratch.join("said"))?;
        let ended = check.wait(LIMIT);
        let said = check.output();
        let passed = ended.is_ok_and(|status| status.success()) && !said.contains("Not run");
        Ok(if passed { Outcome::Passed } else { Outcome::Failed(said) })
    }

    /// How often images were served in the last test.
    pub(super) fn served(&self) -> Result<usize> {
        Ok(fs::read_to_string(self.log())?.lines().count())
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("served")
    }
}
