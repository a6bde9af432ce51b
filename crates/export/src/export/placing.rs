//! Which worker has which ring: what people say about that, and what a policy does where nobody has.

use super::Export;
use crate::{DAEMON, ExportError};
use engine::{EngineError, Placement, RingId};
use policy::balance::RingLoad;
use std::sync::{MutexGuard, PoisonError};

impl Export {
    /// Attaches a ring to a worker, now and for its next lives.
    ///
    /// # Errors
    /// No such ring, no such or a dead worker, one that belongs to another export, or one that hangs, here or there.
    pub fn attach(&self, index: u16, worker: u32) -> Result<(), ExportError> {
        let _placing = self.placing();
        if index >= self.shared.queues {
            return Err(ExportError::NoSuchRing { index, queues: self.shared.queues });
        }
        let status = self.shared.engine().workers().into_iter().find(|candidate| candidate.number == worker);
        let status = status.ok_or(EngineError::NoSuchWorker(worker))?;
        if status.owner != DAEMON && status.owner != self.shared.name() {
            return Err(ExportError::ForeignWorker { worker, owner: status.owner });
        }
        if !status.alive {
            return Err(EngineError::WorkerDead(worker).into());
        }
        let running = self.shared.rings.lock().running(index);
        if let Some(running) = running {
            self.shared.engine().attach_to(running.id, worker)?;
        }
        self.shared.rings.lock().attach(index, worker);
        Ok(())
    }

    /// Places all rings anew.
    ///
    /// # Errors
    /// Workers that hang: nothing has changed. Workers that cannot be started; rings that were moved by then stay where they
    /// are.
    pub fn set_placement(&self, placement: Placement) -> Result<(), ExportError> {
        let _placing = self.placing();
        self.shared.rings.take_changes()?;
        self.shared.lock().placement = placement;
        self.shared.rings.lock().release();
        for (index, running) in self.shared.rings.running() {
            let worker = self.shared.place(index)?;
            // A ring that stops at this moment is placed when it starts again.
            match self.shared.engine().attach_to(running.id, worker) {
                Ok(()) | Err(EngineError::NoSuchRing) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut state = self.shared.lock();
        state.own.free_unused(self.shared.engine());
        Ok(())
    }

    /// What the running rings have done, for who decides which worker has them. `worker_of` knows where they are.
    pub fn loads(&self, export: u64, worker_of: impl Fn(RingId) -> Option<u32>) -> Vec<(u16, RingLoad)> {
        let is_own = self.shared.lock().placement != Placement::Shared;
        let rings = self.shared.rings.lock();
        let load = |(index, running): (u16, crate::rings::Running)| {
            let load = RingLoad {
                ring: running.id.0,
                export,
                worker: worker_of(running.id)?,
                pinned: is_own || rings.is_attached(index),
                node: None,
                requests: running.page.requests(),
                // Not measured: the clock would have to be read once more a batch.
                busy_ns: None,
            };
            Some((index, load))
        };
        rings.all_running().into_iter().filter_map(load).collect()
    }

    /// Moves a ring to another of the daemon's workers, unless somebody has said by now where it is to be. It starts its next life where
    /// the placement says. Whether it was moved: it may have ended.
    ///
    /// # Errors
    /// No such or a dead worker, or one that hangs, here or there: the ring stays where it is.
    pub fn shift(&self, ring: RingId, worker: u32) -> Result<bool, ExportError> {
        let _placing = self.placing();
        let is_own = self.shared.lock().placement != Placement::Shared;
        if is_own || !self.shared.rings.lock().is_free(ring) {
            return Ok(false);
        }
        match self.shared.engine().attach_to(ring, worker) {
            Ok(()) => Ok(true),
            Err(EngineError::NoSuchRing) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn placing(&self) -> MutexGuard<'_, ()> {
        self.placing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
