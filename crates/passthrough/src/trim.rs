//! Memory of forgotten nodes goes back to the system.
//!
//! The C library keeps freed memory for later. A guest that looked at a million files and forgot them would leave a daemon
//! with hundreds of megabytes that nobody uses.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Nodes forgotten, at some 270 bytes each, before it is worth the while: 35 MiB.
const WORTH: usize = 128 << 10;
/// The same, when the client is gone and nobody waits.
const WORTH_AT_END: usize = 4 << 10;

/// Counts what was freed since memory was last given back.
#[derive(Debug, Default)]
pub(crate) struct Trim(AtomicUsize);

impl Trim {
    /// A node was freed, by a thread that has requests to serve.
    pub(crate) fn freed(&self) {
        if self.0.fetch_add(1, Ordering::Relaxed) + 1 == WORTH {
            self.0.store(0, Ordering::Relaxed);
            // It takes milliseconds. Without a thread the memory stays until the end of the session.
            let _ = std::thread::Builder::new().name("trim".into()).spawn(trim);
        }
    }

    /// The client is gone.
    pub(crate) fn end(&self) {
        if self.0.swap(0, Ordering::Relaxed) >= WORTH_AT_END {
            trim();
        }
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: it gives back pages that hold no allocation, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries give memory back by themselves.
#[cfg(not(target_env = "gnu"))]
fn trim() {}
