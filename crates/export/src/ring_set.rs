//! The rings of an export, and how they are told things: each by its worker, between two turns.

use crate::page::RingPage;
use crate::queue::Queue;
use crate::rings::{Rings, Running};
use crate::{Engine, Ring};
use engine::{EngineError, Io, RingId, Told};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The rings of one export. The lock is never held while a worker is waited for.
pub(crate) struct RingSet {
    export: String,
    engine: Engine,
    records: Mutex<Rings>,
}

impl RingSet {
    /// Those of the export of this name.
    pub(crate) fn new(export: String, engine: Engine, records: Rings) -> RingSet {
        RingSet { export, engine, records: Mutex::new(records) }
    }

    /// Whose they are.
    pub(crate) fn export(&self) -> &str {
        &self.export
    }

    /// What drives them.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What is known of them.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Rings> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ring `index` has begun a life of `size` requests at most.
    pub(crate) fn started(&self, index: u16, id: RingId, size: u16, page: RingPage) {
        // A ring that fell at once is known no more.
        let stay = self.engine.stay_of(id).unwrap_or_default();
        self.lock().started(index, Running { id, size, page, stay });
    }

    /// Those that run, by index.
    pub(crate) fn running(&self) -> Vec<(u16, Running)> {
        self.lock().all_running()
    }

    /// Runs `f` on ring `index` between two turns of its worker. A ring that does not run, or died with its worker, is
    /// left out: the session goes on with the others.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        index: u16,
        f: impl FnOnce(&mut Ring) -> T + Send + 'static,
    ) -> Option<T> {
        let running = self.lock().running(index)?;
        self.engine.with_ring(running.id, |ring: &mut Ring, _| f(ring)).ok()
    }

    /// As [`with`](Self::with), on the ring's virtqueue.
    pub(crate) fn with_queue(&self, index: u16, f: impl FnOnce(&mut Queue) + Send + 'static) {
        self.with(index, move |ring| {
            if let Some(queue) = ring.attachment_mut().queue_mut() {
                f(queue);
            }
        });
    }

    /// Runs `f` on every running ring.
    pub(crate) fn with_all(&self, f: impl Fn(&mut Ring) + Clone + Send + 'static) {
        for (index, _) in self.running() {
            let f = f.clone();
            self.with(index, move |ring| f(ring));
        }
    }

    /// Runs `f` on these rings for somebody who must not wait for a worker that hangs: its rings hear of it when it goes on.
    pub(crate) fn tell(&self, rings: &[(u16, Running)], f: impl Fn(&mut Ring, &mut Io<'_>) + Clone + Send + 'static) {
        self.tell_by(rings, |id| self.engine.tell_ring(id, f.clone()));
    }

    /// As above, for what every ring has to hear, whatever else waits for its worker.
    pub(crate) fn order(&self, rings: &[(u16, Running)], f: impl Fn(&mut Ring, &mut Io<'_>) + Clone + Send + 'static) {
        self.tell_by(rings, |id| self.engine.order_ring(id, f.clone()));
    }

    fn tell_by(&self, rings: &[(u16, Running)], tell: impl Fn(RingId) -> Result<Told, EngineError>) {
        let deadline = Told::deadline(Instant::now());
        // All of them first: their workers may be the same. A ring that stops at this moment need not hear of it.
        let told = rings.iter().filter_map(|(index, running)| Some((*index, tell(running.id).ok()?)));
        let told: Vec<_> = told.collect();
        for (index, told) in told {
            if !told.heard_by(deadline) {
                let export = &self.export;
                tracing::warn!(export, ring = index, "a change takes effect when the ring's worker goes on");
            }
        }
    }

    /// Whether all rings can be told of a change.
    ///
    /// # Errors
    /// A worker hangs.
    pub(crate) fn take_changes(&self) -> Result<(), EngineError> {
        for (_, running) in self.running() {
            // A ring that stops at this moment need not be told.
            if let Err(error @ EngineError::Unresponsive { .. }) = self.engine.takes_turns(running.id) {
                return Err(error);
            }
        }
        Ok(())
    }
}
