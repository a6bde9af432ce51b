//! What is favoured, for all workers and without a message to any.

use policy::Favour;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A place in [`Favour::ALL`].
#[derive(Debug)]
pub(crate) struct Favoured(AtomicUsize);

impl Default for Favoured {
    fn default() -> Favoured {
        let favoured = Favoured(AtomicUsize::new(0));
        favoured.set(Favour::default());
        favoured
    }
}

impl Favoured {
    pub(crate) fn get(&self) -> Favour {
        Favour::ALL.get(self.0.load(Ordering::Relaxed)).copied().unwrap_or_default()
    }

    pub(crate) fn set(&self, favour: Favour) {
        self.0.store(favour as usize, Ordering::Relaxed);
    }
}
