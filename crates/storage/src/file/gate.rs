//! Who may touch which blocks while a partial block is rewritten.
//!
//! With O_DIRECT a write of part of a block reads the block, changes it and writes it back. Whatever else writes the block
//! between the two would be undone, although the guest wrote other sectors: such a rewrite needs its blocks alone. Where
//! blocks are 512 bytes there is no partial block, and writes do not come here.
//!
//! The gate also counts bounce buffers, so that a guest cannot make us allocate without bound. Who does not fit waits in line,
//! and is let in by the release that makes room.

use engine::Reply;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Names what was granted, until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim(u32);

impl Claim {
    /// The claim that a completion of a waiting task's token carries.
    pub(super) fn from_result(result: i32) -> Claim {
        Claim(result as u32)
    }
}

pub(super) struct Gate<W = Reply> {
    /// Whether writes of whole blocks must ask.
    tracked: bool,
    state: Mutex<State<W>>,
}

struct State<W> {
    held: Vec<Option<Ask>>,
    free: Vec<u32>,
    exclusive: usize,
    buffers: usize,
    waiting: VecDeque<(Ask, W)>,
}

impl<W> State<W> {
    fn fits(&self, ask: &Ask) -> bool {
        if ask.buffer && self.buffers >= BUFFERS_MAX {
            return false;
        }
        match ask.touch {
            Touch::Nothing => true,
            Touch::Shared if self.exclusive == 0 => true,
            _ => !self.held.iter().flatten().any(|held| held.conflicts(ask)),
        }
    }

    fn grant(&mut self, ask: Ask) -> Claim {
        self.buffers += usize::from(ask.buffer);
        self.exclusive += usize::from(ask.touch == Touch::Exclusive);
        if let Some(index) = self.free.pop() {
            self.held[index as usize] = Some(ask);
            return Claim(index);
        }
        self.held.push(Some(ask));
        Claim(self.held.len() as u32 - 1)
    }
}

impl<W> Gate<W> {
    pub(super) fn new(tracked: bool) -> Gate<W> {
        let state = State { held: Vec::new(), free: Vec::new(), exclusive: 0, buffers: 0, waiting: VecDeque::new() };
        Gate { tracked, state: Mutex::new(state) }
    }

    pub(super) fn tracked(&self) -> bool {
        self.tracked
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants at once, or puts `waiter()` in line and gives `None`.
    pub(super) fn ask(&self, ask: Ask, waiter: impl FnOnce() -> W) -> Option<Claim> {
        let mut state = self.state();
        // Who waits first is not overtaken by those it waits for, nor by others that need a buffer.
        let fair = state.waiting.front().is_none_or(|(first, _)| !ask.buffer && !first.conflicts(&ask));
        if fair && state.fits(&ask) {
            return Some(state.grant(ask));
        }
        state.waiting.push_back((ask, waiter()));
        None
    }

    /// Gives a claim back and calls `admit` for everybody in line who fits now.
    pub(super) fn release(&self, claim: Claim, mut admit: impl FnMut(W, Claim)) {
        {
            let mut state = self.state();
            let Some(ask) = state.held.get_mut(claim.0 as usize).and_then(Option::take) else {
                debug_assert!(false, "{claim:?} is not held");
                return;
            };
            state.buffers -= usize::from(ask.buffer);
            state.exclusive -= usize::from(ask.touch == Touch::Exclusive);
            state.free.push(claim.0);
        }
        while let Some((waiter, claim)) = self.next() {
            admit(waiter, claim);
        }
    }

    fn next(&self) -> Option<(W, Claim)> {
        let mut state = self.state();
        let (ask, _) = state.waiting.front()?;
        let ask = *ask;
        if !state.fits(&ask) {
            return None;
        }
        let (_, waiter) = state.waiting.pop_front()?;
        let claim = state.grant(ask);
        Some((waiter, claim))
    }
}

#[cfg(test)]
impl<W> Gate<W> {
    /// Nobody is in and nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state();
        let nothing = (state.exclusive, state.buffers, state.waiting.len()) == (0, 0, 0);
        nothing && state.held.iter().all(Option::is_none)
    }
}

