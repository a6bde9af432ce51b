//! A daemon with disks of its own, and a mover of its rings: for `demo`, `bench moves` and `bench limits`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use control::client::Client;
use control::model::{Attach, Export, RingInfo, Worker};
use guest::process::Group;
use http::Method;
use tempfile::TempDir;

/// How long the daemon may take to listen.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// A running daemon in a directory of its own. It ends with this.
pub(crate) struct Stage {
    // Ends before its directory goes.
    _process: Group,
    client: Client,
    directory: TempDir,
}

/// A directory for a stage and what it serves.
pub(crate) fn directory() -> Result<TempDir> {
    TempDir::with_prefix("vringd-").context("cannot make a temporary directory")
}

impl Stage {
    /// Has `program` serve what `config` says (TOML, where `@DIR@` is the directory), on `workers` shared workers.
    pub(crate) fn new(program: &Path, directory: TempDir, workers: u32, config: &str) -> Result<Stage> {
        let place = directory.path().to_str().context("temporary directories are UTF-8")?;
        let control = directory.path().join("control.sock");
        let config = format!("control = '@DIR@/control.sock'\nworkers = {workers}\n{config}").replace("@DIR@", place);
        let file = directory.path().join("config.toml");
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(program);
        command.args(["--log-level", "warn", "serve"]).arg(file);
        let mut process = Group::start(&command, &directory.path().join("daemon.log"))?;
        let client = Client::new(control)?;
        process.wait_until(START_TIME_MAX, |_| client.text("/v1/info").is_ok())?;
        Ok(Stage { _process: process, client, directory })
    }

    /// Where a frontend of the disk connects whose socket is `@DIR@/DISK.sock`.
    pub(crate) fn socket(&self, disk: &str) -> PathBuf {
        self.directory.path().join(disk).with_extension("sock")
    }

    /// The rings of a disk.
    pub(crate) fn rings(&self, disk: &str) -> Result<Vec<RingInfo>> {
        Ok(self.client.get::<Export>(&format!("/v1/exports/{disk}"))?.rings)
    }

    /// The shared workers.
    pub(crate) fn workers(&self) -> Result<Vec<Worker>> {
        Ok(self.client.get("/v1/workers")?)
    }

    /// Moves one ring of a disk after the other to the next worker, until told to stop or `most` moves are made.
    pub(crate) fn start_mover(&self, disk: &'static str, most: u64, pause: Duration) -> Result<Mover> {
        let (rings, workers) = (self.rings(disk)?.len() as u64, self.workers()?.len() as u64);
        let stop = Arc::new(AtomicBool::new(false));
        let moves = Arc::new(AtomicU64::new(0));
        let client = Client::new(self.client.path())?;
        let (stopped, made) = (stop.clone(), moves.clone());
        let body = move || {
            for step in 0..most {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (ring, round) = (step % rings, step / rings);
                let worker = ((round + ring + 1) % workers) as u32;
                let target = format!("/v1/exports/{disk}/rings/{ring}/worker");
                let _moved: RingInfo = client.send(Method::PUT, &target, &Attach { worker })?;
                made.fetch_add(1, Ordering::Relaxed);
                thread::sleep(pause);
            }
            Ok(())
        };
        Ok(Mover { stop, moves, thread: thread::spawn(body) })
    }
}

/// A thread that moves rings.
pub(crate) struct Mover {
    stop: Arc<AtomicBool>,
    moves: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Mover {
    /// Moves made so far.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Whether all moves are made, or one failed.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops and says how many moves were made.
    pub(crate) fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the mover died"))??;
        Ok(self.moves.load(Ordering::Relaxed))
    }
}
