//! A person's wish to stop: what is under way is given up, everything is put away, and the journal keeps what was measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The wish to stop.
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Is wished from the first SIGINT, SIGTERM or SIGHUP on. Another one changes nothing: guests and mounts are put away in
    /// bounded time, and would be left behind otherwise.
    pub(crate) fn on_signals() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
        let seen = Arc::clone(&flag);
        let watch = move || {
            for _signal in signals.forever() {
                if !seen.swap(true, Ordering::Relaxed) {
                    eprintln!("stopping: guests and servers are put away");
                }
                guest::interrupt::request();
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watch).context("cannot start a thread")?;
        Ok(Self(flag))
    }

    /// Set once it is wished.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
