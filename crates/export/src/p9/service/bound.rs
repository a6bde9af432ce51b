//! How much of something there may be: of one client, and of all clients of an export.
//!
//! Clients come and go, and none may take what the others need. A quarter of all is set apart: each client that may be
//! connected is sure of its part of that. Of the rest a client may have a number of times what nobody has, as trees may of the
//! process's descriptors (`passthrough::share`): alone most of it, beside others that want as much the same as they.

use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// This part of all is divided evenly among the clients that may come.
const SURE_PART: usize = 4;
/// Of the rest, a client may have this many times what is left.
const TIMES_WHAT_IS_LEFT: usize = 8;

/// What all clients of an export may have of something.
pub(super) struct Supply {
    /// What each client is sure of.
    sure: usize,
    /// What is for all of them.
    common: usize,
    /// How much of that they have.
    used: AtomicUsize,
}

impl Supply {
    /// `max` for so many clients. One that has no others beside it may have all.
    pub(super) fn new(max: usize, clients: usize) -> Arc<Supply> {
        let sure = if clients <= 1 { max } else { max / SURE_PART / clients };
        let common = max.saturating_sub(sure.saturating_mul(clients));
        Arc::new(Supply { sure, common, used: AtomicUsize::new(0) })
    }

    /// How much of the common part a client uses that has `own` in all.
    fn beyond(&self, own: usize) -> usize {
        own.saturating_sub(self.sure)
    }

    /// A client grows from `own` by `more`, if it may.
    fn take(&self, own: usize, more: usize) -> bool {
        let (before, after) = (self.beyond(own), self.beyond(own.saturating_add(more)));
        if after == 0 {
            return true;
        }
        let room = |used: usize| {
            let used = used.saturating_add(after - before);
            let left = self.common.checked_sub(used)?;
            (after <= left.saturating_mul(TIMES_WHAT_IS_LEFT)).then_some(used)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    fn take_anyway(&self, own: usize, more: usize) {
        self.used.fetch_add(self.beyond(own.saturating_add(more)) - self.beyond(own), Ordering::Relaxed);
    }

    fn give(&self, own: usize, less: usize) {
        self.used.fetch_sub(self.beyond(own) - self.beyond(own.saturating_sub(less)), Ordering::Relaxed);
    }
}

/// Counts what one client has of something.
pub(super) struct Bound {
    own: Mutex<usize>,
    own_max: usize,
    all: Arc<Supply>,
}

impl Bound {
    /// At most `own_max` for this client, and its share of `all`.
    pub(super) fn new(own_max: usize, all: &Arc<Supply>) -> Bound {
        Bound { own: Mutex::new(0), own_max, all: Arc::clone(all) }
    }

    fn own(&self) -> MutexGuard<'_, usize> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, unless there are too many.
    pub(super) fn take(&self) -> bool {
        let mut own = self.own();
        let room = *own < self.own_max && self.all.take(*own, 1);
        *own += usize::from(room);
        room
    }

    /// So many more, whatever the bounds.
    pub(super) fn take_anyway(&self, count: usize) {
        let mut own = self.own();
        self.all.take_anyway(*own, count);
        *own += count;
    }

    /// So many are gone, all of which were taken.
    pub(super) fn give(&self, count: usize) {
        let mut own = self.own();
        self.all.give(*own, count);
        *own -= count;
    }

    /// Whether so many more might be taken now.
    pub(super) fn has_room(&self, count: usize) -> bool {
        let own = self.own();
        let room = *own + count <= self.own_max && self.all.take(*own, count);
        if room {
            self.all.give(*own + count, count);
        }
        room
    }

    /// One more for as long as the value lives.
    ///
    /// # Errors
    /// `ENFILE` when there are too many.
    pub(super) fn room(self: &Arc<Bound>) -> Result<Counted, Errno> {
        if self.take() { Ok(Counted(Arc::clone(self))) } else { Err(Errno::NFILE) }
    }

    /// Whether one more would be too many for this client, however much others have.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.own_max
    }

    /// How many this client has.
    pub(super) fn len(&self) -> usize {
        *self.own()
    }
}

impl Drop for Bound {
    /// What was not given back goes with the client.
    fn drop(&mut self) {
        let own = self.len();
        self.all.give(own, own);
    }
}

/// One of what a client may have; see [`Bound::room`].
pub(super) struct Counted(Arc<Bound>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.give(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(bound: &Bound) -> usize {
        std::iter::repeat_with(|| bound.take()).take_while(|&more| more).count()
    }

    #[test]
    fn clients_share_what_there_is() {
        // 10 for each of ten, and 300 for all.
        let all = Supply::new(400, 10);
        let clients: Vec<Bound> = (0..10).map(|_| Bound::new(1000, &all)).collect();
        let had: Vec<usize> = clients.iter().map(fill).collect();
        assert_eq!(had[..3], [10 + 266, 10 + 30, 10 + 3], "most, most of the rest, and so on");
        assert!(had.iter().all(|&had| had >= 10), "{had:?}");
        assert!(had.iter().sum::<usize>() <= 400);
        // What the first gives back is for all.
        clients[0].give(200);
        assert!(clients[9].has_room(100) && fill(&clients[9]) > 100);
        drop(clients);
        assert_eq!(all.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_is_alone_may_have_all_and_its_own_bound_holds() {
        let all = Supply::new(400, 1);
        let client = Bound::new(1000, &all);
        assert_eq!(fill(&client), 400);
        client.take_anyway(3);
        assert!(!client.is_full() && !client.take());
        client.give(403);
        let client = Arc::new(Bound::new(2, &all));
        let held = [client.room().ok(), client.room().ok()];
        assert!(client.is_full() && client.room().is_err());
        drop(held);
        assert_eq!(client.len(), 0);
    }

    proptest! {
        /// Whoever takes and gives: each is sure of its part, all together have no more than there is, and nothing is lost.
        #[test]
        fn each_is_sure_of_its_part(steps in prop::collection::vec((0_usize..8, 0_usize..60, any::<bool>()), 0..200)) {
            let all = Supply::new(320, 8);
            let clients: Vec<Bound> = (0..8).map(|_| Bound::new(200, &all)).collect();
            for (client, count, takes) in steps {
                let client = &clients[client];
                for _ in 0..count {
                    let len = client.len();
                    if takes {
                        let might = client.has_room(1);
                        prop_assert_eq!(client.take(), might);
                        prop_assert!(might || len >= all.sure);
                    } else if len > 0 {
                        client.give(1);
                    }
                }
                prop_assert!(clients.iter().map(Bound::len).sum::<usize>() <= 320);
            }
            drop(clients);
            prop_assert_eq!(all.used.load(Ordering::Relaxed), 0);
        }
    }
}
