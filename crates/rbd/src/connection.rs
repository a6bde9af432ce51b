//! An image that is open, or that requests wait for.

use crate::error::RbdError;
use crate::ffi::Parked;
use crate::guard;
use crate::live::{Live, Look};
use crate::open::OpenImage;
use crate::spec::Spec;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An open image. Dropped, its lock is given up, and whoever has it last closes it: both wait for the cluster.
pub(crate) struct Opened {
    pub(crate) live: Arc<Live>,
    /// Looks again from time to time.
    look: Option<Look>,
    /// librbd has a cache of its own in front of it.
    pub(crate) cached: bool,
    spec: Spec,
}

impl Opened {
    /// What has been opened just now.
    pub(crate) fn of(image: OpenImage, spec: &Spec, read_only: bool) -> Result<Opened, RbdError> {
        let cached = image.cached;
        let live = Live::of(image, spec);
        let mut opened = Opened { live, look: None, cached, spec: spec.clone() };
        // Of one that is written the lock keeps everybody off who would remove it.
        let look = if read_only { opened.live.look_often() } else { Ok(None) };
        opened.look = look.map_err(|source| RbdError::Thread { spec: spec.to_string(), source })?;
        Ok(opened)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.look = None;
        if self.live.is_locked() {
            guard::give_up(&self.live.image, &self.spec);
        }
    }
}

/// A request, and what it costs of what librbd may keep, in bytes.
pub(crate) type Waiting = (u64, Parked);

/// What becomes of requests while the image is not open.
enum Line {
    /// They wait.
    Open(Vec<Waiting>),
    /// Nobody waits any more: the image is open.
    Over,
    /// Nor here: it will not be opened.
    Lost,
}

/// The image behind a storage.
pub(crate) struct Connection {
    opened: OnceLock<Opened>,
    /// Bytes that guests have until it is open.
    was_bytes: u64,
    line: Mutex<Line>,
}

impl Connection {
    /// To an image that is open.
    pub(crate) fn to(opened: Opened) -> Connection {
        Connection { was_bytes: 0, line: Mutex::new(Line::Over), opened: OnceLock::from(opened) }
    }

    /// To one of so many bytes that is about to be opened.
    pub(crate) fn awaited(was_bytes: u64) -> Connection {
        Connection { was_bytes, line: Mutex::new(Line::Open(Vec::new())), opened: OnceLock::new() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image, if it is open.
    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.opened.get()
    }

    /// Whether it will not be opened, for good.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(*self.line(), Line::Lost)
    }

    /// Bytes that a guest can have.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.opened().map_or(self.was_bytes, |opened| opened.live.capacity_bytes())
    }

    /// Has a request wait. It comes back where nobody waits any more.
    pub(crate) fn wait(&self, request: Waiting) -> Option<Waiting> {
        match &mut *self.line() {
            Line::Open(line) => {
                line.push(request);
                None
            }
            Line::Over | Line::Lost => Some(request),
        }
    }

    /// It is open. Who has waited, in order.
    pub(crate) fn come(&self, opened: Opened) -> Vec<Waiting> {
        let mut line = self.line();
        // One that comes twice is closed.
        let _ = self.opened.set(opened);
        match std::mem::replace(&mut *line, Line::Over) {
            Line::Open(waiting) => waiting,
            Line::Over | Line::Lost => Vec::new(),
        }
    }

    /// It will not be opened: requests that wait fail, and so do all that come.
    pub(crate) fn lose(&self) {
        let line = std::mem::replace(&mut *self.line(), Line::Lost);
        // Their replies say so as they go.
        drop(line);
    }
}
