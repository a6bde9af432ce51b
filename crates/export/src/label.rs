//! Which ring of which export: for the log, and for the news that it is lost.

use crate::ring_set::RingSet;
use crate::trace::Recorder;
use engine::Panic;
use std::sync::{Arc, Weak};

/// Who has rings, and hears when one is lost.
pub(crate) trait Keeper: Send + Sync {
    /// The ring is gone with all that is in flight on it. Called on a worker's thread; must not wait.
    fn lost(&self, ring: u16, why: &Panic);

    /// All of its rings.
    fn rings(&self) -> &RingSet;
}

/// A ring's name, and the way from the ring to its export.
#[derive(Clone)]
pub(crate) struct Label {
    /// The export's name.
    pub(crate) export: Arc<str>,
    /// The ring's index in the device.
    pub(crate) ring: u16,
    /// Weak: an export that has ended needs no news of its rings.
    keeper: Option<Weak<dyn Keeper>>,
    /// The export's, for its slow requests.
    pub(crate) recorder: Arc<Recorder>,
}

impl Label {
    pub(crate) fn new(export: &str, ring: u16, keeper: Weak<dyn Keeper>, recorder: Arc<Recorder>) -> Label {
        Label { export: export.into(), ring, keeper: Some(keeper), recorder }
    }

    /// Of a ring without an export.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_nobody() -> Label {
        Label { export: "nobody".into(), ring: 0, keeper: None, recorder: Arc::default() }
    }

    /// Who has the ring, for as long as that is there. Not to be kept.
    pub(crate) fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.keeper.as_ref().and_then(Weak::upgrade)
    }

    /// As [`Keeper::lost`].
    pub(crate) fn lost(&self, why: &Panic) {
        if let Some(keeper) = self.keeper() {
            keeper.lost(self.ring, why);
        }
    }
}
