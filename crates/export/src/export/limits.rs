//! Limits of an export, changed while it serves.

use super::{Export, Shared};
use crate::limit::{Group, Limits, Throttle};
use crate::rings::Running;
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
            self.tell_limits(&[(index, running)], throttle);
        }
    }

    fn tell_limits(&self, rings: &[(u16, Running)], throttle: Option<Arc<Throttle>>) {
        let limited: Vec<_> = rings.iter().filter(|(index, _)| self.device.limited(*index)).cloned().collect();
        self.tell_rings(&limited, move |ring, io| {
            ring.attachment_mut().turns_mut().gate.set(throttle.clone(), io.now_ns());
        });
    }
}

impl Export {
    /// Limits it to `limits`, and to its share of what `group` allows. Holds for all rings when this returns, and for those
    /// at once that wait for the old limits; for those of a worker that hangs, it does when that goes on.
    pub fn set_limits(&self, limits: Limits, group: Option<Arc<Group>>) {
        let shared = &self.shared;
        let _in_order = shared.limiting.tell();
        let throttle = Throttle::new(limits, group.clone()).map(Arc::new);
        *shared.limiting.lock() = Set { limits, group, throttle: throttle.clone() };
        shared.tell_limits(&shared.all_running(), throttle);
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
