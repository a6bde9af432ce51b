//! The map from rings to workers. Read and written when rings move and workers come and go, never on the path of a request.

use crate::burial::Burials;
use crate::figures::StayPage;
use crate::mailbox::{Mail, Mailbox, RingMail};
use crate::spec::WorkerSpec;
use crate::sync::{AtomicU32, Mutex, MutexGuard};
use crate::{Poll, Pulse, RingId};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// One worker as the directory knows it.
pub(crate) struct WorkerEntry<R> {
    pub(crate) mailbox: Arc<Mailbox<R>>,
    pub(crate) owner: String,
    pub(crate) spec: WorkerSpec,
    pub(crate) poll: Poll,
    pub(crate) tid: i32,
    pub(crate) alive: bool,
    /// Rings on their way here.
    pub(crate) incoming: u32,
}

/// Where a ring is.
pub(crate) struct Home {
    pub(crate) worker: u32,
    /// The engine's page of the ring.
    pub(crate) stay: Arc<StayPage>,
}

pub(crate) struct State<R> {
    pub(crate) workers: BTreeMap<u32, WorkerEntry<R>>,
    /// Freed workers that still finish what was started on them.
    pub(crate) ending: BTreeMap<u32, Arc<Mailbox<R>>>,
    pub(crate) rings: HashMap<RingId, Home>,
    pub(crate) next_worker: u32,
    pub(crate) next_ring: u64,
}

/// Who is told of work.
#[derive(Clone, Copy, Debug)]
pub struct Watcher(u32);

pub(crate) struct Directory<R> {
    state: Mutex<State<R>>,
    /// Who wants to hear when a worker that slept has something to do: a bit for each of `watchers`.
    watched: AtomicU32,
    /// What tells them.
    watchers: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
    /// Rings that end without a caller who takes them back.
    pub(crate) burials: Arc<Burials>,
}

impl<R> Directory<R> {
    pub(crate) fn new() -> Self {
        Directory {
            state: Mutex::new(State {
                workers: BTreeMap::new(),
                ending: BTreeMap::new(),
                rings: HashMap::new(),
                next_worker: 0,
                next_ring: 0,
            }),
            watched: AtomicU32::new(0),
            watchers: Mutex::default(),
            burials: Arc::default(),
        }
    }

    /// Adds what is called from a worker's thread when [`watch_for_work`](Self::watch_for_work) has been answered with yes
    /// and a worker has something to do again.
    pub(crate) fn on_work(&self, stirred: Box<dyn Fn() + Send + Sync>) -> Watcher {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.push(stirred);
        // Who comes behind the last bit would share the first one's, and hear of work that it did not ask about.
        Watcher(1 << ((watchers.len() - 1) % u32::BITS as usize))
    }

    /// Asks to be told of the next work. False when there is some already.
    ///
    /// A worker first shows its pulse and then looks at `watched`; here it is the other way round, both in one order for
    /// all threads. So either the worker sees that it is watched, or we see that it works.
    pub(crate) fn watch_for_work(&self, Watcher(bit): Watcher) -> bool {
        self.watched.fetch_or(bit, Ordering::SeqCst);
        let idle = {
            let state = self.lock();
            let alive = state.workers.values().filter(|worker| worker.alive).map(|worker| &worker.mailbox);
            alive.chain(state.ending.values()).all(|mailbox| mailbox.pulse() == Pulse::Idle)
        };
        if !idle {
            self.watched.fetch_and(!bit, Ordering::SeqCst);
        }
        idle
    }

    /// A worker has something to do: tells whoever asked to hear of it, once.
    #[inline]
    pub(crate) fn stir(&self) {
        if self.watched.load(Ordering::SeqCst) != 0 {
            self.tell(self.watched.swap(0, Ordering::SeqCst));
        }
    }

    #[cold]
    fn tell(&self, watched: u32) {
        let watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, stirred) in watchers.iter().enumerate() {
            if watched >> (index % u32::BITS as usize) & 1 == 1 {
                stirred();
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a ring into the mailbox of `worker`, and hands it back when that worker is gone.
    ///
    /// Arrival and announcement are one step. Announced first, mail could overtake the ring; announced later, a worker that
    /// is slow to do so could overwrite a newer home, and mail for the ring would circle for ever.
    pub(crate) fn hand_over(
        &self,
        id: RingId,
        worker: u32,
        stay: Arc<StayPage>,
        adopt: Mail<R>,
    ) -> Result<(), Mail<R>> {
        let mut state = self.lock();
        let Some(entry) = state.workers.get(&worker).filter(|entry| entry.alive) else {
            return Err(adopt);
        };
        entry.mailbox.send(adopt)?;
        state.rings.insert(id, Home { worker, stay });
        Ok(())
    }

    pub(crate) fn left(&self, id: RingId) {
        self.lock().rings.remove(&id);
    }

    /// Sends mail to a ring; hands it back when the ring is gone. What it holds may come back to the directory when it is dropped.
    ///
    /// Look and delivery are one step: the worker that was looked up could hand the ring on and end before the mail comes, which
    /// then nobody would send after the ring. So mail comes before the message that ends a worker, which is sent to those without rings.
    pub(crate) fn send(&self, id: RingId, mail: RingMail<R>) -> Result<(), Mail<R>> {
        let mail = Mail::Ring(id, mail);
        let state = self.lock();
        match state.rings.get(&id).and_then(|home| state.workers.get(&home.worker)) {
            Some(worker) => worker.mailbox.send(mail),
            None => Err(mail),
        }
    }

    /// Sends mail after a ring that is not on the sending worker. When the directory names the sender itself, the ring is on its
    /// way there, ahead of this mail. Mail for a ring that is gone is dropped, which its sender notices.
    pub(crate) fn forward(&self, id: RingId, mail: RingMail<R>) {
        drop(self.send(id, mail));
    }

    /// Records that a worker's thread has ended. One that panicked stays listed as dead until it is freed.
    pub(crate) fn ended(&self, number: u32, panicked: bool) {
        let mut state = self.lock();
        state.ending.remove(&number);
        state.rings.retain(|_, home| home.worker != number);
        if !panicked {
            state.workers.remove(&number);
        } else if let Some(worker) = state.workers.get_mut(&number) {
            worker.alive = false;
        }
    }
}
