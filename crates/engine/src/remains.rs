//! Rings that have fallen: kept until every worker that has begun something for them has seen that end. Until then the kernel or a
//! storage may write to memory that they keep.

use crate::sync::{Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};

/// Of one ring. Its slot has a share, and so has each slot that it has left with something under way; with the last share it is let go.
pub(crate) struct Remains<R>(Mutex<State<R>>);

struct State<R> {
    fallen: Option<Box<R>>,
    /// A worker has died that had begun something for it: nobody will see that end.
    are_for_ever: bool,
}

impl<R> Default for Remains<R> {
    fn default() -> Self {
        Remains(Mutex::new(State { fallen: None, are_for_ever: false }))
    }
}

impl<R> Remains<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring has fallen. It is told whether it is dropped some time.
    pub(crate) fn keep(&self, mut ring: Box<R>, tell: impl FnOnce(&mut R, bool)) {
        let mut state = self.lock();
        tell(&mut ring, !state.are_for_ever);
        state.fallen = Some(ring);
    }

    /// The worker dies that has this share, which it must not let go of. A ring that has fallen is told that it is never dropped.
    pub(crate) fn stay(&self, tell: impl FnOnce(&mut R, bool)) {
        let mut state = self.lock();
        state.are_for_ever = true;
        if let Some(ring) = &mut state.fallen {
            tell(ring, false);
        }
    }

    /// Gives a share back. The ring, if it has fallen and this was the last one.
    pub(crate) fn let_go(self: Arc<Self>) -> Option<Box<R>> {
        Arc::into_inner(self)?.lock().fallen.take()
    }
}
