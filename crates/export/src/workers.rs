//! The workers an export may use: its own, started when a ring first needs them, and the daemon's.

use crate::{Engine, ExportError};
use engine::{Placement, Poll, WorkerSpec};
use policy::Candidate;

/// The label of workers that every export may use.
pub const DAEMON: &str = "";

/// An export's own workers, by their place in its placement.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Started by the placement, in its order.
    placed: Vec<Option<u32>>,
}

impl Own {
    /// Workers that were started before, by their place.
    pub(crate) fn again(placed: Vec<Option<u32>>) -> Own {
        Own { placed }
    }

    /// The workers, by their place.
    pub(crate) fn placed(&self) -> &[Option<u32>] {
        &self.placed
    }

    /// The worker for ring `index` of an export named `name` that has `queues` of them.
    pub(crate) fn place(
        &mut self,
        engine: &Engine,
        name: &str,
        placement: Placement,
        (index, queues): (u16, u16),
        (spec, poll): (&WorkerSpec, Poll),
    ) -> Result<u32, ExportError> {
        if placement == Placement::Shared {
            return place_shared(engine);
        }
        let count = policy::private_workers(placement, usize::from(queues));
        // The policy speaks of places; which worker holds a place is this table's matter.
        let places: Vec<Candidate> = (0..count as u32).map(|worker| Candidate { worker, rings: 0 }).collect();
        let place = policy::place(placement, usize::from(queues), &places)[usize::from(index)] as usize;
        self.placed.resize(self.placed.len().max(count), None);
        if let Some(worker) = self.placed[place].filter(|worker| alive(engine, *worker)) {
            return Ok(worker);
        }
        let worker = engine.worker_new(name, spec.clone(), poll)?;
        self.placed[place] = Some(worker);
        Ok(worker)
    }

    /// Frees the placed workers that no ring uses.
    pub(crate) fn free_unused(&mut self, engine: &Engine) {
        for place in &mut self.placed {
            if let Some(worker) = *place
                && engine.worker_free(worker).is_ok()
            {
                *place = None;
            }
        }
    }
}

fn alive(engine: &Engine, number: u32) -> bool {
    engine.workers().iter().any(|worker| worker.number == number && worker.alive)
}

fn place_shared(engine: &Engine) -> Result<u32, ExportError> {
    let candidates: Vec<Candidate> = engine
        .workers()
        .iter()
        .filter(|worker| worker.owner == DAEMON && worker.alive)
        .map(|worker| Candidate { worker: worker.number, rings: worker.rings.len() })
        .collect();
    policy::place(Placement::Shared, 1, &candidates).first().copied().ok_or(ExportError::NoSharedWorkers)
}
