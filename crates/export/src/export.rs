//! One device served on one socket: its session thread, its rings, its settings that change while it runs.

mod door;
mod handover;
mod hold;
mod limits;
mod placing;
mod verbs;

use crate::device::Device;
use crate::directory::Directory;
use crate::disk::Disk;
use crate::limit::Limiting;
use crate::p9::P9;
use crate::ring_set::RingSet;
use crate::rings::{Rings, Running};
use crate::scsi::Scsi;
use crate::shared::{Shared, State};
use crate::status::{Content, ExportStatus, RingStatus};
use crate::target::ExportTarget;
use crate::trace::Recorder;
use crate::workers::Own;
use crate::{Carried, DirectoryOptions, DiskOptions, Engine, ExportError, Hosting, P9Options, ScsiOptions, Socket};
use door::Door;
use engine::{EngineError, Poll, Told};
pub use hold::Held;
use passthrough::Tree;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::Storage;
use vhost_user::{Handover, StopFd};

/// How often the end of an export is looked for while somebody waits for it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// How long an export that ends may take to flush and close what another daemon goes on with: more than a volume's write-back, and less than
/// a client waits for its answer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(45);

/// What an export serves, for the verbs that only one kind has.
#[derive(Clone)]
enum Served {
    Disk(Arc<Disk>),
    Directory(Arc<Directory>),
    P9(Arc<P9>),
    Scsi(Arc<Scsi>),
}

/// An export that listens or serves. Dropping it ends its session, drains its rings and removes its socket.
pub struct Export {
    shared: Arc<Shared>,
    served: Served,
    socket: String,
    handover: Handover,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held while rings are given workers, so that a policy does not undo what an operator does at the same time.
    placing: Mutex<()>,
}

impl Export {
    /// Serves a disk: binds the socket and starts to listen.
    ///
    /// # Errors
    /// A socket that cannot be bound, geometry that no disk can have, or workers that cannot be started.
    pub fn disk(
        hosting: Hosting,
        options: DiskOptions,
        storage: Arc<dyn Storage>,
        engine: &Engine,
    ) -> Result<Export, ExportError> {
        let queues = options.queues;
        let disk = Arc::new(Disk::new(options, hosting.queue_size_max, storage)?);
        if let Some(on) = hosting.carried.write_back {
            disk.set_write_back(on);
        }
        Self::serve(hosting, queues, disk.clone(), Served::Disk(disk), engine)
    }

    /// Serves a directory: binds the socket and starts to listen.
    ///
    /// # Errors
    /// A socket that cannot be bound, a tag that no guest could name, or workers that cannot be started.
    pub fn directory(
        hosting: Hosting,
        options: DirectoryOptions,
        tree: Arc<Tree>,
        engine: &Engine,
    ) -> Result<Export, ExportError> {
        let directory = Arc::new(Directory::new(options, tree)?);
        if let Some(session) = &hosting.carried.fuse {
            directory.adopt(session);
        }
        let queues = directory.queues();
        Self::serve(hosting, queues, directory.clone(), Served::Directory(directory), engine)
    }

    /// Serves a directory by 9P: binds the socket and starts to listen.
    ///
    /// # Errors
    /// As [`directory`](Self::directory).
    pub fn p9(hosting: Hosting, options: P9Options, tree: Arc<Tree>, engine: &Engine) -> Result<Export, ExportError> {
        let p9 = Arc::new(P9::new(options, tree, matches!(hosting.socket, Socket::Stream(_)))?);
        let queues = p9.queues();
        Self::serve(hosting, queues, p9.clone(), Served::P9(p9), engine)
    }

    /// Serves a SCSI device: binds the socket and starts to listen.
    ///
    /// # Errors
    /// A socket that cannot be bound, geometry that no unit can have, or workers that cannot be started.
    pub fn scsi(hosting: Hosting, options: ScsiOptions, engine: &Engine) -> Result<Export, ExportError> {
        let scsi = Scsi::new(options, hosting.queue_size_max, &hosting.name, hosting.carried.port)?;
        let scsi = Arc::new(scsi);
        if hosting.carried.write_back == Some(true) {
            scsi.turn_write_caches_on();
        }
        let queues = scsi.queues();
        Self::serve(hosting, queues, scsi.clone(), Served::Scsi(scsi), engine)
    }

