//! The server under torture: found or built, started, connected to, upgraded, killed.

mod config;

use std::env;
use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use guest::process::{Group, shown};
use guest::usage;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::vringd::PROGRAM_VARIABLE;

use crate::frontend::Protocol;

/// More than it waits for a cluster.
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(30);
/// Short: what passes until a server is back is measured.
const LOOK_AGAIN_AFTER: Duration = Duration::from_micros(300);

/// Which program is tortured.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ProgramOptions {
    /// The program [default: $VRINGD_BIN, else what `cargo build -p vringd` makes]
    #[arg(long, value_name = "FILE")]
    pub(crate) vringd: Option<PathBuf>,
    /// Build it with `--release`.
    #[arg(long, conflicts_with = "vringd")]
    pub(crate) release: bool,
}

impl ProgramOptions {
    /// Finds the program, or builds it.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let named = self.vringd.clone().or_else(|| env::var_os(PROGRAM_VARIABLE).map(PathBuf::from));
        if let Some(program) = named {
            return fs::canonicalize(&program).with_context(|| format!("there is no program {}", program.display()));
        }
        build(self.release)
    }
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).map(PathBuf::from).unwrap_or(manifest)
}

/// `cargo` as it was called for this run, in the root of the workspace.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Builds the program and says where it is.
fn build(release: bool) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "--locked", "--package", "vringd"]);
    if release {
        command.arg("--release");
    }
    made(command, &profiles()?.join(if release { "release" } else { "debug" }).join("vringd"))
}

/// Builds a program that can be told to kill itself behind a store of its rings (the feature `crash-points` of `vring`).
pub(super) fn build_crashing() -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "--locked", "--workspace"]);
    // Only the crates that know rings are built for it: all others are those that a build of the workspace has left. Of the package
    // alone, its dependencies would be built anew, with what this package asks of them and no other.
    command.args(["--bin", "vringd-crashing", "--features", "vringd/crash-points"]);
    made(command, &profiles()?.join("debug").join("vringd-crashing"))
}

fn made(mut command: Command, program: &Path) -> Result<PathBuf> {
    eprintln!("torture: {}", shown(&command));
    let status = command.status().context("cannot start cargo")?;
    ensure!(status.success(), "the program cannot be built");
    ensure!(program.exists(), "cargo has built the program, but not at {}", program.display());
    Ok(program.to_owned())
}

/// The directory of the profiles, in which the running program lies too.
fn profiles() -> Result<PathBuf> {
    let running = env::current_exe().context("a program has a path")?;
    // target/debug/xtask, or target/debug/deps/xtask-0123456789abcdef
    let mut place = running.ancestors().skip(1).filter(|directory| !directory.ends_with("deps"));
    place.nth(1).map(Path::to_owned).context("a program of cargo lies in target/PROFILE")
}

/// What is served.
#[derive(Clone, Debug)]
pub(crate) enum Served {
    /// A disk on an image.
    File {
        /// The image.
        image: PathBuf,
        /// Whether the host's page cache is passed by.
        direct: bool,
        /// What `--execution` says.
        execution: String,
    },
    /// A disk on a volume.
    Volume {
        /// Its file.
        volume: PathBuf,
        /// The qcow2 image that it is a log of, unless it has the disk itself.
        image: Option<PathBuf>,
        /// Its memory file, on tmpfs.
        memory: PathBuf,
        /// What `--dirty-memory` says.
        dirty_memory: String,
    },
    /// A disk that is an image of a Ceph cluster.
    Rbd {
        /// The image, in the pool `rbd`.
        image: String,
        /// The configuration of the cluster.
        conf: PathBuf,
    },
    /// A disk with nothing behind it; the size in MiB.
    Null(u32),
    /// A directory by virtio-fs, where programs can be seen: no other server of one can be upgraded.
    Directory {
        /// It.
        path: PathBuf,
        /// What `--inode-file-handles` says.
        file_handles: &'static str,
        /// What `--execution` says.
        execution: &'static str,
    },
}

/// A server that is to be started, once or again and again.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The program.
    pub(crate) program: PathBuf,
    /// Where its sockets and log are.
    pub(crate) directory: PathBuf,
    /// What it serves.
    pub(crate) served: Served,
    /// Queues offered.
    pub(crate) queues: u16,
    /// What `--workers` says.
    pub(crate) workers: String,
    /// What `--poll` says.
    pub(crate) poll: &'static str,
    /// What `--write-cache` says, of a disk.
    pub(crate) write_cache: &'static str,
    /// What is spoken with the frontend of a disk.
    pub(crate) protocol: Protocol,
    /// Variables of its environment.
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// What `--poll` and `--write-cache` are when nobody says otherwise.
pub(crate) const POLL: &str = "adaptive";
pub(crate) const WRITE_CACHE: &str = "on";

