//! What one member holds of one line. All its rings take from it, on whatever workers, without a lock.

use super::line::{Claim, Line};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Whoever uses up a turn within so many quanta's time had waited for it, and wants the next one.
const CONTINUES_WITHIN: u64 = 2;
/// Whoever pays a debt turn by turn comes back for the next one within so many quanta's time.
const PAYS_WITHIN: u64 = 16;
/// How often a debt is looked at in one go.
const TRIES: usize = 3;

/// A member's part of one line.
#[derive(Debug, Default)]
pub(super) struct Purse {
    /// What may still be used of the turn; below zero, a debt.
    left: AtomicI64,
    /// When the turn begins; 0 before the first one.
    at_ns: AtomicU64,
    /// When something was first used of it; 0 before that.
    opened_ns: AtomicU64,
    /// As in [`Claim`]; written under the line's lock.
    mark: AtomicU64,
}

impl Purse {
    /// Whether something may be used now; false when the next turn has to be reserved first.
    ///
    /// # Errors
    /// The time at which the turn begins that is reserved already.
    #[inline]
    pub(super) fn is_open(&self, now_ns: u64) -> Result<bool, u64> {
        // In this order: who sees what a turn brings sees when it begins.
        let left = self.left.load(Ordering::Acquire);
        let at_ns = self.at_ns.load(Ordering::Acquire);
        if at_ns > now_ns {
            return Err(at_ns);
        }
        if left > 0 && self.opened_ns.load(Ordering::Relaxed) == 0 {
            self.opened_ns.store(now_ns, Ordering::Relaxed);
        }
        Ok(left > 0)
    }

    /// Takes up to `want`. Somebody else may have taken everything since the purse was seen open; what it reserved then may
    /// be used a little early, by whoever comes between.
    #[inline]
    pub(super) fn take(&self, want: u32) -> u32 {
        let mut taken = 0;
        let _ = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            taken = u32::try_from(left.max(0)).unwrap_or(u32::MAX).min(want);
            (taken > 0).then(|| left - i64::from(taken))
        });
        taken
    }

    /// What may still be used.
    #[inline]
    pub(super) fn left(&self) -> u64 {
        u64::try_from(self.left.load(Ordering::Acquire)).unwrap_or(0)
    }

    /// Whether more was used than was reserved.
    pub(super) fn in_debt(&self) -> bool {
        self.left.load(Ordering::Acquire) < 0
    }

    /// Gives back what was taken and not used.
    #[inline]
    pub(super) fn give(&self, units: u32) {
        self.left.fetch_add(i64::from(units), Ordering::AcqRel);
    }

    /// Counts what was used, be it more than there was.
    #[inline]
    pub(super) fn spend(&self, units: u64) {
        // Far more than memory holds: a sum of these cannot run over.
        let units = i64::try_from(units).unwrap_or(i64::MAX).min(1 << 48);
        self.left.fetch_sub(units, Ordering::AcqRel);
    }

    /// Reserves the next turn, under the line's lock, unless somebody else was here first.
    pub(super) fn refill(&self, line: &mut Line, members: u64, now_ns: u64) {
        for _ in 0..TRIES {
            let left = self.left.load(Ordering::Acquire);
            let at_ns = self.at_ns.load(Ordering::Acquire);
            if left > 0 || at_ns > now_ns {
                return;
            }
            let claim = Claim {
                members,
                debt: left.unsigned_abs(),
                mark: self.mark.load(Ordering::Relaxed),
                continuing: self.continues(line, at_ns, now_ns),
            };
            let turn = line.reserve(now_ns, claim);
            self.mark.store(turn.mark, Ordering::Relaxed);
            self.opened_ns.store(0, Ordering::Relaxed);
            self.at_ns.store(turn.at_ns.max(1), Ordering::Release);
            self.left.fetch_add(i64::try_from(turn.units).unwrap_or(i64::MAX >> 1), Ordering::AcqRel);
        }
    }

    fn continues(&self, line: &Line, at_ns: u64, now_ns: u64) -> bool {
        if at_ns == 0 {
            return false;
        }
        let (since_ns, within) = match self.opened_ns.load(Ordering::Relaxed) {
            0 => (at_ns, PAYS_WITHIN),
            opened_ns => (opened_ns, CONTINUES_WITHIN),
        };
        now_ns.saturating_sub(since_ns) <= line.quantum_ns().saturating_mul(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Rate;

    #[test]
    fn a_turn_is_used_up_and_then_reserved_anew() {
        let rate = Rate::new(1000, Some(10));
        let (mut line, purse) = (Line::new(rate, rate.quantum_requests()), Purse::default());
        let mut now_ns = 1_000_000_000;
        assert_eq!(purse.is_open(now_ns), Ok(false));
        let mut taken = 0;
        for _ in 0..100 {
            purse.refill(&mut line, 1, now_ns);
            match purse.is_open(now_ns) {
                Ok(open) => assert!(open),
                Err(at_ns) => now_ns = at_ns,
            }
            taken += purse.take(5);
        }
        assert_eq!(purse.left(), 0);
        // A quantum of one request each, of which the first eight came from the burst.
        assert!(taken >= 50, "{taken}");
        assert!(now_ns - 1_000_000_000 >= u64::from(taken - 10) * 1_000_000, "{taken} in {now_ns}");
    }

    #[test]
    fn what_was_given_back_can_be_taken_again() {
        let purse = Purse::default();
        purse.give(7);
        assert_eq!((purse.take(5), purse.take(5), purse.take(5)), (5, 2, 0));
        purse.spend(u64::MAX);
        assert!(purse.in_debt());
        assert_eq!((purse.left(), purse.take(1)), (0, 0));
    }
}
