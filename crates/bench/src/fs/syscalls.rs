//! Counting a server's system calls by name: with perf where it may look, with strace elsewhere.
//!
//! perf notes each call in a buffer and disturbs little; strace stops the server at each call, which lets more requests
//! gather meanwhile. Neither sees what io_uring does on behalf of the server, which costs no system call. (`perf stat`
//! on the tracepoint of every call would count without notes, but takes ten seconds to let go of them.)

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal};
use serde::Serialize;
use tempfile::TempDir;

use guest::usage::Tree;

/// perf's buffer for each CPU: 16 MiB, for what a thousand requests call between two looks of perf.
const BUFFER_PAGES: &str = "4096";
/// How long a tool may take to attach or to end.
const TOOL_TIME_MAX: Duration = Duration::from_secs(20);

/// Calls that carry requests and wake-ups, or manage memory, and that no file system is asked for. A server moves a
/// file's data with positioned calls (`pread64`, `pwritev2`), so that plain `read` and `write` are those of eventfds and
/// sockets.
const AROUND: [&str; 28] = [
    "brk",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "futex",
    "io_uring_enter",
    "io_uring_register",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "poll",
    "ppoll",
    "read",
    "readv",
    "recvfrom",
    "recvmsg",
    "restart_syscall",
    "rseq",
    "rt_sigreturn",
    "sched_yield",
    "sendmsg",
    "sendto",
    "timerfd_settime",
    "write",
    "writev",
];

/// Who counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// Whichever works, perf first
    Auto,
    /// perf record, and perf trace for the names
    Perf,
    /// strace -f -c
    Strace,
    /// Nobody
    None,
}

/// Calls by name.
pub(crate) type Calls = BTreeMap<String, u64>;

/// How many of `calls` no file system was asked for.
pub(crate) fn around(calls: &Calls) -> u64 {
    calls.iter().filter(|(name, _)| AROUND.contains(&name.as_str())).map(|(_, count)| count).sum()
}

/// The tool that works on this machine; `None` when there is none or none is wanted.
///
/// # Errors
/// One that was asked for by name does not work.
pub(crate) fn choose(wanted: Tool) -> Result<Option<Tool>> {
    let works = |tool| Counter::start(std::process::id(), tool).and_then(Counter::stop).map(|_| Some(tool));
    match wanted {
        Tool::None => Ok(None),
        // strace cannot trace itself's parent everywhere; that it starts is all that is known before a run.
        Tool::Auto => match works(Tool::Perf) {
            Ok(tool) => Ok(tool),
            Err(_) => Ok(has_strace().then_some(Tool::Strace)),
        },
        Tool::Perf => works(Tool::Perf).context("--syscalls perf"),
        Tool::Strace if has_strace() => Ok(Some(Tool::Strace)),
        Tool::Strace => bail!("--syscalls strace: cannot run strace; is it installed?"),
    }
}

