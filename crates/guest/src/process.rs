//! Child processes that end when they must.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::usage;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::interrupt;

/// How long a socket that is there may not be known by its path to be listened on: it may be in another network namespace.
const LISTEN_GRACE: Duration = Duration::from_millis(500);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Enough for any console of a guest that is well; a program gone wild writes without end.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// Runs a command that must succeed; the error carries what it said.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}\n{}{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

/// The command as a person would type it.
pub fn shown(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// The same command as a child that the kernel kills when the thread that starts it ends.
pub(crate) fn dies_with_us(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    inherit(&mut wrapped, command);
    wrapped
}

/// Gives a command that wraps another one the other's environment and working directory.
pub(crate) fn inherit(wrapper: &mut Command, command: &Command) {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapper.env(name, value),
            None => wrapper.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        wrapper.current_dir(directory);
    }
}

/// A process group with its output in a file. Dropping it kills every process of the group: a
/// guest whose backend hangs does not answer a polite signal.
#[derive(Debug)]
pub struct Group {
    child: Child,
    ended: Option<ExitStatus>,
    line: String,
    output: PathBuf,
}

impl Group {
    /// Starts `command` as the leader of a new group, both outputs going to the file `output`, with nothing
    /// on its standard input.
    ///
    /// The kernel kills the leader when the thread that started it ends, so that an interrupted
    /// run leaves nothing behind.
    pub fn start(command: &Command, output: &Path) -> Result<Self> {
        Self::start_with(command, Stdio::null(), output)
    }

    /// As [`Group::start`], with a standard input.
    pub fn start_with(command: &Command, input: impl Into<Stdio>, output: &Path) -> Result<Self> {
        let line = shown(command);
        File::create(output).with_context(|| format!("cannot create {}", output.display()))?;
        // A guest's console and what QEMU says of itself share it.
        let file = File::options().append(true).open(output)?;
        let child = dies_with_us(command)
            .stdin(input)
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {line}"))?;
        Ok(Self { child, ended: None, line, output: output.to_owned() })
    }

    /// The process id of the leader.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What the group has written so far, or the end of it if that is much.
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.output).unwrap_or_default();
        let end = &bytes[bytes.len().saturating_sub(OUTPUT_BYTES_MAX)..];
        String::from_utf8_lossy(end).into_owned()
    }

    /// Waits for the leader. After `limit` the group is killed and the call fails.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                self.kill();
                bail!("{} did not end within {} s; it said:\n{}", self.line, limit.as_secs(), self.output());
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// Waits until `ready` says yes. Fails if the leader ends first or `limit` passes.
    pub fn wait_until(&mut self, limit: Duration, mut ready: impl FnMut(&str) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            if ready(&self.output()) {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                bail!("{} ended early with {status}; it said:\n{}", self.line, self.output());
            }
            interrupt::check()?;
            if start.elapsed() > limit {
                bail!("{} was not ready within {} s; it said:\n{}", self.line, limit.as_secs(), self.output());
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// As [`wait_until`](Self::wait_until) all of `sockets` are there and listened on. Connects to none: a server may serve one
    /// connection and end.
    pub fn wait_for_sockets(&mut self, limit: Duration, sockets: &[impl AsRef<Path>]) -> Result<()> {
        let is_there = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
        let mut there_since = None;
        self.wait_until(limit, |_| {
            let paths = || sockets.iter().map(AsRef::as_ref);
            if !paths().all(is_there) {
                return false;
            }
            let waited = there_since.get_or_insert_with(Instant::now).elapsed();
            paths().all(is_listened_on) || waited > LISTEN_GRACE
        })
    }

    /// Asks the leader to end, as an operator's SIGTERM does, and waits for it.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        if self.ended()?.is_none()
            && let Some(leader) = self.leader()
        {
            kill_process(leader, Signal::TERM)?;
        }
        self.wait(limit)
    }

    /// As [`terminate`](Self::terminate). The leader, which people know as `name`, must end well.
    pub fn stop(&mut self, name: &str, limit: Duration) -> Result<()> {
        let status = self.terminate(limit)?;
        ensure!(status.success(), "{name} ended with {status}; it said:\n{}", self.output());
        Ok(())
    }

    /// Fails if the leader, which people know as `name`, has ended, with its last words.
    pub fn check_alive(&mut self, name: &str) -> Result<()> {
        if !self.is_running()? {
            bail!("{name} has ended by itself: {}; it said:\n{}", self.state(), self.output());
        }
        Ok(())
    }

    /// Whether the leader has not ended yet.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.ended()?.is_none())
    }

    /// One line for people: what was started, and whether it still runs.
    pub fn state(&mut self) -> String {
        match self.ended() {
            Ok(None) => format!("`{}`, running", self.line),
            Ok(Some(status)) => format!("`{}`, ended with {status}", self.line),
            Err(error) => format!("`{}`, in an unknown state: {error}", self.line),
        }
    }

    /// How the leader ended. What is left of its group is killed as soon as that is known: later
    /// its number may belong to somebody else.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
            if self.ended.is_some() {
                self.kill_group();
            }
        }
        Ok(self.ended)
    }

    /// Kills the whole group, at once and without a word, and what the leader has started in other groups.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            if let Some(leader) = self.leader() {
                kill_family(leader);
            }
            self.ended = self.child.wait().ok();
        }
    }

    fn kill_group(&self) {
        if let Some(leader) = self.leader() {
            // Fails only if the group is gone already.
            kill_process_group(leader, Signal::KILL).ok();
        }
    }

    fn leader(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

/// Kills the group of `leader`, which nobody has waited for, and all that it has started: the jobs of fio are in sessions of
/// their own.
pub(crate) fn kill_family(leader: Pid) {
    // As long as the leader is there, its children are known as its own.
    let others = usage::descendants(leader.as_raw_nonzero().get().cast_unsigned());
    // Either fails only for those that are gone already.
    kill_process_group(leader, Signal::KILL).ok();
    for process in others.into_iter().filter_map(|id| Pid::from_raw(id.cast_signed())) {
        kill_process(process, Signal::KILL).ok();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
/// Whether the kernel knows a listening socket by this path (proc(5), `/proc/net/unix`), in this network namespace.
fn is_listened_on(path: &Path) -> bool {
    /// linux/net.h: `__SO_ACCEPTCON`, "performed a listen".
    const ACCEPTS: u32 = 1 << 16;
    let Ok(sockets) = fs::read_to_string("/proc/net/unix") else { return false };
    sockets.lines().any(|line| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split_ascii_whitespace().skip(3);
        let accepts = fields
            .next()
            .and_then(|flags| u32::from_str_radix(flags, 16).ok())
            .is_some_and(|flags| flags & ACCEPTS != 0);
        accepts && fields.nth(3).is_some_and(|name| Path::new(name) == path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    #[test]
    fn a_socket_that_is_bound_is_not_yet_listened_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let bound = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&bound, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(path.exists() && !is_listened_on(&path));
        listen(&bound, 1).unwrap();
        assert!(is_listened_on(&path));
    }
}
