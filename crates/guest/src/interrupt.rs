//! A person's wish to stop, seen by everything here that waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// How long a wait may overlook a request.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Makes every wait of this crate fail within a tenth of a second, now and from now on. May be called
/// from a signal handler.
pub fn request() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Whether [`request`] was called.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails once [`request`] was called.
pub fn check() -> Result<()> {
    ensure!(!requested(), "interrupted");
    Ok(())
}
