//! Another program goes on with what this one serves: the same process, its sessions, its descriptors, and a pause.
//!
//! | file | concern |
//! |---|---|
//! | `state`, `envelope` | what passes from one program to the next, and its bytes |
//! | `descriptors` | the open files among it |
//! | `collect`, `restore` | from what runs to a state, and back |
//! | `check` | whether the other program could go on, asked before anything is paused |
//! | `threads`, `closes` | what would keep it from beginning |
//! | `low` | descriptors that are kept from files |
//! | `perform` | the last acts of the program that goes |
//! | `adopt` | the first acts of the one that comes |
//!
//! Until execve has succeeded everything can be undone, by nothing more than letting the sessions go on.

pub(crate) mod adopt;
mod check;
mod closes;
mod collect;
mod descriptors;
mod envelope;
mod low;
mod perform;
mod restore;
#[cfg(test)]
mod samples;
mod state;
mod threads;

pub(crate) use low::Low;
pub(crate) use perform::perform;

use control::model::{NewExport, Takeover};
use control::{ApiError, ControlSocketState};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// How long changes under way are waited for before an upgrade.
const CHANGES_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// What a daemon keeps for the day that another program goes on with it.
#[derive(Debug, Default)]
pub(crate) struct Upgrade {
    /// Read while something is changed; written by an upgrade, so that it sees no half of a change and loses none that was
    /// acknowledged.
    gate: RwLock<()>,
    ending: AtomicBool,
    /// How the exports were described, by name.
    descriptions: Mutex<BTreeMap<String, NewExport>>,
    along: OnceLock<Along>,
    past: OnceLock<Past>,
}

/// What goes along, besides exports and workers.
#[derive(Debug)]
pub(crate) struct Along {
    /// The control socket.
    pub(crate) control: Option<ControlSocketState>,
    /// After how long a request is said to be stuck; zero for never.
    pub(crate) stuck_after: Duration,
    /// The process ends when its only export has failed.
    pub(crate) one: bool,
}

/// How this program came to serve, if another one did before.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// Programs before this one.
    pub(crate) upgrades: u64,
    /// How it went the last time.
    pub(crate) takeover: Takeover,
}

impl Upgrade {
    /// Held by whoever changes something.
    pub(crate) fn gate(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// An export is as described.
    pub(crate) fn describe(&self, new: NewExport) {
        self.descriptions().insert(new.name.clone(), new);
    }

    /// The description of an export has changed.
    pub(crate) fn redescribe(&self, name: &str, change: impl FnOnce(&mut NewExport)) {
        self.descriptions().get_mut(name).map(change);
    }

    /// How an export is described by now.
    pub(crate) fn description(&self, name: &str) -> Option<NewExport> {
        self.descriptions().get(name).cloned()
    }

    /// An export is gone.
    pub(crate) fn forget(&self, name: &str) {
        self.descriptions().remove(name);
    }

    fn descriptions(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, NewExport>> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the daemon can be upgraded, and this goes along.
    pub(crate) fn set_along(&self, along: Along) {
        let _ = self.along.set(along);
    }

    /// Says how this program took over.
    pub(crate) fn set_past(&self, past: Past) {
        let _ = self.past.set(past);
    }

    /// How this program took over.
    pub(crate) fn past(&self) -> Option<&Past> {
        self.past.get()
    }

    /// The daemon is to end: no upgrade begins any more, and one that is under way does not get further than it can be
    /// undone. Returns when that is so.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        drop(self.gate.write());
    }

    /// Whether the daemon is to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Waits until nobody changes anything, and keeps it so.
    fn close_gate(&self) -> Result<RwLockWriteGuard<'_, ()>, ApiError> {
        let end = Instant::now() + CHANGES_PATIENCE;
        loop {
            match self.gate.try_write() {
                Ok(closed) => return Ok(closed),
                Err(TryLockError::Poisoned(closed)) => return Ok(closed.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(LOOK_AGAIN_AFTER),
                Err(TryLockError::WouldBlock) => {
                    let message = "another change or upgrade of this daemon is under way: try again".to_owned();
                    return Err(ApiError::Failed { message });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_keep_an_upgrade_away_and_the_end_keeps_all_away() {
        let upgrade = Upgrade::default();
        let change = upgrade.gate();
        assert!(upgrade.gate.try_write().is_err());
        drop(change);
        drop(upgrade.close_gate().unwrap());
        assert!(!upgrade.is_ending());
        upgrade.end();
        assert!(upgrade.is_ending());
    }
}
