//! How many rings serve one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many rings serve one client; a ring holds one of these for itself.
#[derive(Debug)]
pub(crate) struct Siblings(Arc<AtomicUsize>);

impl Siblings {
    pub(crate) fn one_more(rings: &Arc<AtomicUsize>) -> Siblings {
        rings.fetch_add(1, Ordering::Relaxed);
        Siblings(rings.clone())
    }

    /// Whether the client has another ring, by which it may flush requests of this one.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 1
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
