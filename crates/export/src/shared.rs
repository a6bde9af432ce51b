//! What the session's thread and the control threads of an export share.

use crate::device::{Device, Took};
use crate::label::{Keeper, Label};
use crate::limit::{Limiting, Throttle};
use crate::ring_set::RingSet;
use crate::rings::{Running, sum};
use crate::status::{RingState, RingStatus, SessionCounts};
use crate::trace::Recorder;
use crate::workers::Own;
use crate::{Engine, ExportError, Ring};
use engine::{EngineError, Panic, Placement, Poll, WorkerSpec, monotonic_ns};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use vhost_user::{BackendChannel, SessionEnd, SessionInfo, StopFd};

pub(crate) struct State {
    pub(crate) negotiated: u64,
    pub(crate) own: Own,
    pub(crate) placement: Placement,
    pub(crate) poll: Poll,
    pub(crate) frontend: Option<SessionInfo>,
    pub(crate) backend_channel: Option<BackendChannel>,
    pub(crate) sessions: SessionCounts,
    pub(crate) failed: bool,
    pub(crate) last_error: Option<String>,
    /// Why what it serves is kept though no ring runs.
    pub(crate) kept: Option<String>,
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
            SessionEnd::Misspoke(_)
            | SessionEnd::Connection(_)
            | SessionEnd::Unavailable(_)
            | SessionEnd::Resume(_) => {
                self.sessions.errors += 1;
                if !self.failed {
                    self.last_error = Some(reason.to_string());
                }
            }
        }
    }
}

/// How long a volume may take to be written back while its frontend waits.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(30);
/// The same, while a frontend may want to come back.
const GIVE_UP_SOON: Duration = Duration::from_secs(1);

/// What the session thread and the control threads share. The lock is never held while a worker is waited for.
pub(crate) struct Shared {
    pub(crate) rings: RingSet,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) queues: u16,
    pub(crate) queue_size_max: u16,
    /// Told at the end of every session.
    pub(crate) session_end: Mutex<Option<Sender<()>>>,
    /// Told when the export has failed.
    pub(crate) failed: Mutex<Option<Sender<()>>>,
    /// Ends the session and the endpoint.
    pub(crate) stop: StopFd,
    pub(crate) spec: WorkerSpec,
    pub(crate) limiting: Limiting,
    /// Held while a ring starts or stops, and while none may; counts how often that was so.
    pub(crate) steady: Mutex<u64>,
    pub(crate) state: Mutex<State>,
    /// Slow requests, for those who trace them.
    pub(crate) recorder: Arc<Recorder>,
}

impl Shared {
    /// The export's name.
    pub(crate) fn name(&self) -> &str {
        self.rings.export()
    }

    /// What drives its rings.
    pub(crate) fn engine(&self) -> &Engine {
        self.rings.engine()
    }

