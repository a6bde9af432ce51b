//! Writers that found no free slot, in the order in which they came.
//!
//! Nobody comes here while there are slots. Who waits is called by whoever frees slots: the write-back thread above all, but also
//! a batch that completes, a read that lets go of a version, a discard.
//!
//! No wake-up is lost: who parks looks for free slots once more *after* it stands in line, and who has freed slots looks at the
//! line *after* that, with a fence between the two on either side, so that at least one of them sees the other.

use engine::Reply;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a writer lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// A slot with memory.
    Data,
    /// A slot that stands for zeroes.
    Zero,
}

/// See the module.
pub(super) struct Line<W = Reply> {
    waiting: AtomicUsize,
    queues: Mutex<Queues<W>>,
}

struct Queues<W> {
    data: VecDeque<W>,
    zero: VecDeque<W>,
}

impl<W> Queues<W> {
    fn of(&mut self, need: Need) -> &mut VecDeque<W> {
        match need {
            Need::Data => &mut self.data,
            Need::Zero => &mut self.zero,
        }
    }
}

impl<W> Line<W> {
    pub(super) fn new() -> Line<W> {
        let queues = Queues { data: VecDeque::new(), zero: VecDeque::new() };
        Line { waiting: AtomicUsize::new(0), queues: Mutex::new(queues) }
    }

    fn queues(&self) -> MutexGuard<'_, Queues<W>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait: newcomers look, so that they do not overtake.
    pub(super) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Stands in line: at the back, or at the front for one that was called and found the slots taken again. The caller then
    /// looks for free slots once more, and calls somebody if there are any.
    pub(super) fn park(&self, need: Need, again: bool, waiter: W) {
        let mut queues = self.queues();
        if again {
            queues.of(need).push_front(waiter);
        } else {
            queues.of(need).push_back(waiter);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(queues);
        fence(Ordering::SeqCst);
    }

    /// Whether anybody is to be called, for one that has just freed slots.
    pub(super) fn wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.len() > 0
    }

    /// Takes up to `data` and `zero` of those that wait longest out of the line, to be told that there are slots.
    pub(super) fn call(&self, data: usize, zero: usize) -> Vec<W> {
        let mut queues = self.queues();
        let data = data.min(queues.data.len());
        let mut called: Vec<W> = queues.data.drain(..data).collect();
        let zero = zero.min(queues.zero.len());
        called.extend(queues.zero.drain(..zero));
        self.waiting.fetch_sub(called.len(), Ordering::Relaxed);
        called
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_called_each_for_what_it_needs() {
        let line = Line::new();
        assert!(!line.wanted());
        line.park(Need::Data, false, 1);
        line.park(Need::Zero, false, 2);
        line.park(Need::Data, false, 3);
        assert!(line.wanted());
        assert_eq!(line.call(1, 0), [1]);
        line.park(Need::Data, true, 1);
        assert_eq!(line.call(9, 0), [1, 3]);
        assert_eq!(line.len(), 1);
        assert_eq!(line.call(0, 9), [2]);
        assert_eq!(line.call(9, 9), [0; 0]);
        assert!(!line.wanted());
    }
}
