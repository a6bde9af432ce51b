//! Guest clusters whose mapping is being changed, and who waits for them.
//!
//! A write into a cluster that has to be allocated, a discard and a write of zeroes claim the clusters they change. Whoever comes
//! to one of these meanwhile waits for it, first come, first served; for all others nothing is looked up here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Somebody in line. Called without a lock.
pub trait Waiter {
    /// The claim is held now.
    fn admit(self);
}

/// The claims of one image.
pub struct Claims<W: Waiter>(Arc<Mutex<State<W>>>);

/// Clusters that are claimed, or waited for; given back when it is dropped.
pub struct Claim<W: Waiter> {
    state: Arc<Mutex<State<W>>>,
    number: u64,
}

struct State<W> {
    next: u64,
    held: Vec<(u64, Range<u64>)>,
    line: VecDeque<(u64, Range<u64>, W)>,
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn lock<W>(state: &Mutex<State<W>>) -> MutexGuard<'_, State<W>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Waiter> Default for Claims<W> {
    fn default() -> Claims<W> {
        Claims(Arc::new(Mutex::new(State { next: 0, held: Vec::new(), line: VecDeque::new() })))
    }
}

impl<W: Waiter> Claims<W> {
    /// Claims clusters, and says whether the claim is held already: if not, `waiter()` hears when it is.
    pub fn ask(&self, clusters: Range<u64>, waiter: impl FnOnce() -> W) -> (Claim<W>, bool) {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        let blocked = state.held.iter().any(|(_, held)| meet(held, &clusters))
            || state.line.iter().any(|(_, waited, _)| meet(waited, &clusters));
        if blocked {
            state.line.push_back((number, clusters, waiter()));
        } else {
            state.held.push((number, clusters));
        }
        (Claim { state: self.0.clone(), number }, !blocked)
    }

    /// Whether nobody holds a claim or waits for one.
    pub fn is_empty(&self) -> bool {
        let state = lock(&self.0);
        state.held.is_empty() && state.line.is_empty()
    }
}

impl<W> State<W> {
    /// Those in line that nothing stands before any more.
    fn admitted(&mut self) -> Vec<W> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < self.line.len() {
            let clusters = &self.line[at].1;
            let blocked = self.held.iter().any(|(_, held)| meet(held, clusters))
                || self.line.iter().take(at).any(|(_, earlier, _)| meet(earlier, clusters));
            if blocked {
                at += 1;
            } else if let Some((number, clusters, waiter)) = self.line.remove(at) {
                self.held.push((number, clusters));
                out.push(waiter);
            }
        }
        out
    }
}

impl<W: Waiter> Drop for Claim<W> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.held.retain(|(number, _)| *number != self.number);
        // Who left the line is dropped without the lock: it may complete something.
        let place = state.line.iter().position(|(number, ..)| *number == self.number);
        let left = place.and_then(|place| state.line.remove(place));
        let admitted = state.admitted();
        drop(state);
        drop(left);
        admitted.into_iter().for_each(Waiter::admit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct Name(char, Sender<char>);

    impl Waiter for Name {
        fn admit(self) {
            self.1.send(self.0).unwrap();
        }
    }

    #[test]
    fn only_who_meets_waits_and_in_order() {
        let (sender, admitted) = channel();
        let claims = Claims::default();
        let ask = |name, clusters| claims.ask(clusters, || Name(name, sender.clone()));
        let (a, held) = ask('a', 0..4);
        assert!(held);
        let (b, held) = ask('b', 3..6);
        assert!(!held, "it meets a");
        let (c, held) = ask('c', 5..7);
        assert!(!held, "it meets b, which waits first");
        let (d, held) = ask('d', 9..10);
        assert!(held, "it meets nobody");
        drop(a);
        assert_eq!(admitted.try_iter().collect::<String>(), "b");
        drop(b);
        assert_eq!(admitted.try_iter().collect::<String>(), "c");
        let (e, held) = ask('e', 6..10);
        assert!(!held);
        // Who gives up waiting lets others pass.
        let (f, held) = ask('f', 7..8);
        assert!(!held);
        drop(e);
        assert_eq!(admitted.try_iter().collect::<String>(), "f");
        drop((c, d, f));
        assert!(claims.is_empty());
    }
}
