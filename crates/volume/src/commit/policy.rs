//! The rule when writers share a commit.
//!
//! # What is known
//! A commit costs about the same whether it answers one request or thirty, so that requests should share one. Requests that
//! wait while a commit is in flight share the next one for nothing. What remains to be decided is
//!
//! - when nothing is in flight: whether to wait a little for those that the last commit has just answered, and that will be back
//!   in a moment with their next write. Whoever is alone never waits.
//! - while a commit is in flight: whether to begin another beside it. On a device that serves one flush after the other this
//!   gains nothing and splits the company; on one that serves several at once those that wait gain what is left of the one in
//!   flight. Which of the two it is shows in how long commits take beside another.
//!
//! # What is learnt
//! The *crowd*: how many requests were in the last commits or waited behind them, i.e. how many writers there are. It follows
//! a rise at once and forgets slowly. The mean *time* of a commit: a wait is a tenth of it, and no more where nobody knows better.
//! Whether waits *pay*: a wait that lengthens a commit by a tenth has to bring more than a tenth in company; when it does not,
//! waits are tried rarely.
//!
//! How long company *takes*: writers need time for their answer and their next write, on a fast device more than a tenth of a
//! commit. There they fall into two parties, one of which writes while the other waits, and every commit answers half of them. When
//! waits do not pay, the rare one that is tried is half a commit long; if all are there before it is over, those after it may last
//! twice as long as that took. A wait longer than a tenth counts only if it brings everybody: so commits become longer by less than a
//! half and answer twice as many, or the waits are found out as useless.

/// Most commits in flight at once.
pub const COMMITS_MAX: usize = 4;

/// Longest wait while nothing is known of how long company takes, as a share of the mean time of a commit: one part in this many.
const WAIT_SHARE: u64 = 10;
/// Longest wait for company that has been seen to come so late.
const WAIT_SHARE_MAX: u64 = 2;
/// Longest wait at all, in nanoseconds: a device that takes a second for a flush has other troubles.
const WAIT_MAX_NS: u64 = 10_000_000;
/// A shorter wait is not worth its bookkeeping, in nanoseconds: commits that take ten times this have nothing to share.
const WAIT_MIN_NS: u64 = 2_000;
/// Waits that have cost much are not remembered for long: one that pays makes up for them, in parts of [`SCALE`].
const GAIN_MIN: i64 = -SCALE / 16;
/// Of the waits that would not have paid lately, one in this many is tried all the same.
const WAIT_TRIAL: u32 = 32;
/// Of the commits that could begin beside another on a device that seems to be serial, one in this many does.
const BESIDE_TRIAL: u32 = 64;
/// Those that wait outnumber those in flight by this factor before they go ahead without them.
const BESIDE_FACTOR: usize = 4;
/// Weight of the newest value in a moving average: one part in this many.
const WEIGHT: i64 = 8;
/// Averages of small numbers are kept as this many parts of one.
const SCALE: i64 = 1024;

/// What is known when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    /// Requests that would be in the commit, whoever asks included: at least 1.
    pub gathered: usize,
    /// Commits in flight.
    pub commits: usize,
    /// Requests that those will answer.
    pub in_flight: usize,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Begin now.
    Start,
    /// Wait for company until this time, or until [`Policy::is_enough`]; then begin.
    Until {
        /// In nanoseconds of the clock that was given.
        at_ns: u64,
    },
    /// Wait for a commit in flight to complete, and ask again then.
    Behind,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Mean time of a commit that began with none in flight, in nanoseconds; 0 = none yet.
    alone_ns: u64,
    /// The same of commits that began beside another.
    beside_ns: u64,
    /// Requests in and behind the last commits, in parts of [`SCALE`].
    crowd: i64,
    /// Mean of what waits brought less what they cost, both relative to the commit, in parts of [`SCALE`].
    gain: i64,
    /// Mean time of waits until everybody was there, in nanoseconds; 0 = none yet.
    company_ns: u64,
    waits_declined: u32,
    beside_declined: u32,
}

/// Moves `mean` towards `value`.
fn follow(mean: u64, value: u64) -> u64 {
    if mean == 0 {
        return value;
    }
    let weight = WEIGHT as u64;
    // Written without a difference that could be negative; both stay far below 2^60 nanoseconds.
    (mean.saturating_mul(weight - 1).saturating_add(value) / weight).max(1)
}

impl Policy {
    /// Knows nothing: begins at once until it does.
    pub fn new() -> Policy {
        Policy::default()
    }

    /// How many requests the next commit should answer, as far as the last ones tell: at least 1.
    pub fn crowd(&self) -> usize {
        usize::try_from((self.crowd + SCALE / 2) / SCALE).unwrap_or(1).max(1)
    }