    /// Names ring `index`, which tells when it is lost.
    pub(crate) fn label(self: &Arc<Self>, index: u16) -> Label {
        let keeper: Weak<dyn Keeper> = Arc::<Self>::downgrade(self);
        Label::new(self.name(), index, keeper, self.recorder.clone())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring is about to start, as long as anybody wants it.
    pub(crate) fn take(&self, is_wanted: &dyn Fn() -> bool) -> Result<(), String> {
        let Took { config_changed, lost } = self.device.take(&self.rings, is_wanted)?;
        self.lock().kept = None;
        if config_changed {
            self.tell_config();
        }
        if let Some(lost) = lost {
            self.complain(lost);
        }
        Ok(())
    }

    /// Something is not as the guest left it; the export goes on.
    fn complain(&self, why: String) {
        tracing::error!(export = self.name(), why, "the guest meets errors");
        let mut state = self.lock();
        if !state.failed {
            state.last_error = Some(why);
        }
    }

    /// The device's state, for another host.
    pub(crate) fn save(&self) -> Result<Vec<Vec<u8>>, String> {
        self.device.save(&|| !self.stop.is_signalled()).inspect_err(|why| self.note_error(why))
    }

    /// The device's state, from another host.
    pub(crate) fn load(&self, state: &[u8]) -> Result<(), String> {
        let is_wanted = || !self.stop.is_signalled();
        let lost = self.device.load(state, &is_wanted).inspect_err(|why| self.note_error(why))?;
        if let Some(lost) = lost {
            self.complain(lost);
        }
        Ok(())
    }

    fn note_error(&self, why: &str) {
        let mut state = self.lock();
        if !state.failed {
            state.last_error = Some(format!("a migration fails: {why}"));
        }
    }

    /// No ring runs. `is_awaited`: somebody waits until what they needed is given up, or cannot be.
    pub(crate) fn give_up(&self, is_awaited: bool) {
        match self.device.give_up(if is_awaited { GIVE_UP_PATIENCE } else { GIVE_UP_SOON }) {
            Ok(false) => {}
            Ok(true) => {
                // Workers may hold files that nobody else does any more.
                self.engine().sweep_files();
                self.lock().kept = None;
            }
            Err(why) => {
                let before = self.lock().kept.replace(why.clone());
                if before.as_ref() != Some(&why) {
                    tracing::error!(
                        export = self.name(),
                        why,
                        "what it serves is kept, and no other daemon can take it"
                    );
                }
            }
        }
    }

    /// The config space has changed: tells the guest.
    pub(crate) fn tell_config(&self) {
        let channel = self.lock().backend_channel.clone();
        if let Some(channel) = channel
            && !channel.config_changed()
        {
            tracing::warn!(export = self.name(), "nobody can be told of the new size: whoever asks again sees it");
        }
    }

    /// A session is over: every ring has been stopped.
    pub(crate) fn session_ended(&self, reason: &SessionEnd) {
        self.device.session_ended();
        // Nobody tries again when the export ends.
        self.give_up(matches!(reason, SessionEnd::Stopped));
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
        tracing::error!(export = self.name(), reason = why, "the export has failed; remove it and add it again");
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

    /// The worker on which ring `index` starts.
    pub(crate) fn place(&self, index: u16) -> Result<u32, ExportError> {
        let wanted = self.rings.lock().wanted(index);
        if let Some(worker) = wanted {
            if self.engine().workers().iter().any(|candidate| candidate.number == worker && candidate.alive) {
                return Ok(worker);
            }
            // Wherever it goes now, nobody has attached it there.
            self.rings.lock().release_one(index);
        }
        let mut state = self.lock();
        let (placement, poll) = (state.placement, state.poll);
        let place = (self.device.place_of(index), self.device.places());
        state.own.place(self.engine(), self.name(), placement, place, (&self.spec, poll))
    }

    pub(crate) fn status_of(&self, index: u16) -> RingStatus {
        let record = self.rings.lock().record(index).cloned().unwrap_or_default();
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
        status.stay = sum(status.stay, running.stay.read());
        // A ring that stops at this moment, or is lost, shows as stopped.
        let Some(worker) = self.engine().worker_of(running.id) else {
            return status;
        };
        (status.size, status.worker) = (running.size, Some(worker));
        status.in_flight = page.in_flight();
        status.oldest_in_flight_ns = page.oldest_ns().map(|taken_ns| monotonic_ns().saturating_sub(taken_ns));
        status.broken = page.broken();
        status.state = match (&status.broken, page.enabled()) {
            (Some(_), _) => RingState::Broken,
            (None, true) => RingState::Running,
            (None, false) => RingState::Disabled,
        };
        if let Err(EngineError::Unresponsive { busy_ms, .. }) = self.engine().takes_turns(running.id) {
            status.state = RingState::Unresponsive;
            status.oldest_in_flight_ns = status.oldest_in_flight_ns.max(Some(busy_ms.saturating_mul(1_000_000)));
        }
        status
    }
}

impl Shared {
    /// A ring is going to start: the limits hold for its first request.
    pub(crate) fn limit_before(&self, index: u16, ring: &mut Ring) {
        let throttle = self.limiting.lock().throttle.clone();
        if throttle.is_some() && self.device.limited(index) {
            ring.attachment_mut().turns_mut().gate.set(throttle, monotonic_ns());
        }
    }

    /// A ring has started: the limits that were set since hold for it too.
    pub(crate) fn limit(&self, index: u16) {
        let _in_order = self.limiting.tell();
        let throttle = self.limiting.lock().throttle.clone();
        let running = self.rings.lock().running(index);
        if let Some(running) = running.filter(|_| throttle.is_some()) {
            self.tell_limits(&[(index, running)], throttle);
        }
    }

    pub(crate) fn tell_limits(&self, rings: &[(u16, Running)], throttle: Option<Arc<Throttle>>) {
        let limited: Vec<_> = rings.iter().filter(|(index, _)| self.device.limited(*index)).cloned().collect();
        self.rings.tell(&limited, move |ring, io| {
            ring.attachment_mut().turns_mut().gate.set(throttle.clone(), io.now_ns());
        });
    }
}

impl Keeper for Shared {
    fn lost(&self, ring: u16, why: &Panic) {
        self.fail(&format!("ring {ring} was lost by a {why}"));
    }

    fn rings(&self) -> &RingSet {
        &self.rings
    }
}
