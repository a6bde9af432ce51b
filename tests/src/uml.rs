//! Boots User Mode Linux on vhost-user devices and runs one script in it.
//!
//! The script and its exit status travel through a directory of the host that the guest mounts, so that
//! neither is mixed with what the kernel and the script write to the console, which is where a failed test
//! looks.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::Kit;
use guest::shell::Share;
use guest::uml::command_for_one_script;

use crate::device::Device;
use crate::lab::Lab;
use crate::nudge;
use crate::process::Group;

/// Which kernel to boot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kernel {
    /// Debian's: one processor.
    Debian,
    /// The lab's own build, with this many processors.
    Smp(u32),
}

/// The machine that a guest runs on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Machine {
    /// Its kernel.
    pub kernel: Kernel,
    /// Its memory, which takes the host's only as far as it is used.
    pub memory_mebibytes: u32,
}

impl From<Kernel> for Machine {
    fn from(kernel: Kernel) -> Self {
        Self { kernel, memory_mebibytes: 512 }
    }
}

/// A guest that was started.
#[derive(Debug)]
pub struct Guest {
    process: Group,
    share: Share,
}

/// What a guest left when it ended.
#[derive(Debug)]
pub struct Ended {
    /// The script's exit status.
    pub status: i32,
    /// What was written to the console, its end if that is long.
    pub console: String,
}

impl Guest {
    /// Boots a guest with `devices` and lets it run `script` with `/bin/sh -eu`. Disks are
    /// `/dev/vda`, `/dev/vdb`, …; directories are mounted by the script. Files of the host reach
    /// the guest and come back in [`Guest::shared`], which the script knows as `$job`.
    pub fn boot(lab: &Lab, machine: impl Into<Machine>, devices: &[Device], script: &str) -> Result<Self> {
        let share = Share::new()?;
        fs::write(share.path().join("script"), script)?;
        let Machine { kernel, memory_mebibytes: memory_mib } = machine.into();
        let (kernel, processors) = match kernel {
            Kernel::Debian => (lab.uml(), 1),
            Kernel::Smp(processors) => {
                lab.require_uml_smp()?;
                (lab.uml_smp(), processors)
            }
        };
        let kit = Kit { uml: Some(kernel), ..lab.kit() };
        let machine = guest::Machine { processors, memory_mib, ..guest::Machine::default() };
        let command = command_for_one_script(&kit, &machine, devices, &share)?;
        let process = Group::start(&command, &share.path().join("console"))?;
        if processors > 1 {
            nudge::begin(process.id())?;
        }
        Ok(Self { process, share })
    }

    /// A directory that host and guest both see.
    pub fn shared(&self) -> &Path {
        self.share.path()
    }

    /// Waits until the script has created the file `name` in the shared directory.
    pub fn wait_for(&mut self, name: &str, limit: Duration) -> Result<()> {
        let path = self.share.path().join(name);
        self.process
            .wait_until(limit, |_| path.exists())
            .with_context(|| format!("waiting for the guest to say `{name}`"))
    }

    /// Waits until the script has created one of two files in the shared directory.
    pub fn wait_for_either(&mut self, one: &str, other: &str, limit: Duration) -> Result<()> {
        let paths = [one, other].map(|name| self.share.path().join(name));
        self.process
            .wait_until(limit, |_| paths.iter().any(|path| path.exists()))
            .with_context(|| format!("waiting for the guest to say `{one}` or `{other}`"))
    }

    /// Whether the script has created the file `name` in the shared directory. Fails if the guest
    /// has ended without.
    pub fn said(&mut self, name: &str) -> Result<bool> {
        let running = self.process.is_running()?;
        let said = self.share.path().join(name).exists();
        ensure!(said || running, "the guest ended and never said `{name}`:\n{}", self.process.output());
        Ok(said)
    }

    /// Does `step` again and again until the script has created the file `name`. Fails if it has not within `limit`.
    pub fn until(&mut self, name: &str, limit: Duration, mut step: impl FnMut() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        while !self.said(name)? {
            let (seconds, console) = (limit.as_secs(), self.process.output());
            ensure!(start.elapsed() < limit, "the guest did not say `{name}` within {seconds} s:\n{console}");
            step()?;
        }
        Ok(())
    }

