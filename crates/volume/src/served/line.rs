//! Writers that found no free slot, in the order in which they came: a [`Line`](kit::Line) for each kind of slot.
//!
//! Nobody comes here while there are slots. Who waits is called by whoever frees slots: the write-back thread above all, but also
//! a batch that completes, a read that lets go of a version, a discard.

use engine::Reply;
use storage::kit;

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
    data: kit::Line<W>,
    zero: kit::Line<W>,
}

impl<W> Line<W> {
    pub(super) fn new() -> Line<W> {
        Line { data: kit::Line::new(), zero: kit::Line::new() }
    }

    /// How many wait, for whichever slot.
    pub(super) fn len(&self) -> usize {
        self.data.len() + self.zero.len()
    }

    /// As [`kit::Line::park`].
    pub(super) fn park(&self, need: Need, again: bool, waiter: W) {
        match need {
            Need::Data => self.data.park(waiter, again),
            Need::Zero => self.zero.park(waiter, again),
        }
    }

    /// As [`kit::Line::wanted`].
    pub(super) fn wanted(&self) -> bool {
        self.data.wanted() || self.zero.wanted()
    }

    /// As [`kit::Line::call`], up to `data` and `zero` of them.
    pub(super) fn call(&self, data: usize, zero: usize) -> Vec<W> {
        let mut called = self.data.call(data);
        called.extend(self.zero.call(zero));
        called
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_called_for_what_it_needs() {
        let line = Line::new();
        assert!(!line.wanted());
        line.park(Need::Data, false, 1);
        line.park(Need::Zero, false, 2);
        line.park(Need::Data, false, 3);
        assert_eq!(line.call(1, 0), [1]);
        line.park(Need::Data, true, 1);
        assert_eq!(line.call(9, 0), [1, 3]);
        assert!(line.wanted());
        assert_eq!(line.len(), 1);
        assert_eq!(line.call(0, 9), [2]);
        assert_eq!(line.call(9, 9), [0; 0]);
        assert!(!line.wanted());
    }
}
