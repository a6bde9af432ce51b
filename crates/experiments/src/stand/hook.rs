//! A guest of the person: commands that give it a device and take it away, and a mount that must not stay.
//!
//! These run without the guest's shell and whatever else has happened, as they undo what was done to a machine that is
//! not ours.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::process::Group;

use super::inside::quoted;
use super::{SshSite, Trouble, last_line};

/// What was done to a guest of the person.
#[derive(Debug)]
pub(super) struct Hook {
    target: String,
    mountpoint: String,
    detach: Option<String>,
}

impl Hook {
    /// Gives the guest the device.
    pub(super) fn attach(
        site: &SshSite,
        socket: &Path,
        tag: &str,
        mountpoint: &str,
        limit: Duration,
    ) -> Result<Self, Trouble> {
        let fill =
            |command: &str| command.replace("{socket}", &quoted(&socket.to_string_lossy())).replace("{tag}", tag);
        shell(&fill(&site.attach), limit)
            .map_err(|error| Trouble::failed(&error.context("giving the guest its device")))?;
        Ok(Self {
            target: site.target.clone(),
            mountpoint: mountpoint.to_owned(),
            detach: site.detach.as_deref().map(fill),
        })
    }

    /// Unmounts in the guest, and takes the device away.
    pub(super) fn detach(self, limit: Duration) -> Result<()> {
        let path = quoted(&self.mountpoint);
        // Lazily, as its server may be gone; and it may never have been mounted.
        let script = format!("if [ -d {path} ]; then umount -l {path} 2>/dev/null; rmdir {path}; fi");
        let mut ssh = Command::new("ssh");
        ssh.args(["-o", "BatchMode=yes", "--", &self.target, &script]);
        let unmounted = bounded(&ssh, limit).context("unmounting in the guest");
        let detached = self.detach.map_or(Ok(()), |command| shell(&command, limit)).context("taking the device away");
        unmounted.and(detached)
    }
}

fn shell(command: &str, limit: Duration) -> Result<()> {
    bounded(Command::new("sh").args(["-eu", "-c", command]), limit)
}

/// Runs a command that must succeed in a time.
fn bounded(command: &Command, limit: Duration) -> Result<()> {
    let said = tempfile::NamedTempFile::new()?;
    let mut process = Group::start(command, said.path())?;
    let status = process.wait(limit)?;
    ensure!(status.success(), "it ended with {status}: {}", last_line(&process.output()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_reach_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let seen = directory.path().join("seen");
        let site = SshSite {
            target: "guest".into(),
            attach: format!("echo {{socket}} {{tag}} >{}", seen.display()),
            detach: None,
        };
        let limit = Duration::from_secs(10);
        let hook = Hook::attach(&site, Path::new("/a b/s"), "bench1", "/run/x", limit).unwrap();
        assert_eq!(std::fs::read_to_string(seen).unwrap(), "/a b/s bench1\n");
        assert_eq!(hook.detach, None);
    }

    #[test]
    fn a_hook_that_fails_says_why() {
        let site = SshSite { target: "guest".into(), attach: "echo no such domain >&2; exit 3".into(), detach: None };
        let error = Hook::attach(&site, Path::new("/s"), "t", "/m", Duration::from_secs(10)).unwrap_err().to_string();
        assert!(error.contains("giving the guest its device") && error.contains("no such domain"), "{error}");
    }

    #[test]
    fn a_hook_that_hangs_is_ended() {
        let error = shell("exec sleep 600", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("did not end within"), "{error}");
    }
}
