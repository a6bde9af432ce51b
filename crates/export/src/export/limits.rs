//! Limits of an export, changed while it serves.

use super::{Export, Shared};
use crate::Ring;
use crate::limit::{Group, Limits, Throttle};
use crate::rings::Running;
use engine::Io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Set {
    limits: Limits,
    group: Option<Arc<Group>>,
    throttle: Option<Arc<Throttle>>,
}

/// What limits an export now.
#[derive(Default)]
pub(super) struct Limiting {
    set: Mutex<Set>,
    /// Held while rings are told, so that they hear of changes in their order.
    telling: Mutex<()>,
}

impl Limiting {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits and the name of the group.
    pub(super) fn shown(&self) -> (Limits, Option<String>) {
        let set = self.lock();
        (set.limits, set.group.as_ref().map(|group| group.name().to_owned()))
    }
}

impl Shared {
    /// A ring has started: the limits hold for it too.
    pub(crate) fn limit(&self, index: u16) {
        let _in_order = self.limiting.tell();
        let throttle = self.limiting.lock().throttle.clone();
        if let Some(running) = self.running(index).filter(|_| throttle.is_some()) {
            self.tell_limits(index, running, throttle);
        }
    }

    fn tell_limits(&self, index: u16, running: Running, throttle: Option<Arc<Throttle>>) {
        if self.device.limited(index) {
            // A ring that stops at this moment needs no limits.
            let _ = self.engine.with_ring(running.id, move |ring: &mut Ring, _, io: &mut Io<'_>| {
                ring.gate_mut().set(throttle, io.now_ns());
            });
        }
    }
}

impl Export {
    /// Limits it to `limits`, and to its share of what `group` allows. Holds for all rings when this returns, and for those
    /// at once that wait for the old limits.
    pub fn set_limits(&self, limits: Limits, group: Option<Arc<Group>>) {
        let shared = &self.shared;
        let _in_order = shared.limiting.tell();
        let throttle = Throttle::new(limits, group.clone()).map(Arc::new);
        *shared.limiting.lock() = Set { limits, group, throttle: throttle.clone() };
        for (index, running) in shared.all_running() {
            shared.tell_limits(index, running, throttle.clone());
        }
    }

    /// Its own limits, without those of its group.
    pub fn limits(&self) -> Limits {
        self.shared.limiting.lock().limits
    }

    /// The group whose limits it shares.
    pub fn group(&self) -> Option<Arc<Group>> {
        self.shared.limiting.lock().group.clone()
    }
}