fn has_strace() -> bool {
    let mut command = Command::new("strace");
    command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A tool that is counting. Dropping it ends the tool.
#[derive(Debug)]
pub(crate) struct Counter {
    tool: Tool,
    child: Child,
    dir: TempDir,
}

impl Counter {
    /// Attaches `tool` to process `pid` and what it has started; calls count from the return on.
    pub(crate) fn start(pid: u32, tool: Tool) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("bench-calls-").tempdir()?;
        let pids: Vec<String> = Tree::take(pid)?.pids().map(|pid| pid.to_string()).collect();
        let (said, output) = (dir.path().join("said"), dir.path().join("output"));
        let mut command = Command::new(if tool == Tool::Strace { "strace" } else { "perf" });
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        let fifos = (dir.path().join("control"), dir.path().join("answer"));
        if tool == Tool::Strace {
            command
                .args(["-f", "-c", "-U", "name,calls", "-o"])
                .arg(&output)
                .args(pids.iter().map(|pid| format!("-p{pid}")));
        } else {
            for fifo in [&fifos.0, &fifos.1] {
                mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            }
            let control = format!("--control=fifo:{},{}", fifos.0.display(), fifos.1.display());
            command.args(["record", "-m", BUFFER_PAGES, "-e", "raw_syscalls:sys_enter,raw_syscalls:sys_exit"]);
            command.args(["-D", "-1", "-o"]).arg(&output).arg(control).arg("-p").arg(pids.join(","));
        }
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut counter = Self { tool, child, dir };
        let started = match tool {
            Tool::Strace => counter.wait_attached(&said),
            _ => counter.enable(&fifos),
        };
        started.with_context(|| fs::read_to_string(&said).unwrap_or_default().trim().to_owned())?;
        Ok(counter)
    }

    /// strace says so when it has attached.
    fn wait_attached(&mut self, said: &Path) -> Result<()> {
        let deadline = Instant::now() + TOOL_TIME_MAX;
        while !fs::read_to_string(said)?.contains("attached") {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("strace did not attach");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// perf answers when it counts.
    fn enable(&mut self, (control, answer): &(PathBuf, PathBuf)) -> Result<()> {
        // Opened for both directions, so that neither side waits for the other to open.
        let open = |path: &PathBuf| File::options().read(true).write(true).open(path);
        let (mut control, mut answer) = (open(control)?, open(answer)?);
        control.write_all(b"enable\n")?;
        let deadline = Instant::now() + TOOL_TIME_MAX;
        let slice = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        while poll(&mut [PollFd::from_borrowed_fd(answer.as_fd(), PollFlags::IN)], Some(&slice))? == 0 {
            if let Some(status) = self.child.try_wait()? {
                bail!("perf ended ({status})");
            }
            if Instant::now() > deadline {
                bail!("perf did not start to count");
            }
        }
        let mut said = [0; 16];
        let _count = answer.read(&mut said)?;
        Ok(())
    }

    /// Detaches and says what was counted.
    pub(crate) fn stop(mut self) -> Result<Calls> {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let deadline = Instant::now() + TOOL_TIME_MAX;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("{:?} does not end", self.tool);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = self.dir.path().join("output");
        if self.tool == Tool::Strace {
            return Ok(parse_strace(&fs::read_to_string(output).context("strace left no counts")?));
        }
        let said = fs::read_to_string(self.dir.path().join("said"))?;
        if said.to_ascii_lowercase().contains("lost") {
            bail!("perf lost some of the calls: {}", said.trim());
        }
        let summary = Command::new("perf").args(["trace", "-s", "-i"]).arg(output).stdin(Stdio::null()).output()?;
        if !summary.status.success() {
            bail!("perf trace failed: {}", String::from_utf8_lossy(&summary.stderr).trim());
        }
        // It prints summaries to standard error unless told otherwise.
        let texts = [summary.stdout, summary.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        Ok(parse_perf(&texts.concat()))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // It may have ended already, which is fine.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A table for each thread: lines of a name, its calls, its errors, and times.
fn parse_perf(text: &str) -> Calls {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (name, count) = (fields.next()?, fields.next()?.parse::<u64>().ok()?);
        let _errors: u64 = fields.next()?.parse().ok()?;
        Some((name.to_owned(), count))
    };
    let mut calls = Calls::new();
    for (name, count) in text.lines().filter_map(line) {
        *calls.entry(name).or_default() += count;
    }
    calls
}

/// Lines of a name and a count, between rulers and above a total.
fn parse_strace(text: &str) -> Calls {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (name, count) = (fields.next()?, fields.next()?.parse().ok()?);
        (name != "total").then(|| (name.to_owned(), count))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_perf_are_read_by_name() {
        let text = "\n Summary of events:\n\n a (1), 24 events, 0.2%\n\n   syscall            calls  errors  total\n   \
                    --------------- --------  ------ --------\n   futex                 18      0     0.005     0.0\n   \
                    statx                  7      7     0.005     0.0\n\n b c (2), 4 events, 0.1%\n\n   \
                    futex                  2      1     0.005     0.0\n";
        let calls = parse_perf(text);
        assert_eq!(calls, BTreeMap::from([("futex".into(), 20), ("statx".into(), 7)]));
        assert_eq!(around(&calls), 20);
    }

    #[test]
    fn counts_of_strace_are_read_without_the_total() {
        let text = "syscall                calls\n---------------- ---------\npread64             12\n\
                    epoll_wait                  3\n---------------- ---------\ntotal                      15\n";
        assert_eq!(parse_strace(text), BTreeMap::from([("pread64".into(), 12), ("epoll_wait".into(), 3)]));
    }
}
