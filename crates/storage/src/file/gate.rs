//! Who may touch which blocks while a partial block is rewritten.
//!
//! With O_DIRECT a write of part of a block reads the block, changes it and writes it back. Whatever else writes the block
//! between the two would be undone, although the guest wrote other sectors: such a rewrite needs its blocks alone.
//!
//! Where O_DIRECT takes blocks of 512 bytes, nothing is rewritten here, but the file system has larger blocks: what it cannot write
//! past its page cache, such as part of a hole, it writes through that, with the block's other sectors as they were. At most the
//! kernel notices ("Page cache invalidation failure on direct I/O"), and has the next flush fail. So parts of such a block are
//! written one after the other, too; whole ones need not come here.
//!
//! The gate also counts bounce buffers, so that a guest cannot make us allocate without bound. Who does not fit waits in line,
//! and is let in by whoever leaves and makes room.

use engine::Reply;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most operations of one storage that hold a bounce buffer at once; with 256 KiB each, 16 MiB.
const BUFFERS_MAX: usize = 64;

/// What an operation does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// It reads: there is no order between reads and writes in flight.
    Nothing,
    /// It writes whole blocks.
    Shared,
    /// It rewrites a partial block.
    Exclusive,
}

/// What an operation needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// First byte, rounded down to a block.
    pub(super) start: u64,
    /// Behind the last byte, rounded up to a block.
    pub(super) end: u64,
    pub(super) touch: Touch,
    /// It needs a bounce buffer.
    pub(super) buffer: bool,
}

impl Ask {
    fn conflicts(&self, other: &Ask) -> bool {
        let touching = self.touch != Touch::Nothing && other.touch != Touch::Nothing;
        let exclusive = self.touch == Touch::Exclusive || other.touch == Touch::Exclusive;
        touching && exclusive && self.start < other.end && other.start < self.end
    }
}

/// Somebody in line. Called without a lock, on the thread that made room.
pub(super) trait Waiter {
    /// It is in.
    fn admit(self);
}

impl Waiter for Reply {
    fn admit(self) {
        self.complete(0);
    }
}

/// The gate of one storage. Whoever has a [`Claim`] keeps it open.
pub(super) struct Gate<W: Waiter = Reply> {
    /// Whether writes of whole blocks must ask.
    tracked: bool,
    state: Arc<Mutex<State<W>>>,
}

/// A place in the gate or in the line before it, given back when it is dropped: a ring that falls takes its requests with it, and
/// another one may use the storage.
pub(super) struct Claim<W: Waiter = Reply> {
    state: Arc<Mutex<State<W>>>,
    place: u32,
}

enum Place<W> {
    Free,
    Waiting(Ask, W),
    Held(Ask),
}

struct State<W> {
    places: Vec<Place<W>>,
    free: Vec<u32>,
    exclusive: usize,
    buffers: usize,
    /// Places of those who wait, the first first.
    line: VecDeque<u32>,
}

fn lock<W>(state: &Mutex<State<W>>) -> MutexGuard<'_, State<W>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W> State<W> {
    fn fits(&self, ask: &Ask) -> bool {
        if ask.buffer && self.buffers >= BUFFERS_MAX {
            return false;
        }
        match ask.touch {
            Touch::Nothing => true,
            Touch::Shared if self.exclusive == 0 => true,
            _ => !self.places.iter().any(|place| matches!(place, Place::Held(held) if held.conflicts(ask))),
        }
    }

    fn first(&self) -> Option<&Ask> {
        match &self.places[*self.line.front()? as usize] {
            Place::Waiting(ask, _) => Some(ask),
            Place::Free | Place::Held(_) => None,
        }
    }

    fn put(&mut self, place: Place<W>) -> u32 {
        if let Some(free) = self.free.pop() {
            self.places[free as usize] = place;
            return free;
        }
        self.places.push(place);
        self.places.len() as u32 - 1
    }

    fn count(&mut self, ask: &Ask) {
        self.buffers += usize::from(ask.buffer);
        self.exclusive += usize::from(ask.touch == Touch::Exclusive);
    }

    /// Gives a place back. Who waited there has to be dropped without the lock.
    fn vacate(&mut self, place: u32) -> Place<W> {
        let was = std::mem::replace(&mut self.places[place as usize], Place::Free);
        match &was {
            Place::Held(ask) => {
                self.buffers -= usize::from(ask.buffer);
                self.exclusive -= usize::from(ask.touch == Touch::Exclusive);
            }
            Place::Waiting(..) => self.line.retain(|waiting| *waiting != place),
            Place::Free => debug_assert!(false, "place {place} is nobody's"),
        }
        self.free.push(place);
        was
    }

    /// Lets the first in line in, if there is room.
    fn next(&mut self) -> Option<W> {
        let ask = *self.first()?;
        if !self.fits(&ask) {
            return None;
        }
        let place = self.line.pop_front()?;
        self.count(&ask);
        match std::mem::replace(&mut self.places[place as usize], Place::Held(ask)) {
            Place::Waiting(_, waiter) => Some(waiter),
            Place::Free | Place::Held(_) => None,
        }
    }
}

