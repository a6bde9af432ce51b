//! One rate as a line of time: who may use how much, and from when on. Arithmetic alone.

use super::rate::Rate;

/// How many quanta a member that missed turns, because its worker woke late, may reserve at once.
pub(super) const CATCH_UP_MAX: u64 = 8;

/// Who reserves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// How many members share the line, at least 1.
    pub(super) members: u64,
    /// What the member has used beyond what it had reserved.
    pub(super) debt: u64,
    /// The member's mark after its last reservation.
    pub(super) mark: u64,
    /// Whether it has wanted more ever since, so that turns that it missed are still its own.
    pub(super) continuing: bool,
}

/// What a member has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// From when on it may be used.
    pub(super) at_ns: u64,
    /// How much, what pays for the debt included.
    pub(super) units: u64,
    /// The member's new mark.
    pub(super) mark: u64,
}

/// The line: everything before its back is reserved.
#[derive(Clone, Debug)]
pub(super) struct Line {
    rate: Rate,
    quantum: u64,
    back_ns: u64,
    /// The largest mark. A mark counts what its member has reserved; who joins begins at the front.
    front: u64,
}

impl Line {
    /// A line that has never been used: its whole burst is there.
    pub(super) fn new(rate: Rate, quantum: u64) -> Line {
        Line { rate, quantum, back_ns: 0, front: 0 }
    }

    /// How long the rate takes for one quantum, in nanoseconds.
    pub(super) fn quantum_ns(&self) -> u64 {
        self.rate.span_ns(self.quantum)
    }

    /// How far behind the present a reservation may begin. What members hold without using it, and what a turn reaches
    /// beyond its beginning, counts as burst too.
    fn credit_ns(&self, members: u64) -> u64 {
        let ahead = if members > 1 { members.saturating_add(CATCH_UP_MAX) } else { 2 };
        let credit = self.rate.burst().saturating_sub(self.quantum.saturating_mul(ahead));
        self.rate.span_ns(credit).saturating_sub(1)
    }

    /// Reserves the next turn for a member.
    pub(super) fn reserve(&mut self, now_ns: u64, claim: Claim) -> Turn {
        let alone = claim.members <= 1;
        let credit_from_ns = now_ns.saturating_sub(self.credit_ns(claim.members));
        // Time that nobody used and nobody may use any more has paid what this member overdrew before it.
        let lost_ns = credit_from_ns.saturating_sub(self.back_ns);
        let paid = claim.debt.min(self.rate.units_in(lost_ns));
        let start_ns = self.back_ns.max(credit_from_ns);
        // Among others a debt is paid from the burst or turn by turn: all of it at once would keep them waiting.
        let at_once = if alone { u64::MAX } else { self.rate.units_in(now_ns.saturating_sub(start_ns)) };
        let owed = (claim.debt - paid).min(at_once);
        let behind = if claim.continuing && !alone { self.front.saturating_sub(claim.mark) } else { 0 };
        let most = self.quantum.saturating_mul(CATCH_UP_MAX);
        let fresh = behind.clamp(self.quantum, most);
        self.back_ns = start_ns.saturating_add(self.rate.span_ns(owed.saturating_add(fresh)));
        let mark = if claim.continuing {
            claim.mark.saturating_add(fresh).max(self.front.saturating_sub(most))
        } else {
            // What was not used while its owner was away is gone.
            self.front.max(claim.mark)
        };
        self.front = self.front.max(mark);
        let at_ns = start_ns.saturating_add(self.rate.span_ns(owed));
        Turn { at_ns, units: paid.saturating_add(owed).saturating_add(fresh), mark }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn claim(members: u64) -> Claim {
        Claim { members, debt: 0, mark: 0, continuing: true }
    }

    #[test]
    fn one_alone_gets_one_quantum_after_the_other() {
        let mut line = Line::new(Rate::new(10_000, Some(100)), 10);
        // The burst less the two quanta that are on the way: 80 requests, 8 ms.
        let now_ns = 1000 * MS;
        let turns: Vec<u64> = (0..12).map(|_| line.reserve(now_ns, claim(1)).at_ns).collect();
        assert!(turns[..8].iter().all(|at| *at <= now_ns), "{turns:?}");
        assert!(turns[9] > now_ns && turns[10] - turns[9] == MS && turns[11] - turns[10] == MS, "{turns:?}");
    }

    #[test]
    fn a_debt_is_paid_before_the_next_turn() {
        let mut line = Line::new(Rate::new(100_000_000, Some(1_000_000)), 100_000);
        let first = line.reserve(1000 * MS, claim(1));
        let later = line.reserve(1000 * MS, Claim { debt: 50_000_000, ..claim(1) });
        assert_eq!(later.units, 50_100_000);
        assert_eq!((later.at_ns - first.at_ns) / MS, 501);
    }

    #[test]
    fn time_that_nobody_used_pays_debts() {
        let mut line = Line::new(Rate::new(1_000_000, None), 4096);
        line.reserve(1000 * MS, claim(2));
        let turn = line.reserve(60_000 * MS, Claim { debt: 10_000_000, ..claim(2) });
        assert!(turn.at_ns <= 60_000 * MS && turn.units == 10_004_096, "{turn:?}");
    }

    #[test]
    fn a_large_debt_among_others_takes_one_turn_at_a_time() {
        let mut line = Line::new(Rate::new(1_000_000, Some(10_000)), 4096);
        line.reserve(1000 * MS, claim(2));
        let turn = line.reserve(1000 * MS, Claim { debt: 10_000_000, mark: 4096, ..claim(2) });
        assert_eq!(turn.units, 4096);
    }

    #[test]
    fn who_missed_turns_gets_them_and_who_was_away_does_not() {
        let mut line = Line::new(Rate::new(10_000, Some(100)), 10);
        let (mut one, mut other) = (claim(2), claim(2));
        for claim in [&mut one, &mut other] {
            claim.mark = line.reserve(1000 * MS, *claim).mark;
        }
        for _ in 0..3 {
            one.mark = line.reserve(1000 * MS, one).mark;
        }
        let missed = line.clone().reserve(1000 * MS, other);
        assert_eq!(missed.units, 30);
        let away = line.reserve(1000 * MS, Claim { continuing: false, ..other });
        assert_eq!((away.units, away.mark), (10, one.mark));
    }

    proptest! {
        #[test]
        fn no_rate_and_no_time_overflows(
            per_second: u64, burst: Option<u64>, now_ns: u64, members: u64, debt: u64, mark: u64, continuing: bool,
        ) {
            let rate = Rate::new(per_second, burst);
            let mut line = Line::new(rate, rate.quantum_bytes());
            for _ in 0..4 {
                let turn = line.reserve(now_ns, Claim { members, debt, mark, continuing });
                prop_assert!(turn.units > 0);
                prop_assert!(line.back_ns >= turn.at_ns);
            }
        }
    }
}
