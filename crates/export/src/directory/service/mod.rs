//! One request on the tree, in the terms of the protocol.
//!
//! | file | concern |
//! |---|---|
//! | `session` | INIT, and what holds until the next one |
//! | `perform` | which operation answers which request |
//! | `names` | look-ups, and what makes, moves and removes names |
//! | `attributes` | attributes, extended attributes, ioctl |
//! | `files` | open files and their data |
//! | `listing` | directories |
//! | `locks` | locks, those that are waited for too |

mod attributes;
mod files;
mod listing;
mod locks;
mod names;
mod perform;
mod session;
#[cfg(test)]
mod tests;
mod weight;

use super::Policy;
use super::dax::Window;
use crate::calls::{Answer, Outcome, Scene};
use device::fs::Dialect;
use locks::Waits;
use passthrough::Tree;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

pub(crate) use perform::counts_as_error;
pub use session::FuseSession;

/// What all rings of a directory share.
pub(crate) struct Service {
    tree: Arc<Tree>,
    policy: Policy,
    /// What INIT agreed on; `None` before it and after DESTROY.
    session: Mutex<Option<Dialect>>,
    /// Grows when `session` changes, so that rings need no lock to know that what they remember still holds.
    generation: AtomicU64,
    waits: Mutex<Waits>,
    window: Option<Arc<Window>>,
}
