//! One script in one child process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::{OUTPUT_BYTES_MAX, Output};
use crate::interrupt;
use crate::process::{dies_with_us, kill_family, shown};
use crate::usage;

/// What a script left, and the processor time in seconds of the child that ran it.
pub(super) struct Ended {
    pub(super) output: Output,
    pub(super) cpu_s: f64,
}

/// Runs `script` by `command`, which is a shell that reads it from its standard input. What the script
/// leaves behind in its process group is killed.
pub(super) fn run(command: &Command, script: &str, limit: Duration) -> Result<Ended> {
    // As one compound command it is read to its end before it begins, so that no program in it
    // swallows the rest.
    let mut input = tempfile::tempfile()?;
    write!(input, "{{\n:\n{script}\n}} </dev/null\n")?;
    input.seek(SeekFrom::Start(0))?;
    let outputs = [tempfile::tempfile()?, tempfile::tempfile()?];
    let child = dies_with_us(command)
        .stdin(input)
        .stdout(outputs[0].try_clone()?)
        .stderr(outputs[1].try_clone()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    let mut running = Running { child, ended: false };
    running.wait(&outputs, limit)?;
    let (status, cpu_s) = running.reap()?;
    let [stdout, stderr] = outputs.map(text);
    Ok(Ended { output: Output { status: number(status), stdout: stdout?, stderr: stderr? }, cpu_s })
}

/// A child that is killed with its group and all that it has started unless it was waited for.
struct Running {
    child: Child,
    ended: bool,
}

impl Running {
    /// Waits until the child has ended, but leaves its figures to be read.
    fn wait(&self, outputs: &[File; 2], limit: Duration) -> Result<()> {
        let pid = self.pid().context("a child has a process id")?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        let look_every = Timespec::try_from(interrupt::LOOK_EVERY)?;
        let start = Instant::now();
        loop {
            let mut ended = [PollFd::new(&handle, PollFlags::IN)];
            match poll(&mut ended, Some(&look_every)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
            interrupt::check()?;
            check_size(outputs)?;
            if start.elapsed() > limit {
                bail!("the script did not end within {} s", limit.as_secs());
            }
        }
        check_size(outputs)
    }

    fn reap(&mut self) -> Result<(ExitStatus, f64)> {
        let cpu_s = usage::cpu_s_of_process(self.child.id())?;
        // Before its number can belong to somebody else.
        self.kill_group();
        let status = self.child.wait()?;
        self.ended = true;
        Ok((status, cpu_s))
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn kill_group(&self) {
        if let Some(pid) = self.pid() {
            // Fails only if the group is gone already.
            kill_process_group(pid, Signal::KILL).ok();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            if let Some(leader) = self.pid() {
                kill_family(leader);
            }
            self.child.wait().ok();
        }
    }
}

fn check_size(outputs: &[File; 2]) -> Result<()> {
    for output in outputs {
        ensure!(
            output.metadata()?.len() <= OUTPUT_BYTES_MAX,
            "the script says more than {} MiB",
            OUTPUT_BYTES_MAX >> 20
        );
    }
    Ok(())
}

fn text(mut file: File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The status as a shell gives it.
fn number(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
