//! COMPARE AND WRITE commands of a logical unit: one at a time, from whatever ring of whatever device.

use super::logical::Logical;
use engine::Reply;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Those of one logical unit.
#[derive(Default)]
pub(crate) struct Swaps(Mutex<Line>);

#[derive(Default)]
struct Line {
    /// Commands so far, by which they are told apart.
    count: u64,
    /// Whose turn it is.
    turn: Option<u64>,
    waiting: VecDeque<(u64, Reply)>,
}

impl Swaps {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command's turn on its unit, or its place in the line. Dropped, it is the next one's.
pub(crate) struct SwapTurn {
    unit: Arc<Logical>,
    number: u64,
}

impl SwapTurn {
    /// A command gets in line. If it is not its turn at once, `reply` completes when it is.
    pub(crate) fn line_up(unit: Arc<Logical>, reply: impl FnOnce() -> Reply) -> SwapTurn {
        let mut line = unit.swaps.lock();
        line.count += 1;
        let number = line.count;
        match line.turn {
            Some(_) => line.waiting.push_back((number, reply())),
            None => line.turn = Some(number),
        }
        drop(line);
        SwapTurn { unit, number }
    }

    /// Whether it is this one's turn.
    pub(crate) fn has_come(&self) -> bool {
        self.unit.swaps.lock().turn == Some(self.number)
    }
}

impl fmt::Debug for SwapTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapTurn").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for SwapTurn {
    fn drop(&mut self) {
        let mut line = self.unit.swaps.lock();
        if line.turn != Some(self.number) {
            line.waiting.retain(|(number, _)| *number != self.number);
            return;
        }
        let next = line.waiting.pop_front();
        line.turn = next.as_ref().map(|(number, _)| *number);
        drop(line);
        if let Some((_, reply)) = next {
            reply.complete(0);
        }
    }
}