    /// Mean time of a commit, in nanoseconds; 0 = none has completed.
    pub fn commit_ns(&self) -> u64 {
        if self.alone_ns > 0 { self.alone_ns } else { self.beside_ns }
    }

    /// Whether nobody else is expected.
    pub fn is_enough(&self, gathered: usize) -> bool {
        gathered >= self.crowd()
    }

    /// What whoever could lead the next commit should do. [`Decision::Behind`] only while something is in flight.
    pub fn decide(&mut self, now_ns: u64, here: Here) -> Decision {
        if here.commits > 0 {
            return if self.begins_beside(here) { Decision::Start } else { Decision::Behind };
        }
        if self.is_enough(here.gathered) {
            return Decision::Start;
        }
        match self.wait_ns() {
            Some(wait_ns) => Decision::Until { at_ns: now_ns.saturating_add(wait_ns) },
            None => Decision::Start,
        }
    }

    /// How long to wait for company, if at all.
    fn wait_ns(&mut self) -> Option<u64> {
        let (short_ns, long_ns) = (self.short_ns(), (self.commit_ns() / WAIT_SHARE_MAX).min(WAIT_MAX_NS));
        if short_ns < WAIT_MIN_NS {
            return None;
        }
        if self.gain >= 0 {
            return Some(self.company_ns.saturating_mul(2).clamp(short_ns, long_ns));
        }
        self.waits_declined += 1;
        if self.waits_declined < WAIT_TRIAL {
            return None;
        }
        self.waits_declined = 0;
        Some(long_ns)
    }

    /// A wait that needs no reason.
    fn short_ns(&self) -> u64 {
        (self.commit_ns() / WAIT_SHARE).min(WAIT_MAX_NS)
    }

    fn begins_beside(&mut self, here: Here) -> bool {
        // Whoever is in flight will be back when it has landed: the longer their list, the more is gained by waiting for it.
        if here.commits >= COMMITS_MAX || here.gathered < here.in_flight.saturating_mul(BESIDE_FACTOR) {
            return false;
        }
        let parallel = self.beside_ns > 0 && self.beside_ns <= self.alone_ns.saturating_add(self.alone_ns / 4);
        if parallel {
            return true;
        }
        self.beside_declined += 1;
        let trial = self.beside_declined >= BESIDE_TRIAL;
        if trial {
            self.beside_declined = 0;
        }
        trial
    }

    /// A wait for company has ended: it took `waited_ns`, and found `before` requests and left `after`.
    pub fn waited(&mut self, waited_ns: u64, before: usize, after: usize) {
        let commit_ns = self.commit_ns().max(1);
        let everybody = self.is_enough(after);
        if everybody {
            self.company_ns = follow(self.company_ns, waited_ns.min(1 << 50));
        }
        // Of a long wait that somebody missed, the others would have been there in time for the next commit.
        let counts = everybody || waited_ns <= self.short_ns() * 2;
        let brought = if counts { after.saturating_sub(before).min(1 << 20) as i64 } else { 0 };
        let brought = brought * SCALE / before.clamp(1, 1 << 20) as i64;
        let cost = (u128::from(waited_ns) * SCALE as u128 / u128::from(commit_ns)).min(1 << 40) as i64;
        // One lucky wait must not hide a hundred that brought nothing.
        let gain = (brought - cost).clamp(-SCALE, SCALE);
        self.gain = (self.gain + (gain - self.gain) / WEIGHT).max(GAIN_MIN);
    }

