//! One device served on one socket: its session thread, its rings, its settings that change while it runs.

mod door;
mod handover;
mod limits;
mod verbs;

pub use handover::Carried;

use crate::device::Device;
use crate::directory::Directory;
use crate::disk::Disk;
use crate::p9::P9;
use crate::queue::Queue;
use crate::rings::{Rings, Running, sum};
use crate::status::{Content, ExportStatus, RingState, RingStatus, SessionCounts};
use crate::target::ExportTarget;
use crate::workers::Own;
use crate::{DirectoryOptions, DiskOptions, Engine, ExportError, Hosting, P9Options, Ring, Socket};
use door::Door;
use engine::{EngineError, Io, Placement, Poll, Told, WorkerSpec, monotonic_ns};
use limits::Limiting;
use passthrough::Tree;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::Storage;
use vhost_user::{BackendChannel, Handover, SessionEnd, SessionInfo, StopFd};

/// How often the end of an export is looked for while somebody waits for it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

pub(crate) struct State {
    pub(crate) negotiated: u64,
    pub(crate) rings: Rings,
    own: Own,
    placement: Placement,
    poll: Poll,
    frontend: Option<SessionInfo>,
    backend_channel: Option<BackendChannel>,
    sessions: SessionCounts,
    failed: bool,
    last_error: Option<String>,
}

impl State {
    pub(crate) fn session_started(&mut self, frontend: SessionInfo, channel: BackendChannel) {
        self.sessions.connects += 1;
        self.session_resumed(frontend, channel);
    }

    /// It was counted when it began.
    pub(crate) fn session_resumed(&mut self, frontend: SessionInfo, channel: BackendChannel) {
        self.frontend = Some(frontend);
        self.backend_channel = Some(channel);
    }

    fn session_ended(&mut self, reason: &SessionEnd) {
        self.frontend = None;
        self.backend_channel = None;
        self.negotiated = 0;
        self.count_end(reason);
    }

    fn count_end(&mut self, reason: &SessionEnd) {
        match reason {
            SessionEnd::Disconnected => self.sessions.disconnects += 1,
            SessionEnd::Stopped => {}
            SessionEnd::Misspoke(_) | SessionEnd::Connection(_) | SessionEnd::Resume(_) => {
                self.sessions.errors += 1;
                if !self.failed {
                    self.last_error = Some(reason.to_string());
                }
            }
        }
    }
}

