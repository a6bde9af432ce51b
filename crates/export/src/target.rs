//! What a frontend's messages do to an export. Runs on the session's thread.

use crate::Ring;
use crate::rings::Running;
use crate::shared::Shared;
use engine::{Io, Panic};
use std::num::{NonZeroU8, NonZeroU64};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use vhost_user::{BackendChannel, RingStart, SessionEnd, SessionInfo, Suspended, Target};
use vring::{Memory, Note, RingLog, RingPosition};

pub(crate) struct ExportTarget {
    pub(crate) shared: Arc<Shared>,
}

impl ExportTarget {
    /// Ends a ring with what it has in flight, and says where it stands.
    fn end_ring(&mut self, running: &Running, index: u16) -> Suspended {
        let _steady = self.shared.steady();
        let begin = |ring: &mut Ring, io: &mut Io<'_>| ring.attachment_mut().begin_owed(io);
        while let Ok(true) = self.shared.engine().with_ring(running.id, begin) {}
        let ended = self.shared.engine().detach(running.id);
        let (stands, broken) = match ended {
            Ok(mut ring) => {
                let stands = Suspended { position: ring.position(), owed: ring.attachment_mut().take_owed() };
                (stands, running.page.broken())
            }
            Err(error) => {
                // Said already where the export has failed by it.
                let why = self.shared.failure();
                if why.is_none() {
                    tracing::error!(export = self.shared.name(), ring = index, %error, "the ring was lost");
                }
                (Suspended::default(), Some(why.unwrap_or_else(|| error.to_string())))
            }
        };
        self.shared.rings.lock().stopped(index, broken);
        stands
    }

    /// The session's thread has panicked: what the session would have ended is ended here.
    pub(crate) fn has_panicked(&mut self, why: &Panic) {
        self.shared.fail(&format!("its session ended by a {why}"));
        for (index, _) in self.shared.rings.running() {
            self.stop(index);
        }
        self.session_ended(&SessionEnd::Stopped);
    }
}

impl Target for ExportTarget {
    fn features(&self) -> u64 {
        self.shared.device.features()
    }

    fn features_known(&self) -> u64 {
        self.shared.device.features_known()
    }

    fn queues_max(&self) -> u16 {
        self.shared.queues
    }

    fn set_features(&mut self, acked: u64) {
        self.shared.lock().negotiated = acked;
        self.shared.device.acknowledged(&self.shared.rings, acked);
    }

    fn has_inflight(&self) -> bool {
        self.shared.device.has_inflight()
    }

    fn has_log(&self) -> bool {
        self.shared.device.has_log()
    }

    fn has_device_state(&self) -> bool {
        self.shared.device.has_device_state()
    }

    fn save(&mut self) -> Result<Vec<Vec<u8>>, String> {
        self.shared.save()
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), String> {
        self.shared.load(&state)
    }

    fn shared_memory_bytes(&self) -> Option<NonZeroU64> {
        self.shared.device.shared_memory_bytes()
    }

    fn shared_memory_told(&mut self) {
        self.shared.device.shared_memory_told();
    }

    fn has_config(&self) -> bool {
        self.shared.device.has_config()
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        self.shared.device.config(offset, out)
    }

    fn set_config(&mut self, offset: u32, data: &[u8]) -> bool {
        self.shared.device.set_config(&self.shared.rings, offset, data)
    }

    fn note(&self) -> Option<NonZeroU8> {
        self.shared.device.note()
    }

    fn recall(&mut self, _index: u16, note: Note) {
        self.shared.device.recall(&self.shared.rings, note);
    }

    fn start(&mut self, index: u16, ring: RingStart) -> Result<(), String> {
        let size = ring.layout.size;
        if size > self.shared.queue_size_max {
            let most = self.shared.queue_size_max;
            return Err(format!("ring {index} has {size} descriptors, and this export allows {most} (queue_size)"));
        }
        if let Some(kick) = &ring.kick {
            engine::may_be_watched(kick.as_fd()).map_err(|error| format!("its kick descriptor is {error}"))?;
        }
        let _steady = self.shared.steady();
        let label = self.shared.label(index);
        let mut ring = self.shared.device.ring(index, ring, label).map_err(|error| error.to_string())?;
        self.shared.limit_before(index, &mut ring);
        let worker = self.shared.place(index).map_err(|error| error.to_string())?;
        let page = ring.page();
        let id = self.shared.engine().attach(ring, worker).map_err(|(error, _)| error.to_string())?;
        self.shared.rings.started(index, id, size, page);
        self.shared.device.started(&self.shared.rings, index);
        self.shared.limit(index);
        Ok(())
    }

    fn stop(&mut self, index: u16) -> RingPosition {
        let running = self.shared.rings.lock().running(index);
        running.map(|running| self.end_ring(&running, index).position).unwrap_or_default()
    }

    fn take(&mut self) -> Result<(), String> {
        let stop = &self.shared.stop;
        self.shared.take(&|| !stop.is_signalled())
    }

    fn is_held(&self) -> bool {
        self.shared.device.is_held()
    }

    fn give_up(&mut self, is_awaited: bool) {
        self.shared.give_up(is_awaited);
    }

    fn suspend(&mut self, index: u16) -> Suspended {
        let running = self.shared.rings.lock().running(index);
        let Some(running) = running else {
            return Suspended::default();
        };
        self.shared.rings.with(index, |ring| ring.attachment_mut().suspend());
        self.end_ring(&running, index)
    }

    fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        self.shared.rings.with_queue(index, move |queue| queue.set_call(call));
    }

    fn set_enabled(&mut self, index: u16, enabled: bool) {
        self.shared.rings.with_queue(index, move |queue| queue.set_enabled(enabled));
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) {
        let memory = memory.clone();
        self.shared.rings.with_all(move |ring| {
            if let Some(queue) = ring.attachment_mut().queue_mut() {
                queue.set_memory(memory.clone());
            }
        });
    }

    fn set_log(&mut self, index: u16, log: Option<RingLog>) {
        let rings = &self.shared.rings;
        let begins =
            rings.with(index, |ring| ring.attachment_mut().queue_mut().is_some_and(|queue| queue.set_log(log)));
        let mut next = (begins == Some(true)).then_some(0);
        // A portion at a time: the worker's other rings have their turns in between. What ends meanwhile was written before the frontend
        // copies anything.
        while let Some(from) = next {
            next = rings.with(index, move |ring| ring.attachment_mut().note_in_flight(from)).flatten();
        }
    }

    fn in_flight(&mut self, index: u16) -> Result<usize, String> {
        let running = self.shared.rings.lock().running(index);
        let Some(running) = running else {
            return Ok(0);
        };
        let in_flight = self.shared.engine().ask_ring(running.id, |ring: &mut Ring, _| ring.requests_to_drain());
        in_flight.map_err(|error| error.to_string())
    }

    fn reset(&mut self) {
        self.shared.device.reset();
    }

    fn hand_over(&self) -> Result<(), String> {
        self.shared.device.hand_over()
    }

    fn session_resumed(&mut self, frontend: SessionInfo, channel: BackendChannel) {
        self.shared.device.session_started(&channel);
        self.shared.lock().session_resumed(frontend, channel);
    }

    fn session_started(&mut self, frontend: SessionInfo, channel: BackendChannel) {
        tracing::info!(export = self.shared.name(), %frontend, "frontend connected");
        self.shared.device.session_started(&channel);
        self.shared.lock().session_started(frontend, channel);
    }

    fn session_ended(&mut self, reason: &SessionEnd) {
        tracing::info!(export = self.shared.name(), %reason, "session ended");
        self.shared.session_ended(reason);
    }
}