impl<W: Waiter> Gate<W> {
    pub(super) fn new(tracked: bool) -> Gate<W> {
        let state = State { places: Vec::new(), free: Vec::new(), exclusive: 0, buffers: 0, line: VecDeque::new() };
        Gate { tracked, state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn tracked(&self) -> bool {
        self.tracked
    }

    /// A place, and whether it is inside already: if not, `waiter()` hears when it is.
    pub(super) fn ask(&self, ask: Ask, waiter: impl FnOnce() -> W) -> (Claim<W>, bool) {
        let mut state = lock(&self.state);
        // Who waits first is not overtaken by those it waits for, nor, if it needs a buffer, by others that do.
        let fair = state.first().is_none_or(|first| !(first.conflicts(&ask) || first.buffer && ask.buffer));
        let inside = fair && state.fits(&ask);
        let place = if inside {
            state.count(&ask);
            state.put(Place::Held(ask))
        } else {
            let place = state.put(Place::Waiting(ask, waiter()));
            state.line.push_back(place);
            place
        };
        (Claim { state: Arc::clone(&self.state), place }, inside)
    }
}

impl<W: Waiter> Drop for Claim<W> {
    fn drop(&mut self) {
        let was = lock(&self.state).vacate(self.place);
        drop(was);
        loop {
            // Apart from the lock: who is let in may leave at once.
            let next = lock(&self.state).next();
            let Some(waiter) = next else { break };
            waiter.admit();
        }
    }
}

#[cfg(test)]
impl<W: Waiter> Gate<W> {
    /// Nobody is in and nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        let state = lock(&self.state);
        let nothing = (state.exclusive, state.buffers, state.line.len()) == (0, 0, 0);
        nothing && state.places.iter().all(|place| matches!(place, Place::Free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use std::cell::RefCell;
    use std::rc::Rc;

    /// Those that were let in, in their order.
    type Admitted = Rc<RefCell<Vec<usize>>>;

    struct Who(usize, Admitted);

    impl Waiter for Who {
        fn admit(self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    struct Test {
        gate: Gate<Who>,
        admitted: Admitted,
    }

    impl Test {
        fn new(tracked: bool) -> Test {
            Test { gate: Gate::new(tracked), admitted: Admitted::default() }
        }

        fn ask(&self, who: usize, ask: Ask) -> (Claim<Who>, bool) {
            self.gate.ask(ask, || Who(who, Rc::clone(&self.admitted)))
        }

        fn enters(&self, who: usize, ask: Ask) -> Claim<Who> {
            let (claim, inside) = self.ask(who, ask);
            assert!(inside, "{ask:?}");
            claim
        }

        fn waits(&self, who: usize, ask: Ask) -> Claim<Who> {
            let (claim, inside) = self.ask(who, ask);
            assert!(!inside, "{ask:?}");
            claim
        }

        fn admitted(&self) -> Vec<usize> {
            self.admitted.borrow().clone()
        }
    }

    fn ask(start: u64, end: u64, touch: Touch) -> Ask {
        Ask { start, end, touch, buffer: false }
    }

    #[test]
    fn rewrites_have_their_blocks_alone() {
        let test = Test::new(true);
        let first = test.enters(1, ask(0, 4096, Touch::Exclusive));
        let _second = test.waits(2, ask(0, 8192, Touch::Shared));
        let beside = test.enters(3, ask(8192, 12288, Touch::Shared));
        let _fourth = test.waits(4, ask(8192, 12288, Touch::Exclusive));
        drop(first);
        assert_eq!(test.admitted(), [2]);
        drop(beside);
        assert_eq!(test.admitted(), [2, 4]);
    }

    #[test]
    fn whole_blocks_do_not_wait_for_each_other() {
        let test = Test::new(true);
        let _one = test.enters(1, ask(0, 4096, Touch::Shared));
        let _two = test.enters(2, ask(0, 4096, Touch::Shared));
        let _three = test.enters(3, ask(0, 4096, Touch::Nothing));
    }

    #[test]
    fn a_rewrite_in_line_is_not_overtaken_for_ever() {
        let test = Test::new(true);
        let writer = test.enters(1, ask(0, 4096, Touch::Shared));
        let _rewrite = test.waits(2, ask(0, 4096, Touch::Exclusive));
        let _behind = test.waits(3, ask(0, 4096, Touch::Shared));
        let _elsewhere = test.enters(4, ask(4096, 8192, Touch::Shared));
        drop(writer);
        assert_eq!(test.admitted(), [2]);
    }

    #[test]
    fn buffers_are_bounded() {
        let test = Test::new(false);
        let buffer = Ask { buffer: true, ..ask(0, 4096, Touch::Nothing) };
        let mut claims: Vec<_> = (0..BUFFERS_MAX).map(|who| test.enters(who, buffer)).collect();
        let _next = test.waits(1000, buffer);
        claims.swap_remove(7);
        assert_eq!(test.admitted(), [1000]);
    }

    #[test]
    fn who_leaves_the_line_holds_nobody_up() {
        let test = Test::new(true);
        let reader = test.enters(1, ask(0, 4096, Touch::Shared));
        let rewrite = test.waits(2, ask(0, 4096, Touch::Exclusive));
        let _behind = test.waits(3, ask(0, 4096, Touch::Shared));
        drop(rewrite);
        assert_eq!(test.admitted(), [3]);
        // Nor does one that was let in and never came to know of it.
        let unaware = test.waits(4, ask(0, 4096, Touch::Exclusive));
        drop((reader, _behind));
        assert_eq!(test.admitted(), [3, 4]);
        let _last = test.waits(5, ask(0, 4096, Touch::Shared));
        drop(unaware);
        assert_eq!(test.admitted(), [3, 4, 5]);
    }

    proptest! {
        /// Against a plain list: nothing that conflicts is held together, and everybody gets in who does not leave before.
        #[test]
        fn everybody_gets_in_and_nobody_meets(steps in proptest::collection::vec((0u64..8, 1u64..4, 0u8..3, any::<bool>(), any::<proptest::sample::Index>()), 1..60)) {
            let test = Test::new(true);
            let mut asks = Vec::new();
            let (mut claims, mut inside): (Vec<(usize, Claim<Who>)>, Vec<usize>) = (Vec::new(), Vec::new());
            for (start, len, touch, buffer, pick) in steps {
                let touch = [Touch::Nothing, Touch::Shared, Touch::Exclusive][usize::from(touch)];
                let who = asks.len();
                asks.push(Ask { start, end: start + len, touch, buffer });
                let (claim, is_inside) = test.ask(who, asks[who]);
                claims.push((who, claim));
                inside.extend(is_inside.then_some(who));
                if pick.index(3) > 0 {
                    // In it or before it.
                    let (who, claim) = claims.swap_remove(pick.index(claims.len()));
                    inside.retain(|other| *other != who);
                    drop(claim);
                }
                inside.append(&mut test.admitted.borrow_mut());
                for (i, a) in inside.iter().enumerate() {
                    for b in &inside[i + 1..] {
                        prop_assert!(!asks[*a].conflicts(&asks[*b]));
                    }
                }
            }
            while !inside.is_empty() {
                let who = inside.swap_remove(0);
                claims.retain(|(other, _)| *other != who);
                inside.append(&mut test.admitted.borrow_mut());
            }
            prop_assert!(claims.is_empty() && test.gate.is_empty());
        }
    }
}
