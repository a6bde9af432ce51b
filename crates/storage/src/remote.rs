//! What only a storage has that is on other machines, and can be lost and found.

use std::io;
use std::time::Duration;

/// How things stand with what is behind a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What becomes of requests.
    pub state: LinkState,
    /// For how long it has been so; nothing of one that is [open](LinkState::Open).
    pub since: Option<Duration>,
    /// Why, as far as it is known.
    pub why: Option<String>,
}

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// They are handed over.
    Open,
    /// It is being opened again, and they wait.
    Opening,
    /// It is not opened again by itself, and they fail.
    Lost,
    /// It is not opened again by itself, and they wait until an operator reopens it.
    LostWaiting,
}

/// See the module.
pub trait Remote: Send + Sync {
    /// How things stand. `None` where nothing is to be open.
    fn link(&self) -> Option<Link>;

    /// Opens again what is lost, as it is now. Whoever asks for it answers for what the guests' memory has of it: somebody else may have written meanwhile.
    /// Returns when that has begun; does nothing for what is being opened already.
    ///
    /// # Errors
    /// It is open, or there can be no thread.
    fn open_again(&self) -> io::Result<()>;

    /// Its last user ends: requests that wait for it to be opened fail; `for_good`, so do all that come while it is not open.
    fn end_waiting(&self, for_good: bool);
}
