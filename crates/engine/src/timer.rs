//! Deadlines of one worker, checked once a turn: no system call and no descriptor a timer.

use crate::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A deadline that passed: the ring's slot on this worker, and the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Due {
    deadline_ns: u64,
    sequence: u64,
    pub(crate) slot: u32,
    pub(crate) token: Token,
}

/// Deadlines, earliest first; equal ones in the order they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Due>>,
    sequence: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, deadline_ns: u64, slot: u32, token: Token) {
        self.sequence += 1;
        self.heap.push(Reverse(Due { deadline_ns, sequence: self.sequence, slot, token }));
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|due| due.0.deadline_ns)
    }

    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<Due> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|due| due.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_never_early() {
        let mut timers = Timers::default();
        timers.set(30, 0, Token::request(3));
        timers.set(10, 0, Token::request(1));
        timers.set(10, 0, Token::request(2));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.next_ns(), Some(10));
        let tokens: Vec<_> = std::iter::from_fn(|| timers.pop_due(30)).map(|due| due.token).collect();
        assert_eq!(tokens, [1, 2, 3].map(Token::request));
        assert_eq!(timers.next_ns(), None);
    }
}
