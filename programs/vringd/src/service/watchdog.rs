//! The service manager's watchdog: it hears of us only while all that has to live has shown that it does.

use super::notify::Manager;
use sd_notify::NotifyState;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that looks after the others. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Looks twice in each `period`, the first time now.
    pub(super) fn start(
        period: Duration,
        manager: Arc<Manager>,
        alive: impl Fn() -> Result<(), String> + Send + 'static,
        status: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Watchdog> {
        let (stop, stopped) = channel::<()>();
        let look = move || {
            let (mut said, mut well) = (String::new(), true);
            loop {
                match alive() {
                    Ok(()) => {
                        manager.say(&[NotifyState::Watchdog]);
                        if !std::mem::replace(&mut well, true) {
                            tracing::info!("the service manager's watchdog hears of us again");
                        }
                    }
                    Err(why) => {
                        if std::mem::replace(&mut well, false) {
                            tracing::error!(why, "the service manager's watchdog is left alone");
                        }
                    }
                }
                let status = status();
                if status != said {
                    manager.say(&[NotifyState::Status(&status)]);
                    said = status;
                }
                if stopped.recv_timeout(period / 2) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(look)?;
        Ok(Watchdog { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a thread of ours waits in the kernel and cannot be interrupted, as it does for a device or a network file system
/// that is gone (state D in proc_pid_stat(5)). Another program in our place would wait there as well. False where that cannot
/// be seen.
pub(crate) fn blocked_in_kernel(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    state(&stat) == Some('D')
}

/// The state in a line of `/proc/PID/stat`. The name before it is in parentheses, and may hold others.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_behind_any_name() {
        assert_eq!(state("12 (worker-0) D 1 2 3"), Some('D'));
        assert_eq!(state("12 (a) S (b) R 1 2 3"), Some('R'));
        assert_eq!(state(""), None);
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(!blocked_in_kernel(own), "it is running");
    }
}