    /// A commit of `requests` requests has completed after `took_ns`; `gathered` wait behind it, and `beside` says that it
    /// began while another was in flight.
    pub fn completed(&mut self, took_ns: u64, requests: usize, gathered: usize, beside: bool) {
        let took_ns = took_ns.clamp(1, 1 << 50);
        let mean = if beside { &mut self.beside_ns } else { &mut self.alone_ns };
        *mean = follow(*mean, took_ns);
        let burst = requests.saturating_add(gathered).min(1 << 20) as i64 * SCALE;
        self.crowd = if burst >= self.crowd { burst } else { self.crowd - (self.crowd - burst) / WEIGHT };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn idle(gathered: usize) -> Here {
        Here { gathered, commits: 0, in_flight: 0 }
    }

    #[test]
    fn whoever_is_alone_never_waits() {
        let mut policy = Policy::new();
        for now in 0..1000 {
            assert_eq!(policy.decide(now, idle(1)), Decision::Start);
            policy.completed(5 * MS, 1, 0, false);
        }
    }

    #[test]
    fn company_that_was_here_is_waited_for_and_then_forgotten() {
        let mut policy = Policy::new();
        policy.completed(5 * MS, 3, 29, false);
        assert_eq!(policy.crowd(), 32);
        assert_eq!(policy.decide(7, idle(29)), Decision::Until { at_ns: 7 + MS / 2 });
        assert_eq!(policy.decide(7, idle(32)), Decision::Start);
        let mut commits = 0;
        while policy.decide(0, idle(1)) != Decision::Start {
            policy.completed(5 * MS, 1, 0, false);
            commits += 1;
            assert!(commits < 64, "a crowd of {} is not forgotten", policy.crowd());
        }
    }

    #[test]
    fn waits_that_bring_nothing_become_rare() {
        let mut policy = Policy::new();
        let mut waits = 0;
        for _ in 0..320 {
            // Others come, but always just behind.
            policy.completed(5 * MS, 4, 4, false);
            if let Decision::Until { at_ns } = policy.decide(0, idle(4)) {
                waits += 1;
                policy.waited(at_ns, 4, 4);
            }
        }
        assert!((10..=25).contains(&waits), "{waits} of 320");
        // And they come back when they pay again.
        let mut waits = 0;
        for _ in 0..320 {
            policy.completed(5 * MS, 4, 4, false);
            if let Decision::Until { at_ns } = policy.decide(0, idle(4)) {
                waits += 1;
                policy.waited(at_ns, 4, 8);
            }
        }
        assert!(waits > 200, "{waits} of 320");
    }

    #[test]
    fn company_that_takes_longer_than_a_tenth_is_found_and_waited_for() {
        const US: u64 = 1_000;
        let mut policy = Policy::new();
        let mut longest_ns = 0;
        for _ in 0..200 {
            // Two parties of four: the other one is back 60 us after its answer.
            policy.completed(170 * US, 4, 4, false);
            if let Decision::Until { at_ns } = policy.decide(0, idle(4)) {
                longest_ns = at_ns;
                policy.waited(at_ns.min(60 * US), 4, if at_ns < 60 * US { 4 } else { 8 });
            }
        }
        assert_eq!(longest_ns, 85 * US, "half a commit at most");
        assert!(matches!(policy.decide(0, idle(4)), Decision::Until { .. }), "it pays");
        // They have become slower: nobody waits in vain for long.
        let mut waits = 0;
        for _ in 0..320 {
            policy.completed(170 * US, 4, 4, false);
            if let Decision::Until { at_ns } = policy.decide(0, idle(4)) {
                waits += 1;
                policy.waited(at_ns, 4, 7);
            }
        }
        assert!(waits <= 25, "{waits} of 320");
    }

    #[test]
    fn fast_commits_are_not_waited_for() {
        let mut policy = Policy::new();
        policy.completed(15_000, 1, 31, false);
        assert_eq!(policy.decide(0, idle(1)), Decision::Start);
    }

    #[test]
    fn a_device_shows_whether_it_serves_two() {
        let here = Here { gathered: 31, commits: 1, in_flight: 1 };
        let starts = |beside_ns: u64| {
            let mut policy = Policy::new();
            policy.completed(5 * MS, 1, 31, false);
            let mut starts = 0;
            for _ in 0..640 {
                if policy.decide(0, here) == Decision::Start {
                    starts += 1;
                    policy.completed(beside_ns, 31, 0, true);
                }
                policy.completed(5 * MS, 1, 31, false);
            }
            starts
        };
        assert_eq!(starts(10 * MS), 10, "a serial device is tried now and then");
        assert!(starts(5 * MS) > 500);
        let mut policy = Policy::new();
        policy.completed(5 * MS, 1, 31, false);
        policy.completed(5 * MS, 1, 31, true);
        assert_eq!(policy.decide(0, here), Decision::Start);
        assert_eq!(policy.decide(0, Here { commits: COMMITS_MAX, ..here }), Decision::Behind);
        assert_eq!(policy.decide(0, Here { in_flight: 20, ..here }), Decision::Behind);
    }

    proptest! {
        #[test]
        fn decisions_are_within_their_bounds(
            history in proptest::collection::vec((any::<u64>(), any::<u16>(), any::<u16>(), any::<bool>(), any::<u32>()), 0..60),
            now in any::<u64>(), gathered in 1usize..100, commits in 0usize..6, in_flight in 0usize..100,
        ) {
            let mut policy = Policy::new();
            for (took, requests, behind, beside, waited) in history {
                policy.completed(took, usize::from(requests), usize::from(behind), beside);
                policy.waited(u64::from(waited), usize::from(requests), usize::from(behind));
            }
            prop_assert!(policy.crowd() >= 1);
            match policy.decide(now, Here { gathered, commits, in_flight }) {
                Decision::Behind => prop_assert!(commits > 0),
                Decision::Start => prop_assert!(commits < COMMITS_MAX),
                Decision::Until { at_ns } => {
                    prop_assert_eq!(commits, 0);
                    prop_assert!(!policy.is_enough(gathered));
                    let wait = at_ns - now;
                    prop_assert!(at_ns == u64::MAX || wait <= policy.commit_ns() / 2 && wait <= 10 * MS);
                }
            }
        }
    }
}
