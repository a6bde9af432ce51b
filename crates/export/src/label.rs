//! Which ring of which export: for the log, and for the news that it is lost.

use crate::export::Shared;
use engine::Panic;
use std::sync::{Arc, Weak};

/// A ring's name, and the way from the ring to its export.
#[derive(Clone)]
pub(crate) struct Label {
    /// The export's name.
    pub(crate) export: Arc<str>,
    /// The ring's index in the device.
    pub(crate) ring: u16,
    /// Weak: an export that has ended needs no news of its rings.
    shared: Weak<Shared>,
}

impl Label {
    pub(crate) fn new(shared: &Arc<Shared>, ring: u16) -> Label {
        Label { export: shared.name.as_str().into(), ring, shared: Arc::downgrade(shared) }
    }

    /// Of a ring without an export.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_nobody() -> Label {
        Label { export: "nobody".into(), ring: 0, shared: Weak::new() }
    }

    /// The ring is gone with all that is in flight on it, so that its export cannot go on.
    pub(crate) fn lost(&self, why: &Panic) {
        if let Some(shared) = self.shared.upgrade() {
            shared.fail(&format!("ring {} was lost by a {why}", self.ring));
        }
    }
}
