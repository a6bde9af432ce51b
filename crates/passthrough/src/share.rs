//! How many descriptors a tree may hold, of those that the process may have (`RLIMIT_NOFILE`).
//!
//! All trees of a process take theirs from the same limit, and so do rings, sessions, images and the control socket. Bounds of
//! each tree alone do not keep one client from taking what all others need, and an equal part for each would be little
//! for the one that is alone. So a tree may hold a number of times what nobody holds: alone it gets most of the limit,
//! beside others that want as much the same as they, and who comes late finds some left.

use crate::closer::Closer;
use crate::sync::Counted;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What all trees of this process hold.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// A tree may hold this many times what is left: 8 of 9 parts when it is alone.
const TIMES_WHAT_IS_LEFT: usize = 8;
/// This part of the process's limit is not for trees.
const NOT_FOR_TREES: usize = 8;

/// What one tree holds.
#[derive(Debug)]
pub(crate) struct Share {
    held: AtomicUsize,
    /// What closes for the tree where that takes long.
    pub(crate) closer: Closer,
    /// Closes that it was left and that may write something back.
    writing_back: AtomicUsize,
    /// A file was open for writing whose file system may write back, and report, when it is closed.
    reports_at_close: AtomicBool,
    all: &'static AtomicUsize,
    /// What all trees together may hold.
    limit: usize,
}

impl Share {
    /// Of a tree of this process, with the limit that it has now.
    pub(crate) fn of_process() -> Arc<Share> {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| limit.try_into().ok()).unwrap_or(usize::MAX);
        Share::new(&HELD, limit - limit / NOT_FOR_TREES)
    }

    fn new(all: &'static AtomicUsize, limit: usize) -> Arc<Share> {
        Arc::new(Share {
            held: AtomicUsize::new(0),
            closer: Closer::default(),
            writing_back: AtomicUsize::new(0),
            reports_at_close: AtomicBool::new(false),
            all,
            limit,
        })
    }

    /// What the tree may hold when it is alone.
    pub(crate) fn most(&self) -> usize {
        self.limit / (TIMES_WHAT_IS_LEFT + 1) * TIMES_WHAT_IS_LEFT
    }

    /// One more, if there may be one more.
    pub(crate) fn take(self: &Arc<Share>) -> Option<Taken> {
        let taken = self.take_anyway();
        (!self.is_exceeded()).then_some(taken)
    }

    /// One more: for what is there already, or is given back with the operation that needs it.
    pub(crate) fn take_anyway(self: &Arc<Share>) -> Taken {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        Taken(Arc::clone(self))
    }

    /// The tree holds more than it should. Others may have taken something since that was right.
    pub(crate) fn is_exceeded(&self) -> bool {
        let left = self.limit.saturating_sub(self.all.load(Ordering::Relaxed));
        self.held.load(Ordering::Relaxed) > left.saturating_mul(TIMES_WHAT_IS_LEFT)
    }

    /// Whether anything of the tree may be written back when it is closed, also where its mount is forgotten since.
    pub(crate) fn reports_at_close(&self) -> bool {
        self.reports_at_close.load(Ordering::Relaxed)
    }

    /// Something that the tree has let go of, and that a thread is still to close, may write something back.
    pub(crate) fn is_writing_back(&self) -> bool {
        self.writing_back.load(Ordering::Acquire) > 0
    }
}

/// A place for a descriptor: among those of its kind, and in the tree's share.
pub(crate) type Place = (Counted, Taken);

/// One descriptor of a tree's share, which has it back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken(Arc<Share>);

impl Taken {
    /// It is of a file that may be written back when it is closed.
    pub(crate) fn will_report_at_close(&self) {
        self.0.reports_at_close.store(true, Ordering::Relaxed);
    }

    /// What it is of.
    pub(crate) fn share(&self) -> Arc<Share> {
        Arc::clone(&self.0)
    }

    /// Its close was left to a thread, and may write something back.
    pub(crate) fn writes_back(&self) -> WritesBack {
        self.0.writing_back.fetch_add(1, Ordering::Relaxed);
        WritesBack(Arc::clone(&self.0))
    }
}

impl AsRef<Taken> for Taken {
    fn as_ref(&self) -> &Taken {
        self
    }
}

impl AsRef<Taken> for Place {
    fn as_ref(&self) -> &Taken {
        &self.1
    }
}

/// A close that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct WritesBack(Arc<Share>);

impl Drop for WritesBack {
    fn drop(&mut self) {
        self.0.writing_back.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
        self.0.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::iter::from_fn;

    fn shares(count: usize, limit: usize) -> Vec<Arc<Share>> {
        let all = Box::leak(Box::default());
        (0..count).map(|_| Share::new(all, limit)).collect()
    }

    #[test]
    fn alone_a_tree_gets_most_and_a_late_one_finds_some() {
        let shares = shares(2, 900);
        let mut first: Vec<Taken> = from_fn(|| shares[0].take()).collect();
        assert_eq!(first.len(), 800);
        let second: Vec<Taken> = from_fn(|| shares[1].take()).collect();
        assert_eq!(second.len(), 88);
        assert!(shares[0].is_exceeded() && shares[0].take().is_none());
        // What the first gives back is for both.
        first.truncate(400);
        assert!(!shares[0].is_exceeded());
        let more: Vec<Taken> = from_fn(|| shares[1].take()).collect();
        assert_eq!(second.len() + more.len(), 444);
    }

    #[test]
    fn all_is_given_back() {
        let shares = shares(1, 9);
        let taken: Vec<Taken> = from_fn(|| shares[0].take()).collect();
        assert_eq!(taken.len(), 8);
        let beyond = shares[0].take_anyway();
        drop((taken, beyond));
        assert_eq!((shares[0].held.load(Ordering::Relaxed), shares[0].all.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn the_process_has_a_limit() {
        let share = Share::of_process();
        assert!(share.limit > 100 && share.take().is_some());
    }

    proptest! {
        /// However many take turns in wanting all they can get: the same for each but for what the turns make of it, and some left.
        #[test]
        fn who_wants_all_gets_as_much_as_the_others(count in 1_usize..20, limit in 1000_usize..100_000) {
            let shares = shares(count, limit);
            let mut taken: Vec<Vec<Taken>> = shares.iter().map(|_| Vec::new()).collect();
            while shares.iter().zip(&mut taken).fold(false, |more, (share, taken)| {
                let one = share.take();
                let got = one.is_some();
                taken.extend(one);
                more | got
            }) {}
            let held: Vec<usize> = taken.iter().map(Vec::len).collect();
            let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            let left = limit - held.iter().sum::<usize>();
            prop_assert!(most - least <= 1, "{held:?}");
            prop_assert!(left * (TIMES_WHAT_IS_LEFT * count + 1) + TIMES_WHAT_IS_LEFT * count >= limit, "{left} of {limit} left");
        }
    }
}
