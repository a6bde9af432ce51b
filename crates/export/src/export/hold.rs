//! Disks whose rings take nothing for a moment, so that another storage can come behind one.
//!
//! A ring that is held goes on with what it has taken, moves between workers, and is told of changes; it only takes no more. While
//! rings are held none starts and none stops: what an earlier life has left to be done is started by a ring that begins or ends.
//! Requests are not counted for this: a ring asks its virtqueue what is in flight, as it does when it stops.

use super::{Export, Served};
use crate::rings::Running;
use crate::{ExportError, Ring};
use engine::EngineError;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use storage::Storage;

/// How often it is looked whether all that was taken is answered.
const LOOK_AGAIN_AFTER: Duration = Duration::from_micros(200);

/// The rings of a disk, of which none takes a request and none has one in flight. Dropped, they go on.
pub struct Held<'a> {
    export: &'a Export,
    /// The number of the order, from 1 on: what rings hear late is told from what they are to hear now.
    order: u64,
    rings: Vec<(u16, Running)>,
    _steady: MutexGuard<'a, u64>,
}

impl Export {
    /// Holds the rings of a disk, and waits until everything that they have taken is answered.
    ///
    /// # Errors
    /// That is not so by this time, a worker hangs, or it is a directory: the rings go on as if nothing had been.
    pub fn hold(&self, by: Instant) -> Result<Held<'_>, ExportError> {
        if matches!(self.served, Served::Directory(_) | Served::P9(_)) {
            return Err(ExportError::NoCapacity);
        }
        self.shared.rings.take_changes()?;
        let mut steady = self.steady(by)?;
        *steady += 1;
        let (order, rings) = (*steady, self.shared.rings.running());
        let held = Held { export: self, order, rings, _steady: steady };
        // What a ring had in flight that was lost with its worker nobody knows.
        if let Some(why) = self.failure() {
            return Err(ExportError::Failed(why));
        }
        for ring in &held.rings {
            self.ask(ring, move |ring, now_ns| ring.attachment_mut().turns_mut().gate.shut(order, now_ns))?;
        }
        loop {
            let mut busy = None;
            for ring in &held.rings {
                // What waits for others touches no storage.
                let requests = self.ask(ring, |ring, _| ring.requests_to_drain())?;
                if requests > 0 {
                    busy = Some((ring.0, requests));
                }
            }
            match busy {
                None => break,
                Some((ring, requests)) if Instant::now() >= by => {
                    return Err(ExportError::InFlight { ring, requests });
                }
                Some(_) => std::thread::sleep(LOOK_AGAIN_AFTER),
            }
        }
        match self.failure() {
            Some(why) => Err(ExportError::Failed(why)),
            None => Ok(held),
        }
    }

    /// None ends while rings are held: one that is not there has fallen, and nobody knows what it has in flight.
    fn ask<T: Send + 'static>(
        &self,
        (_, running): &(u16, Running),
        f: impl FnOnce(&mut Ring, u64) -> T + Send + 'static,
    ) -> Result<T, ExportError> {
        let answer = self.shared.engine().ask_ring(running.id, move |ring: &mut Ring, io| f(ring, io.now_ns()));
        answer.map_err(|error| match error {
            EngineError::NoSuchRing => ExportError::Unsteady,
            error => error.into(),
        })
    }

    fn steady(&self, by: Instant) -> Result<MutexGuard<'_, u64>, ExportError> {
        loop {
            match self.shared.steady.try_lock() {
                Ok(steady) => return Ok(steady),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= by => return Err(ExportError::Unsteady),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_AGAIN_AFTER),
            }
        }
    }
}

impl Held<'_> {
    /// Lets another storage stand behind the disk, or the unit, that has `before`: its rings go on with that, and so do all that start
    /// from now on. Whoever calls keeps the one before until nobody else has it: a worker must not be the one who closes it.
    pub fn put(&self, before: &Arc<dyn Storage>, storage: &Arc<dyn Storage>) {
        match &self.export.served {
            Served::Disk(disk) => disk.set_storage(before, storage),
            Served::Scsi(scsi) => scsi.set_storage(before, storage),
            Served::Directory(_) | Served::P9(_) => {}
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (rings, order) = (&self.export.shared.rings, self.order);
        match &self.export.served {
            Served::Disk(disk) => rings.order(&self.rings, disk.releaser(order)),
            Served::Scsi(scsi) => rings.order(&self.rings, scsi.releaser(order)),
            Served::Directory(_) | Served::P9(_) => {}
        }
    }
}

impl crate::shared::Shared {
    /// Held while a ring starts or stops.
    pub(crate) fn steady(&self) -> MutexGuard<'_, u64> {
        self.steady.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