/// What the session thread and the control threads share. The lock is never held while a worker is waited for.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) queues: u16,
    pub(crate) queue_size_max: u16,
    /// Told at the end of every session.
    session_end: Mutex<Option<Sender<()>>>,
    /// Told when the export has failed.
    failed: Mutex<Option<Sender<()>>>,
    /// Ends the session and the endpoint.
    stop: StopFd,
    spec: WorkerSpec,
    limiting: Limiting,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is over: every ring has been stopped.
    pub(crate) fn session_ended(&self, reason: &SessionEnd) {
        self.device.session_ended();
        self.lock().session_ended(reason);
        if let Some(told) = &*self.session_end.lock().unwrap_or_else(PoisonError::into_inner) {
            // Nobody listens when the daemon is ending anyway.
            let _ = told.send(());
        }
    }

    /// One of several clients is gone, and the others stay.
    pub(crate) fn connection_ended(&self, reason: &SessionEnd) {
        self.lock().count_end(reason);
    }

    /// The export cannot go on: its session ends, no other begins, and it stays failed until it is removed. Only the first
    /// reason counts. Called from any thread, also from one that must not wait.
    pub(crate) fn fail(&self, why: &str) {
        {
            let mut state = self.lock();
            if std::mem::replace(&mut state.failed, true) {
                return;
            }
            state.last_error = Some(why.to_owned());
        }
        tracing::error!(export = self.name, reason = why, "the export has failed; remove it and add it again");
        self.stop.signal();
        if let Some(told) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            // Nobody listens when the daemon is ending anyway.
            let _ = told.send(());
        }
    }

    /// Why the export has failed, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        let state = self.lock();
        if state.failed { state.last_error.clone() } else { None }
    }

    /// The present life of ring `index`.
    pub(crate) fn running(&self, index: u16) -> Option<Running> {
        self.lock().rings.running(index)
    }

    /// The rings that run, by index.
    pub(crate) fn all_running(&self) -> Vec<(u16, Running)> {
        self.lock().rings.all_running()
    }

    /// Runs `f` on ring `index` between two turns of its worker. A ring that does not run, or died with its worker, is
    /// left out: the session goes on with the others.
    pub(crate) fn with_ring(&self, index: u16, f: impl FnOnce(&mut Ring) + Send + 'static) {
        let running = self.running(index);
        if let Some(running) = running {
            let _ = self.engine.with_ring(running.id, |ring: &mut Ring, _| f(ring));
        }
    }

    /// As [`with_ring`](Self::with_ring), on the ring's virtqueue.
    pub(crate) fn with_queue(&self, index: u16, f: impl FnOnce(&mut Queue) + Send + 'static) {
        self.with_ring(index, move |ring| {
            if let Some(queue) = ring.attachment_mut().queue_mut() {
                f(queue);
            }
        });
    }

    /// Runs `f` on every running ring.
    pub(crate) fn with_rings(&self, f: impl Fn(&mut Ring) + Clone + Send + 'static) {
        for (index, _) in self.all_running() {
            let f = f.clone();
            self.with_ring(index, move |ring| f(ring));
        }
    }

    /// Runs `f` on these rings for somebody who must not wait for a worker that hangs: its rings hear of it when it goes on.
    pub(crate) fn tell_rings(
        &self,
        rings: &[(u16, Running)],
        f: impl Fn(&mut Ring, &mut Io<'_>) + Clone + Send + 'static,
    ) {
        let deadline = Told::deadline(Instant::now());
        let tell = |(index, running): &(u16, Running)| {
            let f = f.clone();
            // A ring that stops at this moment need not hear of it.
            let told = self.engine.tell_ring(running.id, move |ring: &mut Ring, io| f(ring, io));
            Some((*index, told.ok()?))
        };
        // All of them first: their workers may be the same.
        let told: Vec<_> = rings.iter().filter_map(tell).collect();
        for (index, told) in told {
            if !told.heard_by(deadline) {
                let export = &self.name;
                tracing::warn!(export, ring = index, "a change takes effect when the ring's worker goes on");
            }
        }
    }

    /// Whether all rings can be told of a change.
    ///
    /// # Errors
    /// A worker hangs.
    pub(crate) fn takes_changes(&self) -> Result<(), EngineError> {
        for (_, running) in self.all_running() {
            // A ring that stops at this moment need not be told.
            if let Err(error @ EngineError::Unresponsive { .. }) = self.engine.takes_turns(running.id) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The worker on which ring `index` starts.
    pub(crate) fn place(&self, index: u16) -> Result<u32, ExportError> {
        let mut state = self.lock();
        let wanted = state.rings.wanted(index);
        if let Some(worker) = wanted
            && self.engine.workers().iter().any(|candidate| candidate.number == worker && candidate.alive)
        {
            return Ok(worker);
        }
        let (placement, poll) = (state.placement, state.poll);
        let place = (self.device.place_of(index), self.device.places());
        state.own.place(&self.engine, &self.name, placement, place, (&self.spec, poll))
    }

    fn status_of(&self, index: u16) -> RingStatus {
        let record = self.lock().rings.record(index).cloned().unwrap_or_default();
        let mut status = RingStatus {
            index,
            state: if record.broken.is_some() { RingState::Broken } else { RingState::Stopped },
            broken: record.broken,
            size: 0,
            worker: record.attached_to,
            in_flight: 0,
            oldest_in_flight_ns: None,
            figures: record.past,
            stay: record.past_stay,
        };
        let Some(running) = record.running else {
            return status;
        };
        let page = &running.page;
        status.figures.add(&page.figures());
        // A ring that stops at this moment, or is lost, shows as stopped.
        let Some((worker, stay)) = self.engine.worker_of(running.id).zip(self.engine.stay_of(running.id)) else {
            return status;
        };
        status.stay = sum(status.stay, stay);
        (status.size, status.worker) = (running.size, Some(worker));
        status.in_flight = page.in_flight();
        status.oldest_in_flight_ns = page.oldest_ns().map(|taken_ns| monotonic_ns().saturating_sub(taken_ns));
        status.broken = page.broken();
        status.state = match (&status.broken, page.enabled()) {
            (Some(_), _) => RingState::Broken,
            (None, true) => RingState::Running,
            (None, false) => RingState::Disabled,
        };
        if let Err(EngineError::Unresponsive { busy_ms, .. }) = self.engine.takes_turns(running.id) {
            status.state = RingState::Unresponsive;
            status.oldest_in_flight_ns = status.oldest_in_flight_ns.max(Some(busy_ms.saturating_mul(1_000_000)));
        }
        status
    }
}

/// What an export serves, for the verbs that only one kind has.
#[derive(Clone)]
enum Served {
    Disk(Arc<Disk>),
    Directory(Arc<Directory>),
    P9(Arc<P9>),
}

/// An export that listens or serves. Dropping it ends its session, drains its rings and removes its socket.
pub struct Export {
    shared: Arc<Shared>,
    served: Served,
    socket: String,
    handover: Handover,
    thread: Mutex<Option<JoinHandle<()>>>,
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
            name: hosting.name,
            engine: engine.clone(),
            device,
            queues,
            queue_size_max: hosting.queue_size_max,
            session_end: Mutex::new(hosting.session_ended),
            failed: Mutex::new(hosting.failed),
            stop: stop.clone(),
            spec: hosting.workers,
            limiting: Limiting::default(),
            state: Mutex::new(State {
                negotiated: 0,
                rings: Rings::again(&attached, &homes),
                own: Own::again(placed),
                placement: hosting.placement,
                poll: hosting.poll,
                frontend: None,
                backend_channel: None,
                sessions,
                failed: false,
                last_error,
            }),
        });
        // A placement that cannot start its first worker is an error now, not when a guest arrives.
        shared.place(0)?;
        let target = ExportTarget { shared: shared.clone() };
        let (orders, resume) = (handover.clone(), hosting.resume);
        let thread = std::thread::Builder::new()
            .name(format!("export-{}", shared.name))
            .spawn(move || {
                let mut target = target;
                // What the link says of its messages is about this export.
                let _span = tracing::error_span!("session", export = target.shared.name).entered();
                // A panic in here must not leave rings behind that nobody ends.
                if let Err(why) = engine::catch(|| door.serve(&mut target, &stop, &orders, resume)) {
                    target.give_up(&why);
                }
            })
            .map_err(ExportError::Thread)?;
        Ok(Export { shared, served, socket, handover, thread: Mutex::new(Some(thread)) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
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
                let (description, volume) = (disk.storage.describe(), disk.storage.volume());
                let volume = volume.map(|volume| Box::new(volume.status()));
                Content::Disk { capacity_bytes, block_size_bytes, description, volume }
            }
            Served::Directory(directory) => Content::Directory(Box::new(directory.status())),
            Served::P9(p9) => Content::P9(Box::new(p9.status())),
        };
        let (limits, group) = self.shared.limiting.shown();
        let state = self.shared.lock();
        ExportStatus {
            name: self.shared.name.clone(),
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
            last_error: state.last_error.clone(),
        }
    }

    /// One ring. `None` beyond the number of queues.
    pub fn ring(&self, index: u16) -> Option<RingStatus> {
        (index < self.shared.queues).then(|| self.shared.status_of(index))
    }

    /// All rings that a frontend has ever started, and ring 0.
    pub fn rings(&self) -> Vec<RingStatus> {
        let last = (0..self.shared.queues).rev().find(|index| self.shared.lock().rings.record(*index).is_some());
        (0..=last.unwrap_or(0)).map(|index| self.shared.status_of(index)).collect()
    }

    /// The request of each running ring that was taken first of those in flight: the ring, when it was taken in nanoseconds of
    /// CLOCK_MONOTONIC, and whether its worker takes its turns. If it does not, the ring is listed with the begin of what keeps
    /// the worker busy.
    pub fn oldest_requests(&self) -> Vec<(u16, u64, bool)> {
        let oldest = |(index, running): (u16, Running)| match self.shared.engine.takes_turns(running.id) {
            Ok(()) => Some((index, running.page.oldest_ns()?, true)),
            Err(EngineError::Unresponsive { since_ns, .. }) => Some((index, since_ns, false)),
            Err(_) => None,
        };
        self.shared.all_running().into_iter().filter_map(oldest).collect()
    }

    /// The rings that run, each with its worker.
    pub fn running(&self) -> Vec<(u16, u32)> {
        let running = self.shared.all_running().into_iter();
        running.filter_map(|(index, ring)| Some((index, self.shared.engine.worker_of(ring.id)?))).collect()
    }

    /// Attaches a ring to a worker, now and for its next lives.
    ///
    /// # Errors
    /// No such ring, no such or a dead worker, one that belongs to another export, or one that hangs, here or there.
    pub fn attach(&self, index: u16, worker: u32) -> Result<(), ExportError> {
        if index >= self.shared.queues {
            return Err(ExportError::NoSuchRing { index, queues: self.shared.queues });
        }
        let status = self.shared.engine.workers().into_iter().find(|candidate| candidate.number == worker);
        let status = status.ok_or(engine::EngineError::NoSuchWorker(worker))?;
        if status.owner != crate::DAEMON && status.owner != self.shared.name {
            return Err(ExportError::ForeignWorker { worker, owner: status.owner });
        }
        if !status.alive {
            return Err(engine::EngineError::WorkerDead(worker).into());
        }
        let running = self.shared.running(index);
        if let Some(running) = running {
            self.shared.engine.attach_to(running.id, worker)?;
        }
        self.shared.lock().rings.attach(index, worker);
        Ok(())
    }

    /// Whether its settings can be changed: rings hear of that from their workers.
    ///
    /// # Errors
    /// A worker that hangs.
    pub fn takes_changes(&self) -> Result<(), ExportError> {
        Ok(self.shared.takes_changes()?)
    }

    /// Places all rings anew.
    ///
    /// # Errors
    /// Workers that hang: nothing has changed. Workers that cannot be started; rings that were moved by then stay where they
    /// are.
    pub fn set_placement(&self, placement: Placement) -> Result<(), ExportError> {
        self.shared.takes_changes()?;
        {
            let mut state = self.shared.lock();
            state.placement = placement;
            state.rings.release();
        }
        for (index, running) in self.shared.all_running() {
            let worker = self.shared.place(index)?;
            // A ring that stops at this moment is placed when it starts again.
            match self.shared.engine.attach_to(running.id, worker) {
                Ok(()) | Err(engine::EngineError::NoSuchRing) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut state = self.shared.lock();
        state.own.free_unused(&self.shared.engine);
        Ok(())
    }

    /// Changes how the export's own workers look for work.
    ///
    /// # Errors
    /// A worker that died or hangs.
    pub fn set_poll(&self, poll: Poll) -> Result<(), ExportError> {
        self.shared.takes_changes()?;
        self.shared.lock().poll = poll;
        for worker in self.shared.engine.workers().iter().filter(|worker| worker.owner == self.shared.name) {
            self.shared.engine.worker_poll(worker.number, poll)?;
        }
        Ok(())
    }

    /// As [`end`](Self::end), for somebody who must not wait for storage that does not answer.
    ///
    /// # Errors
    /// A worker hangs: nothing has changed. [`ExportError::Undrained`]: requests are still under way after a second. The
    /// export has failed by that, serves nobody any more, and can be ended again when its storage has answered.
    pub fn end_soon(&self) -> Result<(), ExportError> {
        self.shared.takes_changes()?;
        self.shared.stop.signal();
        let deadline = Told::deadline(Instant::now());
        // A thread can be waited for, but not until a deadline.
        while !self.has_ended() {
            if Instant::now() >= deadline {
                self.shared.fail(&ExportError::Undrained.to_string());
                return Err(ExportError::Undrained);
            }
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        self.end();
        Ok(())
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
        for worker in self.shared.engine.workers().iter().filter(|worker| worker.owner == self.shared.name) {
            let _ = self.shared.engine.worker_free(worker.number);
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.end();
    }
}
