//! Scripts in a machine that a person names.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Output, Shell, child};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// How ssh says that it failed itself (man page ssh(1)).
const STATUS_OF_SSH: i32 = 255;

/// A machine behind ssh, for which no password must be asked.
///
/// A script that exits with 255 looks like a failure of ssh and is taken for one. When a script outlives
/// its limit, the connection is cut; the script itself may go on over there.
#[derive(Debug)]
pub struct Ssh {
    program: OsString,
    target: String,
    kernel: String,
}

impl Ssh {
    /// Connects to `target`, in the words of ssh: `[USER@]HOST` or `ssh://[USER@]HOST[:PORT]`.
    pub fn connect(target: &str) -> Result<Self> {
        Self::connect_by("ssh", target)
    }

    /// As [`Ssh::connect`], by another program that takes the same arguments.
    pub fn connect_by(program: impl Into<OsString>, target: &str) -> Result<Self> {
        let mut ssh = Self { program: program.into(), target: target.to_owned(), kernel: String::new() };
        let output = ssh.run("uname -r", CONNECT_LIMIT)?;
        ensure!(output.status == 0, "ssh {target}: {}", last_line(&output.stderr));
        ssh.kernel = output.stdout.trim().to_owned();
        Ok(ssh)
    }
}

impl Shell for Ssh {
    fn run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--"]).args([&self.target, "sh", "-eu"]);
        let ended = child::run(&command, script, limit).with_context(|| format!("ssh {}", self.target))?;
        if ended.output.status == STATUS_OF_SSH {
            bail!("ssh {}: {}", self.target, last_line(&ended.output.stderr));
        }
        Ok(ended.output)
    }

    fn cpu_s(&mut self) -> Result<f64> {
        let output = self.run("head -n 1 /proc/stat; getconf CLK_TCK", CONNECT_LIMIT)?;
        busy_s(&output.stdout).with_context(|| format!("ssh {}: /proc/stat or getconf: {}", self.target, output.stderr))
    }

    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn last_line(stderr: &str) -> &str {
    stderr.trim().lines().next_back().map_or("it failed without a word", str::trim)
}

/// Seconds that processors were busy, by the first line of `/proc/stat` (man page proc_stat(5)) and the
/// clock ticks of a second on the line behind it.
fn busy_s(text: &str) -> Option<f64> {
    let mut lines = text.lines();
    let mut fields = lines.next()?.strip_prefix("cpu ")?.split_whitespace().map(str::parse::<u64>);
    let mut ticks = 0_u64;
    // user, nice, system; then idle and iowait, when nothing was done; then irq, softirq. What others stole
    // comes behind.
    for (index, field) in fields.by_ref().take(7).enumerate() {
        if index != 3 && index != 4 {
            ticks = ticks.checked_add(field.ok()?)?;
        }
    }
    let ticks_per_s: u64 = lines.next()?.trim().parse().ok().filter(|ticks| *ticks > 0)?;
    Some(ticks as f64 / ticks_per_s as f64)
}

#[cfg(test)]
mod tests {
    use super::busy_s;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        assert_eq!(busy_s("cpu  100 20 30 9000 800 40 10 7 0 0\n100\n"), Some(2.0));
        assert_eq!(busy_s("cpu  100 20 30 9000 800 40 10 7 0 0\n0\n"), None);
        assert_eq!(busy_s("cpu  100 x\n100\n"), None);
        assert_eq!(busy_s(""), None);
    }
}