impl Gate<Reply> {
    /// Releases, and completes the tokens of those who are let in with their claims.
    pub(super) fn leave(&self, claim: Claim) {
        self.release(claim, |reply, claim| reply.complete(claim.0 as i32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(start: u64, end: u64, touch: Touch) -> Ask {
        Ask { start, end, touch, buffer: false }
    }

    #[test]
    fn rewrites_have_their_blocks_alone() {
        let gate: Gate<u8> = Gate::new(true);
        let first = gate.ask(ask(0, 4096, Touch::Exclusive), || 1).unwrap();
        assert_eq!(gate.ask(ask(0, 8192, Touch::Shared), || 2), None);
        let beside = gate.ask(ask(8192, 12288, Touch::Shared), || 3).unwrap();
        assert_eq!(gate.ask(ask(8192, 12288, Touch::Exclusive), || 4), None);
        let mut admitted = Vec::new();
        gate.release(first, |who, claim| admitted.push((who, claim)));
        assert_eq!(admitted.iter().map(|a| a.0).collect::<Vec<_>>(), [2]);
        gate.release(beside, |who, claim| admitted.push((who, claim)));
        assert_eq!(admitted.iter().map(|a| a.0).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn whole_blocks_do_not_wait_for_each_other() {
        let gate: Gate<u8> = Gate::new(true);
        assert!(gate.ask(ask(0, 4096, Touch::Shared), || 1).is_some());
        assert!(gate.ask(ask(0, 4096, Touch::Shared), || 2).is_some());
        assert!(gate.ask(ask(0, 4096, Touch::Nothing), || 3).is_some());
    }

    #[test]
    fn a_rewrite_in_line_is_not_overtaken_for_ever() {
        let gate: Gate<u8> = Gate::new(true);
        let writer = gate.ask(ask(0, 4096, Touch::Shared), || 1).unwrap();
        assert_eq!(gate.ask(ask(0, 4096, Touch::Exclusive), || 2), None);
        assert_eq!(gate.ask(ask(0, 4096, Touch::Shared), || 3), None, "behind the rewrite");
        assert!(gate.ask(ask(4096, 8192, Touch::Shared), || 4).is_some(), "elsewhere");
        let mut admitted = Vec::new();
        gate.release(writer, |who, _| admitted.push(who));
        assert_eq!(admitted, [2]);
    }

    #[test]
    fn buffers_are_bounded() {
        let gate: Gate<usize> = Gate::new(false);
        let buffer = Ask { buffer: true, ..ask(0, 4096, Touch::Nothing) };
        let claims: Vec<_> = (0..BUFFERS_MAX).map(|i| gate.ask(buffer, || i).unwrap()).collect();
        assert_eq!(gate.ask(buffer, || 1000), None);
        let mut admitted = Vec::new();
        gate.release(claims[7], |who, _| admitted.push(who));
        assert_eq!(admitted, [1000]);
    }

    proptest! {
        /// Against a plain list: nothing that conflicts is held together, and everybody gets in.
        #[test]
        fn everybody_gets_in_and_nobody_meets(steps in proptest::collection::vec((0u64..8, 1u64..4, 0u8..3, any::<bool>(), any::<proptest::sample::Index>()), 1..60)) {
            let gate: Gate<usize> = Gate::new(true);
            let mut asks = Vec::new();
            let mut held: Vec<(usize, Claim)> = Vec::new();
            for (start, len, touch, buffer, pick) in steps {
                let touch = [Touch::Nothing, Touch::Shared, Touch::Exclusive][usize::from(touch)];
                let who = asks.len();
                asks.push(Ask { start, end: start + len, touch, buffer });
                held.extend(gate.ask(asks[who], || who).map(|claim| (who, claim)));
                if !held.is_empty() && pick.index(3) > 0 {
                    let (_, claim) = held.swap_remove(pick.index(held.len()));
                    gate.release(claim, |who, claim| held.push((who, claim)));
                }
                for (i, (a, _)) in held.iter().enumerate() {
                    for (b, _) in &held[i + 1..] {
                        prop_assert!(!asks[*a].conflicts(&asks[*b]));
                    }
                }
            }
            while let Some((_, claim)) = held.pop() {
                gate.release(claim, |who, claim| held.push((who, claim)));
            }
            prop_assert!(gate.is_empty());
        }
    }
}
