//! What workers are told about choosing by themselves, all of them and without a message to any.

use policy::Favour;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use values::PolicyMode;

/// What is favoured, as a place in [`Favour::ALL`], and whether all stays as it is.
#[derive(Debug)]
pub(crate) struct Favoured {
    place: AtomicUsize,
    is_fixed: AtomicBool,
}

impl Default for Favoured {
    fn default() -> Favoured {
        let favoured = Favoured { place: AtomicUsize::new(0), is_fixed: AtomicBool::new(false) };
        favoured.set(Favour::default());
        favoured
    }
}

impl Favoured {
    pub(crate) fn get(&self) -> Favour {
        Favour::ALL.get(self.place.load(Ordering::Relaxed)).copied().unwrap_or_default()
    }

    pub(crate) fn set(&self, favour: Favour) {
        self.place.store(favour as usize, Ordering::Relaxed);
    }

    pub(crate) fn mode(&self) -> PolicyMode {
        if self.is_fixed.load(Ordering::Relaxed) { PolicyMode::Fixed } else { PolicyMode::Auto }
    }

    pub(crate) fn set_mode(&self, mode: PolicyMode) {
        self.is_fixed.store(mode == PolicyMode::Fixed, Ordering::Relaxed);
    }
}
