//! What limits an export now, and changes while it serves.

use super::{Group, Limits, Throttle};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All of it.
#[derive(Default)]
pub(crate) struct Set {
    pub(crate) limits: Limits,
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) throttle: Option<Arc<Throttle>>,
}

/// What limits an export now.
#[derive(Default)]
pub(crate) struct Limiting {
    set: Mutex<Set>,
    /// Held while rings are told, so that they hear of changes in their order.
    telling: Mutex<()>,
}

impl Limiting {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while rings are told.
    pub(crate) fn tell(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits and the name of the group.
    pub(crate) fn shown(&self) -> (Limits, Option<String>) {
        let set = self.lock();
        (set.limits, set.group.as_ref().map(|group| group.name().to_owned()))
    }
}
