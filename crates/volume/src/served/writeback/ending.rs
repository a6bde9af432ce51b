//! How the write-back ends.

use std::sync::atomic::{AtomicU8, Ordering};

/// How the thread is to end.
#[derive(Default)]
pub(super) struct Ending(AtomicU8);

impl Ending {
    /// Not yet.
    pub(super) const NO: u8 = 0;
    /// With everything written back.
    pub(super) const ORDERLY: u8 = 1;
    /// As if the process had been killed.
    pub(super) const ABANDONED: u8 = 2;

    pub(super) fn set(&self, how: u8) {
        self.0.store(how, Ordering::Release);
    }

    pub(super) fn begun(&self) -> bool {
        self.0.load(Ordering::Acquire) != Ending::NO
    }

    pub(super) fn abandoned(&self) -> bool {
        self.0.load(Ordering::Acquire) == Ending::ABANDONED
    }
}
