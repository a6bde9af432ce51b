//! A way once around the disk.

/// How far somebody is who takes versions that are in no record ([`Cache::take_unlogged`](super::Cache::take_unlogged)): from some
/// block up to the end of the disk, then from its beginning up to that block. Whatever was stored before the round began is in a
/// record or taken when it is done, and what is stored meanwhile cannot make it longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// The block at which it began, and ends.
    start: u64,
    /// The block at which it goes on.
    next: u64,
    /// It has been at the end of the disk.
    beyond: bool,
    done: bool,
}

impl Round {
    /// The round after this one, whether that was done or given up. It begins where that one has come to.
    #[must_use]
    pub fn again(self) -> Round {
        Round { start: self.next, next: self.next, beyond: false, done: false }
    }

    /// Whether it has come back to where it began.
    pub fn is_done(self) -> bool {
        self.done
    }

    /// What is still to be looked through before the end of the disk, if anything: from where on.
    pub(super) fn ahead(self) -> Option<u64> {
        (!self.beyond).then_some(self.next)
    }

    /// What is still to be looked through behind the beginning of the disk, if it is there.
    pub(super) fn behind(self) -> Option<std::ops::Range<u64>> {
        (self.beyond && !self.done).then_some(self.next..self.start)
    }

    /// It has come to `next`; `None`: to the end of the part that it was in.
    pub(super) fn comes_to(&mut self, next: Option<u64>) {
        match next {
            Some(next) => self.next = next,
            None if self.beyond => (self.next, self.done) = (self.start, true),
            None => (self.next, self.beyond) = (0, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_where_it_began() {
        let mut round = Round::default();
        round.comes_to(Some(70));
        let mut round = round.again();
        assert_eq!((round.ahead(), round.behind()), (Some(70), None));
        round.comes_to(Some(90));
        assert_eq!(round.ahead(), Some(90));
        round.comes_to(None);
        assert_eq!((round.ahead(), round.behind()), (None, Some(0..70)));
        round.comes_to(Some(5));
        assert_eq!(round.behind(), Some(5..70));
        assert!(!round.is_done());
        round.comes_to(None);
        assert_eq!((round.ahead(), round.behind(), round.is_done()), (None, None, true));
        assert_eq!(round.again().ahead(), Some(70));
    }
}