    fn serve(
        hosting: Hosting,
        queues: u16,
        device: Arc<dyn Device>,
        served: Served,
        engine: &Engine,
    ) -> Result<Export, ExportError> {
        let (door, socket) = Door::open(hosting.socket, &served)?;
        let stop = StopFd::new().map_err(ExportError::Thread)?;
        let handover = Handover::new().map_err(ExportError::Thread)?;
        let Carried { placed, attached, homes, sessions, last_error, shown, .. } = hosting.carried;
        let socket = shown.unwrap_or(socket);
        let shared = Arc::new(Shared {
            rings: RingSet::new(hosting.name, engine.clone(), Rings::again(&attached, &homes)),
            device,
            queues,
            queue_size_max: hosting.queue_size_max,
            session_end: Mutex::new(hosting.session_ended),
            failed: Mutex::new(hosting.failed),
            stop: stop.clone(),
            spec: hosting.workers,
            limiting: Limiting::default(),
            steady: Mutex::default(),
            recorder: Arc::default(),
            state: Mutex::new(State {
                negotiated: 0,
                own: Own::again(placed),
                placement: hosting.placement,
                poll: hosting.poll,
                frontend: None,
                backend_channel: None,
                sessions,
                failed: false,
                last_error,
                kept: None,
            }),
        });
        // A placement that cannot start its first worker is an error now, not when a guest arrives.
        shared.place(0)?;
        let target = ExportTarget { shared: shared.clone() };
        let (orders, resume) = (handover.clone(), hosting.resume);
        let thread = std::thread::Builder::new()
            .name(format!("export-{}", shared.name()))
            .spawn(move || {
                let mut target = target;
                // What the link says of its messages is about this export.
                let _span = tracing::error_span!("session", export = target.shared.name()).entered();
                // A panic in here must not leave rings behind that nobody ends.
                if let Err(why) = engine::catch(|| door.serve(&mut target, &stop, &orders, resume)) {
                    target.has_panicked(&why);
                }
            })
            .map_err(ExportError::Thread)?;
        Ok(Export { shared, served, socket, handover, thread: Mutex::new(Some(thread)), placing: Mutex::default() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Whether a frontend is connected.
    pub fn connected(&self) -> bool {
        self.shared.lock().frontend.is_some()
    }

    /// Why it cannot serve any more, if it cannot. What it needs to is to be removed and added again.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// How many rings a frontend may use.
    pub fn queues(&self) -> u16 {
        self.shared.queues
    }

    /// Everything there is to know about it, without its rings.
    pub fn status(&self) -> ExportStatus {
        let content = match &self.served {
            Served::Disk(disk) => {
                let (capacity_bytes, block_size_bytes) = disk.geometry();
                let storage = disk.storage();
                let (description, volume) = (storage.describe(), storage.volume());
                let volume = volume.map(|volume| Box::new(volume.status()));
                let held = storage.custody().map(storage::Custody::is_held);
                let link = storage.remote().and_then(storage::Remote::link);
                Content::Disk { capacity_bytes, block_size_bytes, description, held, link, volume }
            }
            Served::Directory(directory) => Content::Directory(Box::new(directory.status())),
            Served::P9(p9) => Content::P9(Box::new(p9.status())),
            Served::Scsi(scsi) => Content::Scsi(scsi.status()),
        };
        let (limits, group) = self.shared.limiting.shown();
        let state = self.shared.lock();
        ExportStatus {
            name: self.shared.name().to_owned(),
            socket: self.socket.clone(),
            content,
            features_negotiated: state.negotiated,
            queues: self.shared.queues,
            placement: state.placement,
            poll: state.poll,
            limits,
            group,
            frontend: state.frontend,
            sessions: state.sessions,
            failed: state.failed,
            last_error: state.kept.clone().filter(|_| !state.failed).or_else(|| state.last_error.clone()),
        }
    }

    /// One ring. `None` beyond the number of queues.
    pub fn ring(&self, index: u16) -> Option<RingStatus> {
        (index < self.shared.queues).then(|| self.shared.status_of(index))
    }

    /// All rings that a frontend has ever started, and ring 0.
    pub fn rings(&self) -> Vec<RingStatus> {
        let last = (0..self.shared.queues).rev().find(|index| self.shared.rings.lock().record(*index).is_some());
        (0..=last.unwrap_or(0)).map(|index| self.shared.status_of(index)).collect()
    }

    /// The request of each running ring that was taken first of those in flight: the ring, when it was taken in nanoseconds of
    /// CLOCK_MONOTONIC, and whether its worker takes its turns. If it does not, the ring is listed with the begin of what keeps
    /// the worker busy.
    pub fn oldest_requests(&self) -> Vec<(u16, u64, bool)> {
        let oldest = |(index, running): (u16, Running)| match self.shared.engine().takes_turns(running.id) {
            Ok(()) => Some((index, running.page.oldest_ns()?, true)),
            Err(EngineError::Unresponsive { since_ns, .. }) => Some((index, since_ns, false)),
            Err(_) => None,
        };
        self.shared.rings.running().into_iter().filter_map(oldest).collect()
    }

    /// Its slow requests, for those who trace them.
    pub fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Requests answered since it was added.
    pub fn requests_answered(&self) -> u64 {
        self.shared.rings.lock().requests()
    }

    /// The rings that run, each with its worker.
    pub fn running(&self) -> Vec<(u16, u32)> {
        let running = self.shared.rings.running().into_iter();
        running.filter_map(|(index, ring)| Some((index, self.shared.engine().worker_of(ring.id)?))).collect()
    }

    /// Whether its settings can be changed: rings hear of that from their workers.
    ///
    /// # Errors
    /// A worker that hangs.
    pub fn takes_changes(&self) -> Result<(), ExportError> {
        Ok(self.shared.rings.take_changes()?)
    }

    /// Changes how the export's own workers look for work.
    ///
    /// # Errors
    /// A worker that died or hangs.
    pub fn set_poll(&self, poll: Poll) -> Result<(), ExportError> {
        self.shared.rings.take_changes()?;
        self.shared.lock().poll = poll;
        for worker in self.shared.engine().workers().iter().filter(|worker| worker.owner == self.shared.name()) {
            self.shared.engine().worker_poll(worker.number, poll)?;
        }
        Ok(())
    }

    /// As [`end`](Self::end), for somebody who must not wait for storage that does not answer. Does `meanwhile` again and again while rings end.
    ///
    /// # Errors
    /// A worker hangs: nothing has changed. [`ExportError::Undrained`]: requests are still under way after a second, or what it served is still
    /// being opened, flushed or closed after 45 seconds. The export has failed by that, serves nobody any more, and can be ended again when its storage has answered.
    pub fn end_soon(&self, meanwhile: impl Fn()) -> Result<(), ExportError> {
        self.shared.rings.take_changes()?;
        self.shared.stop.signal();
        let deadline = Told::deadline(Instant::now());
        let patient = Instant::now() + CLOSE_PATIENCE;
        // A thread can be waited for, but not until a deadline.
        while !self.has_ended() {
            meanwhile();
            let now = Instant::now();
            if now >= deadline && !(self.shared.device.changes_hands() && now < patient) {
                return Err(self.undrained());
            }
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        self.end();
        Ok(())
    }

    /// What it served does not answer: it has failed, and is to be ended again later.
    pub fn undrained(&self) -> ExportError {
        self.shared.fail(&ExportError::Undrained.to_string());
        ExportError::Undrained
    }

    fn has_ended(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the session, drains the rings, removes the socket and frees the export's own workers. Does nothing the second time.
    pub fn end(&self) {
        self.shared.stop.signal();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        for worker in self.shared.engine().workers().iter().filter(|worker| worker.owner == self.shared.name()) {
            let _ = self.shared.engine().worker_free(worker.number);
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.end();
    }
}