impl Setup {
    /// The socket of what it serves.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("vhost.sock")
    }

    /// The control socket.
    pub(crate) fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Has the server go on in the same program anew, or in what `more` says.
    pub(crate) fn upgrade(&self, more: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg("ctl").arg("--control").arg(self.control()).args(["--json", "upgrade"]).args(more);
        command.output().context("cannot run ctl")
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if self.protocol == Protocol::Scsi {
            // Only a configuration says where reservations are kept.
            command.args(["serve", "--log-level", "info"]).arg(config::write(self)?);
            return Ok(command);
        }
        let kind = if matches!(self.served, Served::Directory { .. }) { "dir" } else { "disk" };
        command.args([kind, "--log-level", "info", "--socket"]).arg(self.socket());
        command.arg("--control").arg(self.control());
        command.args(["--queues", &self.queues.to_string(), "--workers", &self.workers, "--poll", self.poll]);
        if kind == "disk" {
            command.args(["--write-cache", self.write_cache]);
        }
        match &self.served {
            Served::File { image, direct, execution } => {
                command.args(["--execution", execution]);
                if *direct {
                    command.arg("--direct");
                }
                command.arg(image);
            }
            Served::Volume { volume, image, memory, dirty_memory } => {
                command.args(["--dirty-memory", dirty_memory, "--memory-file"]).arg(memory);
                match image {
                    Some(image) => command.args(["--storage", "qcow2", "--log"]).arg(volume).arg(image),
                    None => command.args(["--storage", "volume"]).arg(volume),
                };
            }
            Served::Rbd { image, conf } => {
                command.arg("--rbd-conf").arg(conf).arg(format!("rbd:rbd/{image}"));
            }
            Served::Null(mebibytes) => {
                command.args(["--storage", "null", "--size", &format!("{mebibytes}M")]);
            }
            Served::Directory { path, file_handles, execution } => {
                command.args(["--sandbox", "none", "--inode-file-handles", file_handles, "--execution", execution]);
                command.arg(path);
            }
        }
        Ok(command)
    }
}

/// What `ctl --json upgrade` said of upgrade `number` of the process `pid`, which has lost nothing by it: how long no ring was
/// served.
pub(crate) fn went_on(output: &Output, number: u64, pid: Pid) -> Result<Duration> {
    ensure!(output.status.success(), "`ctl upgrade` ended with {}: {}", output.status, said(output));
    let info: Value = serde_json::from_slice(&output.stdout).context("`ctl --json upgrade` prints JSON")?;
    ensure!(info["upgrades"].as_u64() == Some(number), "the server counts its upgrades wrongly: {info}");
    ensure!(info["pid"].as_i64() == Some(i64::from(pid.as_raw_nonzero().get())), "it is another process: {info}");
    let takeover = &info["takeover"];
    let lost = takeover["lost"].as_array().is_some_and(|lost| !lost.is_empty());
    ensure!(!lost, "the server says that it lost something: {info}");
    Ok(Duration::from_micros(takeover["pause_us"].as_u64().context("the server tells the pause")?))
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// A running server. It dies with the thread that started it, and when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    process: Group,
    socket: PathBuf,
}

impl Server {
    /// Starts a server. It need not listen yet when this returns.
    pub(crate) fn start(setup: &Setup) -> Result<Self> {
        let process = Group::start(&setup.command()?, &setup.directory.join("server.log"))?;
        Ok(Self { process, socket: setup.socket() })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Result<Pid> {
        let id = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        id.context("a process has a positive number")
    }

    /// Connects as soon as it listens.
    ///
    /// # Errors
    /// It ends, or does not listen within a minute.
    pub(crate) fn connect(&mut self) -> Result<UnixStream> {
        let start = Instant::now();
        loop {
            // A socket file that a killed server has left refuses; then it is not there; then it listens.
            if let Ok(stream) = UnixStream::connect(&self.socket) {
                return Ok(stream);
            }
            self.check_alive()?;
            ensure!(
                start.elapsed() < START_LIMIT,
                "the server does not listen within {} s; it said:\n{}",
                START_LIMIT.as_secs(),
                self.output()
            );
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// Fails if it has ended, with its last words.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive("the server")
    }

    /// What it said.
    pub(crate) fn output(&self) -> String {
        self.process.output()
    }

    /// Waits for the end of a server that was sent SIGKILL.
    ///
    /// # Errors
    /// It ended otherwise: by itself, before the signal came.
    pub(crate) fn wait_killed(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.process.is_running()? && start.elapsed() < END_LIMIT {
            thread::sleep(LOOK_AGAIN_AFTER);
        }
        let status = self.process.wait(END_LIMIT)?;
        ensure!(
            status.signal() == Some(Signal::KILL.as_raw()),
            "the server ended by itself with {status}; it said:\n{}",
            self.output()
        );
        Ok(())
    }

    /// Whether it runs.
    pub(crate) fn is_running(&mut self) -> Result<bool> {
        self.process.is_running()
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&self) -> Result<()> {
        kill_process(self.pid()?, Signal::KILL).context("cannot kill the server")
    }

    /// Ends it as an operator does (SIGTERM). It must end well.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.process.stop("the server", END_LIMIT)
    }

    /// Requests that it has taken so far, as `vringd ctl` tells; none if it is too young to answer.
    pub(crate) fn requests(setup: &Setup) -> u64 {
        let Ok(export) = Self::export(setup) else { return 0 };
        let rings = export["rings"].as_array().into_iter().flatten();
        let counts = rings.filter_map(|ring| ring["figures"]["requests"].as_object());
        counts.flat_map(|kinds| kinds.values()).filter_map(Value::as_u64).sum()
    }

    /// How often a frontend has connected, as `vringd ctl` tells.
    pub(crate) fn connects(setup: &Setup) -> Result<u64> {
        let export = Self::export(setup)?;
        export["sessions"]["connects"].as_u64().context("`ctl export show` counts sessions")
    }

    /// The disk, as `vringd ctl` tells of it.
    fn export(setup: &Setup) -> Result<Value> {
        let mut command = Command::new(&setup.program);
        command.arg("ctl").arg("--control").arg(setup.control()).args(["--json", "export", "show", "disk"]);
        let output = command.stderr(Stdio::null()).output().context("cannot run ctl")?;
        serde_json::from_slice(&output.stdout).context("`ctl --json export show` prints JSON")
    }

    /// Processor time that all its threads have used, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        usage::cpu_ns_of_threads(self.process.id())
    }
}
