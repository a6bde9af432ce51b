//! The map from rings to workers. Read and written when rings move and workers come and go, never on the path of a request.

use crate::mailbox::{Mail, Mailbox, RingMail};
use crate::spec::WorkerSpec;
use crate::{PollMode, RingId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One worker as the directory knows it.
pub(crate) struct WorkerEntry<R> {
    pub(crate) mailbox: Arc<Mailbox<R>>,
    pub(crate) owner: String,
    pub(crate) spec: WorkerSpec,
    pub(crate) poll: PollMode,
    pub(crate) tid: i32,
    pub(crate) alive: bool,
    /// Rings on their way here.
    pub(crate) incoming: u32,
}

pub(crate) struct State<R> {
    pub(crate) workers: BTreeMap<u32, WorkerEntry<R>>,
    pub(crate) rings: HashMap<RingId, u32>,
    pub(crate) next_worker: u32,
    pub(crate) next_ring: u64,
}

pub(crate) struct Directory<R> {
    state: Mutex<State<R>>,
}

impl<R> Directory<R> {
    pub(crate) fn new() -> Self {
        Directory {
            state: Mutex::new(State {
                workers: BTreeMap::new(),
                rings: HashMap::new(),
                next_worker: 0,
                next_ring: 0,
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring is in the mailbox of `worker` now.
    pub(crate) fn moved(&self, id: RingId, worker: u32) {
        self.lock().rings.insert(id, worker);
    }

    pub(crate) fn left(&self, id: RingId) {
        self.lock().rings.remove(&id);
    }

    /// Sends mail after a ring that is not on the sending worker. When the directory names the sender itself, the ring is on its
    /// way there, ahead of this mail. Mail for a ring that is gone is dropped, which its sender notices.
    pub(crate) fn forward(&self, id: RingId, mail: RingMail<R>) {
        let mailbox = {
            let state = self.lock();
            state.rings.get(&id).and_then(|home| state.workers.get(home)).map(|worker| worker.mailbox.clone())
        };
        if let Some(mailbox) = mailbox {
            let _ = mailbox.send(Mail::Ring(id, mail));
        }
    }

    /// Records that a worker's thread has ended. One that panicked stays listed as dead until it is freed.
    pub(crate) fn ended(&self, number: u32, panicked: bool) {
        let mut state = self.lock();
        if panicked {
            if let Some(worker) = state.workers.get_mut(&number) {
                worker.alive = false;
            }
            state.rings.retain(|_, home| *home != number);
        } else {
            state.workers.remove(&number);
        }
    }
}
