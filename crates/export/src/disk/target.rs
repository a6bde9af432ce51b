//! What a frontend's messages do to a disk. Runs on the session's thread.

use super::DiskRing;
use crate::export::Shared;
use crate::figures::RingFigures;
use crate::queue::Broken;
use crate::rings::Running;
use link::{ConfigChange, RingStart, SessionEnd, SessionInfo, Target};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vring::Memory;

pub(crate) struct DiskTarget {
    pub(crate) shared: Arc<Shared>,
}

impl DiskTarget {
    fn with_ring(&self, index: u16, f: impl FnOnce(&mut DiskRing) + Send + 'static) {
        let running = self.shared.running(index);
        if let Some(running) = running {
            // A ring that is gone died with its worker; the session goes on with the others.
            let _ = self.shared.engine.with_ring(running.id, |ring: &mut DiskRing, _, _| f(ring));
        }
    }

    fn with_rings(&self, f: impl Fn(&mut DiskRing) + Clone + Send + 'static) {
        for (index, _) in self.shared.all_running() {
            let f = f.clone();
            self.with_ring(index, move |ring| f(ring));
        }
    }
}

impl Target for DiskTarget {
    fn features(&self) -> u64 {
        self.shared.lock().config.features()
    }

    fn queues_max(&self) -> u16 {
        self.shared.queues
    }

    fn set_features(&mut self, acked: u64) {
        self.shared.lock().negotiated = acked;
        self.shared.spread_terms();
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        self.shared.lock().config.read(offset, out).is_ok()
    }

    fn set_config(&mut self, offset: u32, data: &[u8]) -> bool {
        let written = {
            let mut state = self.shared.lock();
            let negotiated = state.negotiated;
            state.config.write(offset, data, negotiated).is_ok()
        };
        if written {
            self.shared.spread_terms();
        }
        written
    }

    fn start(&mut self, index: u16, ring: RingStart) -> Result<(), String> {
        let size = ring.layout.size;
        if size > self.shared.queue_size_max {
            let most = self.shared.queue_size_max;
            return Err(format!("ring {index} has {size} descriptors, and this export allows {most} (queue_size)"));
        }
        let label = format!("{}/{index}", self.shared.name);
        let ring = DiskRing::new(ring, self.shared.terms(), self.shared.storage.clone(), label)
            .map_err(|error| error.to_string())?;
        let worker = self.shared.place(index).map_err(|error| error.to_string())?;
        let id = self.shared.engine.attach(ring, worker).map_err(|(error, _)| error.to_string())?;
        self.shared.lock().rings.started(index, Running { id, size });
        // The terms may have changed while the ring was built.
        let terms = self.shared.terms();
        self.with_ring(index, move |ring| ring.set_terms(terms));
        Ok(())
    }

    fn stop(&mut self, index: u16) -> u16 {
        let Some(running) = self.shared.running(index) else {
            return 0;
        };
        let stay = self.shared.engine.with_ring(running.id, |_: &mut DiskRing, stay, _| *stay).unwrap_or_default();
        let ended = self.shared.engine.detach(running.id);
        let (next_avail, figures, broken) = match ended {
            Ok(ring) => (ring.queue().next_avail(), ring.figures(), ring.queue().broken().map(Broken::to_string)),
            Err(error) => {
                tracing::error!(export = self.shared.name, ring = index, %error, "the ring was lost");
                (0, RingFigures::default(), Some(error.to_string()))
            }
        };
        self.shared.lock().rings.stopped(index, &figures, stay, broken);
        next_avail
    }

    fn set_call(&mut self, index: u16, call: Option<OwnedFd>) {
        self.with_ring(index, move |ring| ring.queue_mut().set_call(call));
    }

    fn set_enabled(&mut self, index: u16, enabled: bool) {
        self.with_ring(index, move |ring| ring.queue_mut().set_enabled(enabled));
    }

    fn set_memory(&mut self, memory: &Arc<Memory>) {
        let memory = memory.clone();
        self.with_rings(move |ring| ring.queue_mut().set_memory(memory.clone()));
    }

    fn session_started(&mut self, frontend: SessionInfo, config_change: ConfigChange) {
        tracing::info!(export = self.shared.name, %frontend, "frontend connected");
        self.shared.lock().session_started(frontend, config_change);
    }

    fn session_ended(&mut self, reason: &SessionEnd) {
        tracing::info!(export = self.shared.name, %reason, "session ended");
        self.shared.lock().session_ended(reason);
    }
}
