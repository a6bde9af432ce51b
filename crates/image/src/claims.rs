//! Guest clusters whose mapping is being changed, and who waits for them.
//!
//! A write into a cluster that has to be allocated, a discard and a write of zeroes claim the clusters they change. Whoever comes
//! to one of these meanwhile waits for it, first come, first served; for all others nothing is looked up here.
//!
//! A claim may be *lost*: whoever holds it will not come back, and nobody knows what the kernel still does to its clusters. Those who wait for
//! it, and who come later, are refused until it is dropped, if it ever is.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Somebody in line. Called without a lock.
pub trait Waiter {
    /// The claim is held now.
    fn admit(self);
    /// It will not be.
    fn refuse(self);
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is held.
    Held,
    /// The waiter hears when it is.
    Waits,
    /// It meets one that is lost.
    Refused,
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
    held: Vec<Held>,
    line: VecDeque<(u64, Range<u64>, W)>,
}

struct Held {
    number: u64,
    clusters: Range<u64>,
    lost: bool,
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
    /// Claims clusters.
    pub fn ask(&self, clusters: Range<u64>, waiter: impl FnOnce() -> W) -> (Claim<W>, Asked) {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        let met = state.held.iter().filter(|held| meet(&held.clusters, &clusters)).map(|held| held.lost).max();
        let asked = if met == Some(true) {
            Asked::Refused
        } else if met.is_some() || state.line.iter().any(|(_, waited, _)| meet(waited, &clusters)) {
            state.line.push_back((number, clusters, waiter()));
            Asked::Waits
        } else {
            state.held.push(Held { number, clusters, lost: false });
            Asked::Held
        };
        (Claim { state: self.0.clone(), number }, asked)
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
            let blocked = self.held.iter().any(|held| meet(&held.clusters, clusters))
                || self.line.iter().take(at).any(|(_, earlier, _)| meet(earlier, clusters));
            if blocked {
                at += 1;
            } else if let Some((number, clusters, waiter)) = self.line.remove(at) {
                self.held.push(Held { number, clusters, lost: false });
                out.push(waiter);
            }
        }
        out
    }
}

impl<W: Waiter> Claim<W> {
    /// Whoever holds it does not come back. In the line it is nothing but a place, and is to be dropped.
    pub fn lose(&self) {
        let mut state = lock(&self.state);
        let Some(held) = state.held.iter_mut().find(|held| held.number == self.number) else { return };
        held.lost = true;
        let clusters = held.clusters.clone();
        let line = std::mem::take(&mut state.line);
        let (refused, line): (Vec<_>, Vec<_>) = line.into_iter().partition(|(_, waited, _)| meet(waited, &clusters));
        state.line = line.into();
        let admitted = state.admitted();
        drop(state);
        refused.into_iter().for_each(|(_, _, waiter)| waiter.refuse());
        admitted.into_iter().for_each(Waiter::admit);
    }
}

impl<W: Waiter> Drop for Claim<W> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.held.retain(|held| held.number != self.number);
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

        fn refuse(self) {
            self.1.send(self.0.to_ascii_uppercase()).unwrap();
        }
    }

    #[test]
    fn only_who_meets_waits_and_in_order() {
        let (sender, admitted) = channel();
        let claims = Claims::default();
        let ask = |name, clusters| claims.ask(clusters, || Name(name, sender.clone()));
        let (a, asked) = ask('a', 0..4);
        assert_eq!(asked, Asked::Held);
        let (b, asked) = ask('b', 3..6);
        assert_eq!(asked, Asked::Waits, "it meets a");
        let (c, asked) = ask('c', 5..7);
        assert_eq!(asked, Asked::Waits, "it meets b, which waits first");
        let (d, asked) = ask('d', 9..10);
        assert_eq!(asked, Asked::Held, "it meets nobody");
        drop(a);
        assert_eq!(admitted.try_iter().collect::<String>(), "b");
        drop(b);
        assert_eq!(admitted.try_iter().collect::<String>(), "c");
        let (e, asked) = ask('e', 6..10);
        assert_eq!(asked, Asked::Waits);
        // Who gives up waiting lets others pass.
        let (f, asked) = ask('f', 7..8);
        assert_eq!(asked, Asked::Waits);
        drop(e);
        assert_eq!(admitted.try_iter().collect::<String>(), "f");
        drop((c, d, f));
        assert!(claims.is_empty());
    }

    /// Who waited for one that is lost is told, who waited for others behind that goes on, and once it is dropped all is as before.
    #[test]
    fn who_meets_a_lost_claim_is_refused() {
        let (sender, told) = channel();
        let claims = Claims::default();
        let ask = |name, clusters| claims.ask(clusters, || Name(name, sender.clone()));
        let (a, _) = ask('a', 0..4);
        let (b, asked) = ask('b', 3..6);
        assert_eq!(asked, Asked::Waits);
        let (c, asked) = ask('c', 5..7);
        assert_eq!(asked, Asked::Waits);
        a.lose();
        assert_eq!(told.try_iter().collect::<String>(), "Bc");
        drop(b);
        let (d, asked) = ask('d', 2..3);
        assert_eq!(asked, Asked::Refused);
        let (e, asked) = ask('e', 4..5);
        assert_eq!(asked, Asked::Held);
        drop(a);
        let (f, asked) = ask('f', 0..4);
        assert_eq!(asked, Asked::Held);
        drop((c, d, e, f));
        assert!(claims.is_empty() && told.try_recv().is_err());
    }
}
