//! `vringd serve` with a configuration of the test's own, and its control API.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::client::{Client, ClientError};
use control::model::{Attach, Export, Info, NewWorker, RingInfo, Settings, Worker};
use http::Method;
use tempfile::TempDir;

use crate::process::Group;
use crate::vringd;

const START_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// How long something that must become visible in the API is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stands for the daemon's directory in a configuration.
pub const DIRECTORY: &str = "@DIR@";

/// A running daemon. It is killed when dropped.
pub struct Daemon {
    process: Group,
    client: Client,
    directory: TempDir,
}

/// Where a daemon's files are: a directory of its own, made before the daemon so that a test can put images there.
pub fn directory() -> Result<TempDir> {
    Ok(TempDir::with_prefix("vringd-test-")?)
}

impl Daemon {
    /// Serves a configuration in a fresh directory; see [`Daemon::serve_in`].
    pub fn serve(config: &str) -> Result<Self> {
        Self::serve_in(directory()?, config)
    }

    /// Serves a configuration, in which [`DIRECTORY`] is replaced, with a control socket, and waits until that answers.
    pub fn serve_in(directory: TempDir, config: &str) -> Result<Self> {
        Self::serve_by(Command::new(vringd::program()?), directory, config)
    }

    /// As [`Daemon::serve_in`], by a command that becomes the program.
    pub fn serve_by(mut command: Command, directory: TempDir, config: &str) -> Result<Self> {
        let shown = directory.path().to_str().context("temporary directories are UTF-8")?;
        let control = directory.path().join("control.sock");
        let config = format!("control = '{DIRECTORY}/control.sock'\n{config}").replace(DIRECTORY, shown);
        let path = directory.path().join("config.toml");
        fs::write(&path, config)?;
        command.arg("serve").arg(&path);
        let mut process = Group::start(&command, &directory.path().join("daemon.log"))?;
        let client = Client::new(&control)?;
        process.wait_until(START_LIMIT, |_| client.text("/v1/info").is_ok())?;
        Ok(Self { process, client, directory })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The socket of an export whose configuration says `@DIR@/NAME.sock`.
    pub fn socket(&self, export: &str) -> PathBuf {
        self.directory.path().join(format!("{export}.sock"))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The control API.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What it has said so far, or the end of that.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Has it go on in its program anew, as an operator does, and returns what it says of itself then: the same process, which has
    /// lost nothing.
    pub fn upgrade(&self) -> Result<Info> {
        let before: Info = self.client.get("/v1/info")?;
        let mut command = Command::new(vringd::program()?);
        command.arg("ctl").arg("--control").arg(self.path().join("control.sock")).arg("upgrade");
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}; the daemon said:\n{}", output.status, self.output());
        let line = String::from_utf8(output.stdout)?;
        ensure!(line.contains("went on after") && !line.contains("lost"), "{line}");
        let after: Info = self.client.get("/v1/info")?;
        ensure!((after.upgrades, after.pid) == (before.upgrades + 1, before.pid), "{after:?} follows {before:?}");
        let takeover = after.takeover.as_ref().context("it took over")?;
        ensure!(takeover.lost.is_empty(), "{:?} were lost", takeover.lost);
        Ok(after)
    }

    /// One export.
    pub fn export(&self, name: &str) -> Result<Export, ClientError> {
        self.client.get(&format!("/v1/exports/{name}"))
    }

    /// One ring.
    pub fn ring(&self, export: &str, index: u16) -> Result<RingInfo, ClientError> {
        self.client.get(&format!("/v1/exports/{export}/rings/{index}"))
    }

    /// Waits until a ring looks as it should.
    pub fn wait_ring(&self, export: &str, index: u16, wanted: impl Fn(&RingInfo) -> bool) -> Result<RingInfo> {
        let start = Instant::now();
        loop {
            let ring = self.ring(export, index)?;
            if wanted(&ring) {
                return Ok(ring);
            }
            ensure!(start.elapsed() < PATIENCE, "ring {index} of {export} stays {ring:?}");
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// Waits until the frontend of an export is gone.
    pub fn wait_disconnected(&self, export: &str) -> Result<()> {
        let start = Instant::now();
        while self.export(export)?.state == control::model::SessionState::Connected {
            ensure!(start.elapsed() < PATIENCE, "the session of {export} does not end");
            thread::sleep(LOOK_AGAIN_AFTER);
        }
        Ok(())
    }

    /// All workers.
    pub fn workers(&self) -> Result<Vec<Worker>, ClientError> {
        self.client.get("/v1/workers")
    }

    /// Starts a worker: private to an export, or shared.
    pub fn new_worker(&self, export: Option<&str>) -> Result<u32, ClientError> {
        let target = export.map_or("/v1/workers".into(), |name| format!("/v1/exports/{name}/workers"));
        let worker: Worker = self.client.send(Method::POST, &target, &NewWorker::default())?;
        Ok(worker.id)
    }

    /// Ends a worker.
    pub fn free_worker(&self, worker: u32) -> Result<(), ClientError> {
        self.client.order(Method::DELETE, &format!("/v1/workers/{worker}"))
    }

    /// Attaches a ring to a worker.
    pub fn attach(&self, export: &str, ring: u16, worker: u32) -> Result<RingInfo, ClientError> {
        let target = format!("/v1/exports/{export}/rings/{ring}/worker");
        self.client.send(Method::PUT, &target, &Attach { worker })
    }

    /// Changes an export while it serves.
    pub fn change(&self, export: &str, settings: &Settings) -> Result<Export, ClientError> {
        self.client.send(Method::PATCH, &format!("/v1/exports/{export}"), settings)
    }

    /// Removes an export.
    pub fn remove(&self, export: &str, force: bool) -> Result<(), ClientError> {
        self.client.order(Method::DELETE, &format!("/v1/exports/{export}?force={force}"))
    }

    /// Fails if the daemon has ended, with its last words.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive("the daemon")
    }

    /// Ends the daemon as an operator does (SIGTERM). It must end well.
    pub fn stop(mut self) -> Result<()> {
        self.process.stop("the daemon", END_LIMIT)
    }

    /// Sends SIGTERM and says how the daemon ended.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(END_LIMIT)
    }
}

impl Drop for Daemon {
    /// Leaves the daemon's last words in the test's output, which is shown if the test fails.
    fn drop(&mut self) {
        println!("daemon {}, said:\n{}", self.process.state(), self.output());
    }
}

/// The code and HTTP status of a refusal; panics for anything else.
pub fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (String, u16) {
    match result {
        Err(ClientError::Refused { code, status, message, .. }) => {
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
            (code, status)
        }
        other => panic!("not refused: {other:?}"),
    }
}