    /// Tells the script something by creating the file `name` in the shared directory.
    pub fn tell(&self, name: &str) -> Result<()> {
        fs::write(self.share.path().join(name), "")?;
        Ok(())
    }

    /// Waits for the end of the guest. After `limit` it is killed and the call fails.
    pub fn wait(mut self, limit: Duration) -> Result<Ended> {
        let status = self.process.wait(limit)?;
        let console = self.process.output();
        let exit = fs::read_to_string(self.share.path().join("exit"))
            .with_context(|| format!("the guest ended with {status} before its script did:\n{console}"))?;
        Ok(Ended { status: exit.trim().parse().context("the guest wrote a status")?, console })
    }

    /// Ends the guest as a power cut does.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

/// Boots a guest, runs `script` and expects it to succeed. Returns the console's text.
pub fn run(lab: &Lab, kernel: Kernel, devices: &[Device], script: &str, limit: Duration) -> Result<String> {
    let ended = Guest::boot(lab, kernel, devices, script)?.wait(limit)?;
    ensure!(ended.status == 0, "the script failed in the guest with status {}:\n{}", ended.status, ended.console);
    Ok(ended.console)
}

/// One of several scripts that share a guest, whose start takes as long as many of them.
#[derive(Clone, Debug)]
pub struct Script {
    /// By what its failure is told.
    pub name: String,
    /// What it does.
    pub body: String,
    /// What is done when it has failed, for those after it.
    pub amends: &'static str,
}

/// Boots one guest, which does `before`, and then the scripts one after the other: each in a shell of its own, which ends at the
/// first failure, and whatever has become of those before it.
///
/// # Errors
///
/// Names every script that failed, with what the console shows of it.
pub fn run_each(
    lab: &Lab,
    machine: impl Into<Machine>,
    devices: &[Device],
    before: &str,
    scripts: &[Script],
    limit: Duration,
) -> Result<()> {
    let mut all = format!("{before}\nexport job\n");
    for (number, Script { body, amends, .. }) in scripts.iter().enumerate() {
        let script = format!(
            "cat >/tmp/script <<'END OF SCRIPT'
set -x
{body}
END OF SCRIPT
if /bin/sh -eu /tmp/script >$job/{number}.log 2>&1; then touch $job/{number}.done; else {amends} || true; fi
"
        );
        all.push_str(&script);
    }
    let mut guest = Guest::boot(lab, machine, devices, &all)?;
    // Also of a guest that hangs or dies it is known which scripts have succeeded and what the others have said.
    let ended = guest.process.wait(limit).map(|_| ());
    let failed = failed(guest.shared(), scripts);
    ensure!(
        failed.is_empty(),
        "failed in the guest: {}\nthe guest: {ended:?}\n{}",
        failed.join("\n"),
        guest.process.output()
    );
    ended.context("every script has succeeded, and then the guest did not end")?;
    let ended = guest.wait(limit)?;
    ensure!(ended.status == 0, "the guest's own script failed with status {}:\n{}", ended.status, ended.console);
    Ok(())
}

/// Of each script that has not succeeded, its name and what it has said.
fn failed(job: &Path, scripts: &[Script]) -> Vec<String> {
    let of = |(number, Script { name, .. }): (usize, &Script)| {
        let said =
            || fs::read_to_string(job.join(format!("{number}.log"))).unwrap_or_else(|_| "did not begin".to_owned());
        (!job.join(format!("{number}.done")).exists()).then(|| format!("{name}:\n{}", said()))
    };
    scripts.iter().enumerate().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_failed_are_named_with_what_they_said() {
        let job = tempfile::TempDir::new().unwrap();
        let script = |name: &str| Script { name: name.to_owned(), body: String::new(), amends: ":" };
        fs::write(job.path().join("0.log"), "+ true").unwrap();
        fs::write(job.path().join("0.done"), "").unwrap();
        fs::write(job.path().join("1.log"), "+ false").unwrap();
        assert_eq!(
            failed(job.path(), &[script("one"), script("two"), script("three")]),
            ["two:\n+ false", "three:\ndid not begin"]
        );
    }
}
