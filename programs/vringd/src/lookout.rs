//! Threads that look at the daemon now and then while its workers have something to do, and sleep while they have not.

use crate::daemon::Daemon;
use crate::failure::Failure;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is looked for.
pub(crate) trait Look: Send + 'static {
    /// Whether there is nothing to look for until a worker has something to do.
    fn may_rest(&self) -> bool;

    /// From a worker's first work to the first look.
    fn pause(&mut self) -> Duration;

    /// Looks. The time until the next one.
    fn look(&mut self, daemon: &Arc<Daemon>) -> Duration;

    /// No worker has anything to do, and whatever one does from now on is heard of.
    fn rest(&mut self, _daemon: &Arc<Daemon>) {}
}

enum Event {
    /// A worker has something to do.
    Work,
    Stop,
}

/// The thread. It ends when this is dropped.
pub(crate) struct Lookout {
    events: Sender<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Lookout {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn start(name: &str, daemon: &Arc<Daemon>, mut look: impl Look) -> Result<Lookout, Failure> {
        let (events, heard) = channel();
        let stir = events.clone();
        let watcher = daemon.engine().on_work(move || {
            let _ = stir.send(Event::Work);
        });
        let daemon = daemon.clone();
        let run = move || {
            loop {
                let wait = if look.may_rest() && daemon.engine().watch_for_work(watcher) {
                    look.rest(&daemon);
                    match heard.recv() {
                        Ok(Event::Work) => look.pause(),
                        Ok(Event::Stop) | Err(_) => return,
                    }
                } else {
                    look.look(&daemon)
                };
                if !passes(wait, &heard) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        let thread = thread.map_err(|error| Failure::Runtime(format!("cannot start a thread: {error}")))?;
        Ok(Lookout { events, thread: Some(thread) })
    }
}

/// Lets time pass, whatever work there is meanwhile. False when the thread is to end.
fn passes(wait: Duration, heard: &Receiver<Event>) -> bool {
    let Some(end) = Instant::now().checked_add(wait) else { return !matches!(heard.recv(), Ok(Event::Stop) | Err(_)) };
    loop {
        match heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Work) => {}
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
