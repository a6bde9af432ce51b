//! How much of something there may be: of one client, and of all clients of an export.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what one client has of something.
pub(super) struct Bound {
    own: AtomicUsize,
    own_max: usize,
    all: Arc<AtomicUsize>,
    all_max: usize,
}

impl Bound {
    /// At most `own_max` for this client, and `all_max` for all that share `all`.
    pub(super) fn new(own_max: usize, all: &Arc<AtomicUsize>, all_max: usize) -> Bound {
        Bound { own: AtomicUsize::new(0), own_max, all: Arc::clone(all), all_max }
    }

    /// One more, unless there are too many.
    pub(super) fn take(&self) -> bool {
        let more = |max: usize| move |now: usize| (now < max).then_some(now + 1);
        if self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more(self.own_max)).is_err() {
            return false;
        }
        let room = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more(self.all_max)).is_ok();
        if !room {
            self.own.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// One more, whatever the bounds.
    pub(super) fn take_anyway(&self) {
        self.own.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    /// So many are gone, all of which were taken.
    pub(super) fn give(&self, count: usize) {
        self.own.fetch_sub(count, Ordering::Relaxed);
        self.all.fetch_sub(count, Ordering::Relaxed);
    }

    /// Whether one more would be too many for this client.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.own_max
    }

    /// How many this client has.
    pub(super) fn len(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }
}

impl Drop for Bound {
    /// What was not given back goes with the client.
    fn drop(&mut self) {
        self.all.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_what_there_is() {
        let all = Arc::default();
        let (one, other) = (Bound::new(2, &all, 3), Bound::new(2, &all, 3));
        assert!(one.take() && one.take() && !one.take(), "a client has a bound of its own");
        assert!(other.take() && !other.take(), "and one with the others");
        assert_eq!((one.len(), other.len()), (2, 1));
        one.give(1);
        assert!(other.take());
        drop(one);
        other.give(1);
        assert!(other.take());
        assert_eq!(all.load(Ordering::Relaxed), 2);
    }
}
