//! Limits of an export, changed while it serves.

use super::Export;
use crate::limit::{Group, Limits, Set, Throttle};
use std::sync::Arc;

impl Export {
    /// Limits it to `limits`, and to its share of what `group` allows. Holds for all rings when this returns, and for those
    /// at once that wait for the old limits; for those of a worker that hangs, it does when that goes on.
    pub fn set_limits(&self, limits: Limits, group: Option<Arc<Group>>) {
        let shared = &self.shared;
        let _in_order = shared.limiting.tell();
        let throttle = Throttle::new(limits, group.clone()).map(Arc::new);
        *shared.limiting.lock() = Set { limits, group, throttle: throttle.clone() };
        shared.tell_limits(&shared.rings.running(), throttle);
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
