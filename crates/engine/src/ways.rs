//! Which way the work of a request went, for those who trace it.

use std::ops::{BitOr, BitOrAssign};

/// A set of ways by which work was begun. Empty: all of it was done at once, on the calling thread.
///
/// The engine notes its own; who begins work can note others, whose meaning is theirs, by [`Io::note`](crate::Io::note).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways(u16);

impl Ways {
    /// An entry of the worker's io_uring.
    pub const URING: Ways = Ways(1);
    /// A deadline of the worker.
    pub const TIMER: Ways = Ways(1 << 1);
    /// A reply that another thread completes.
    pub const THREAD: Ways = Ways(1 << 2);
    /// How many others can be noted.
    pub const NOTES: u32 = u16::BITS - 3;

    /// Of those that others note, the one with this number, which is below [`NOTES`](Self::NOTES).
    #[must_use]
    pub const fn noted(number: u32) -> Ways {
        assert!(number < Ways::NOTES, "no such way");
        Ways(1 << (number + 3))
    }

    /// Whether all of `others` are among them.
    #[must_use]
    pub const fn contains(self, others: Ways) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Ways {
    type Output = Ways;

    fn bitor(self, others: Ways) -> Ways {
        Ways(self.0 | others.0)
    }
}

impl BitOrAssign for Ways {
    #[inline]
    fn bitor_assign(&mut self, others: Ways) {
        self.0 |= others.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Solo, Token};

    #[test]
    fn every_way_is_told_from_the_others() {
        let noted = (0..Ways::NOTES).map(Ways::noted);
        let all: Vec<Ways> = [Ways::URING, Ways::TIMER, Ways::THREAD].into_iter().chain(noted).collect();
        for (place, one) in all.iter().enumerate() {
            let others = all.iter().enumerate().filter(|(other, _)| *other != place);
            let others = others.fold(Ways::default(), |set, (_, way)| set | *way);
            assert!(!others.contains(*one) && (others | *one).contains(*one) && !one.is_empty());
        }
    }

    #[test]
    fn what_is_begun_is_noted_once() {
        const NOTE: Ways = Ways::noted(3);
        let mut solo = Solo::new().unwrap();
        assert!(solo.io().take_ways().is_empty());
        let mut io = solo.io();
        io.timer(Token::request(1), 0);
        io.reply(Token::request(2)).complete(0);
        assert_eq!(io.take_ways(), Ways::TIMER | Ways::THREAD);
        // A reply that no thread completes is what its maker says.
        io.reply_by(NOTE, Token::request(3)).complete(0);
        assert_eq!(io.take_ways(), NOTE);
        assert!(io.take_ways().is_empty());
        (0..3).for_each(|_| assert_eq!(solo.wait().unwrap().result, 0));
    }
}
