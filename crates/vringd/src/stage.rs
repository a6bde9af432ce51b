//! A daemon inside this process with one disk, workers to move its rings between, and a mover: for `demo` and `bench moves`.

use crate::config::poll_default;
use crate::convert;
use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::run;
use control::Daemon as _;
use control::model::config::{ExportKind, NewExport, Storage};
use control::model::{Attach, Placement};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the disk.
pub(crate) const DISK: &str = "disk";

/// A served disk, with a directory for its socket.
pub(crate) struct Stage {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) directory: tempfile::TempDir,
    workers: u32,
    queues: u16,
}

impl Stage {
    /// Serves what `storage` says (given the stage's directory) with `queues` queues on `workers` shared workers.
    pub(crate) fn new(
        queues: u16,
        workers: u32,
        storage: impl FnOnce(&std::path::Path) -> Result<Storage, Failure>,
    ) -> Result<Stage, Failure> {
        run::outlive_file_size_limit()
            .map_err(|error| Failure::Runtime(format!("cannot watch for signals: {error}")))?;
        let failed = |error| Failure::Runtime(format!("cannot make a temporary directory: {error}"));
        let directory = tempfile::Builder::new().prefix("vringd-").tempdir().map_err(failed)?;
        let storage = storage(directory.path())?;
        // Nobody asks this daemon to stop; it ends with the stage.
        let (stop, _) = std::sync::mpsc::channel();
        let daemon = Arc::new(Daemon::new(workers as usize, workers as usize, convert::poll_in(poll_default()), stop)?);
        daemon.add_export(NewExport {
            name: DISK.into(),
            kind: ExportKind::Disk,
            socket: Some(directory.path().join("disk.sock")),
            socket_mode: None,
            socket_owner: None,
            socket_group: None,
            socket_fd: None,
            listen: None,
            storage: Some(storage),
            directory: None,
            queues: Some(queues),
            queue_size: None,
            serial: None,
            block_size: None,
            write_cache: None,
            workers: Placement::Shared,
            poll: None,
            cpus: None,
            limits: control::model::Limits::default(),
        })?;
        Ok(Stage { daemon, directory, workers, queues })
    }

    /// Where a frontend connects.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("disk.sock")
    }

    /// Moves one ring after the other to the next worker, until told to stop or `most` moves are made.
    pub(crate) fn start_mover(&self, most: u64, pause: Duration) -> Mover {
        let stop = Arc::new(AtomicBool::new(false));
        let moves = Arc::new(AtomicU64::new(0));
        let (daemon, workers, queues) = (self.daemon.clone(), self.workers, self.queues);
        let (stopped, made) = (stop.clone(), moves.clone());
        let body = move || {
            for step in 0..most {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let ring = (step % u64::from(queues)) as u16;
                let round = step / u64::from(queues);
                let worker = ((round + u64::from(ring) + 1) % u64::from(workers)) as u32;
                daemon.ring_attach(DISK, ring, Attach { worker })?;
                made.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(pause);
            }
            Ok(())
        };
        Mover { stop, moves, thread: std::thread::spawn(body) }
    }
}

/// A thread that moves rings.
pub(crate) struct Mover {
    stop: Arc<AtomicBool>,
    moves: Arc<AtomicU64>,
    thread: JoinHandle<Result<(), control::ApiError>>,
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
    pub(crate) fn finish(self) -> Result<u64, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| Failure::Runtime("the mover died".into()))??;
        Ok(self.moves.load(Ordering::Relaxed))
    }
}
