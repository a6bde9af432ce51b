//! A service among services: what the daemon tells its service manager, and what that has made for it.
//!
//! The protocol is systemd's (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)); without a manager nothing here does
//! anything.

mod notify;
mod sockets;
mod watchdog;

pub(crate) use sockets::{Sockets, is_open, look_at, take_descriptor};
pub(crate) use watchdog::{Watchdog, blocked_in_kernel};

use notify::Manager;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::Duration;

/// The service manager, as long as the daemon runs.
#[derive(Debug)]
pub(crate) struct Service {
    manager: Arc<Manager>,
    /// How often it wants to hear that the daemon is alive.
    watchdog: Option<Duration>,
}

impl Service {
    /// Finds the service manager. To be called before a sandbox hides its socket, and before a fork changes our process id.
    pub(crate) fn connect() -> Service {
        Service {
            manager: Arc::new(Manager::connect()),
            watchdog: sd_notify::watchdog_enabled().filter(|period| !period.is_zero()),
        }
    }

    /// Everything listens.
    pub(crate) fn ready(&self, status: &str) {
        self.manager.say(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The end has begun.
    pub(crate) fn stopping(&self, status: &str) {
        self.manager.say(&[NotifyState::Stopping, NotifyState::Status(status)]);
    }

    /// Begins to say that the daemon is alive for as long as `alive` finds it so, if the manager wants to hear it. `status`
    /// is one line about what it does.
    pub(crate) fn watch(
        &self,
        alive: impl Fn() -> Result<(), String> + Send + 'static,
        status: impl Fn() -> String + Send + 'static,
    ) -> std::io::Result<Option<Watchdog>> {
        let start = |period| Watchdog::start(period, self.manager.clone(), alive, status);
        self.watchdog.map(start).transpose()
    }
}
