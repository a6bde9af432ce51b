//! The turns of a trial, and what they come to.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use values::Favour;

/// Turns of each tactic in a trial.
const ROUNDS: usize = 8;
/// Rounds that a challenger has to win.
const WINS: usize = 7;
/// Behind so many rounds, those are given up that have no prospect...
const HOPELESS_ROUNDS: usize = 2;
/// ...as they took so much longer than the best each time.
const HOPELESS: f64 = 1.3;
/// A challenger that is within the tolerance has to need so much less processor time.
const CHEAPER: f64 = 0.93;
/// What two medians may differ by without meaning it.
pub(super) const NOISE: f64 = 0.02;

/// How a worker waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tactic {
    /// It polls for as long as the waits it has seen make worth it.
    Learned,
    /// It sleeps at once.
    Sleep,
    /// It polls for as long as it may.
    Spin,
}

impl Tactic {
    /// All of them, the usual one first.
    pub const ALL: [Tactic; 3] = [Tactic::Learned, Tactic::Sleep, Tactic::Spin];

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Tactic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tactic::Learned => "learned",
            Tactic::Sleep => "sleep",
            Tactic::Spin => "spin",
        })
    }
}

/// What a worker has done up to a moment. All but the time are counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When, in nanoseconds of a monotonic clock.
    pub at_ns: u64,
    /// Requests taken from rings.
    pub requests: u64,
    /// Waits that a poll window could have covered.
    pub waits: u64,
    /// Processor time of the worker's thread, in nanoseconds.
    pub cpu_ns: u64,
}

/// What requests cost in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Nanoseconds from one request to the next.
    pub time_ns: f64,
    /// Nanoseconds of processor time for one.
    pub cpu_ns: f64,
}

impl Cost {
    /// As much as what it is compared with.
    pub const SAME: Cost = Cost { time_ns: 1.0, cpu_ns: 1.0 };

    pub(super) fn between(from: &Sample, to: &Sample) -> Option<Cost> {
        let requests = to.requests.saturating_sub(from.requests);
        if requests == 0 {
            return None;
        }
        let each = |ns: u64| ns as f64 / requests as f64;
        Some(Cost {
            time_ns: each(to.at_ns.saturating_sub(from.at_ns)),
            cpu_ns: each(to.cpu_ns.saturating_sub(from.cpu_ns)),
        })
    }

    fn relative_to(self, other: Cost) -> Cost {
        // The worker's clock may not have moved in a stretch that it slept through.
        Cost { time_ns: self.time_ns / other.time_ns.max(1.0), cpu_ns: self.cpu_ns / other.cpu_ns.max(1.0) }
    }
}

/// Why a trial ended as it did: what each tactic cost, relative to the one before the trial. The median of the rounds; `None` for one
/// that was given up early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// When the trial ended.
    pub at_ns: u64,
    /// The tactic before.
    pub before: Tactic,
    /// The tactic from now on.
    pub after: Tactic,
    /// By [`Tactic::ALL`].
    pub costs: [Option<Cost>; 3],
    /// What the tactic before cost a request, in nanoseconds and not relative to anything.
    pub base: Cost,
}

impl Verdict {
    /// What a tactic cost, relative to the one before.
    #[must_use]
    pub fn cost(&self, tactic: Tactic) -> Option<Cost> {
        self.costs[tactic.index()]
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rounds {
    /// By tactic; the same number for each that is not given up, or one more.
    pub(super) costs: [Vec<Cost>; 3],
    pub(super) given_up: [bool; 3],
    pub(super) turn: Tactic,
    /// `None`: the turn has not settled yet.
    pub(super) began: Option<Sample>,
}

impl Rounds {
    pub(super) fn new(first: Tactic) -> Rounds {
        Rounds { costs: Default::default(), given_up: [false; 3], turn: first, began: None }
    }

    /// The next tactic that has had fewer turns than others; `None` when all have had all.
    pub(super) fn next(&self) -> Option<Tactic> {
        let open = Tactic::ALL.into_iter().filter(|tactic| !self.given_up[tactic.index()]);
        let turns = |tactic: &Tactic| self.costs[tactic.index()].len();
        let fewest = open.clone().map(|tactic| turns(&tactic)).min()?;
        if fewest == ROUNDS {
            return None;
        }
        // Rounds go forth and back, so that what drifts is no tactic's advantage.
        let mut open = open.filter(|tactic| turns(tactic) == fewest);
        if fewest % 2 == 0 { open.next() } else { open.next_back() }
    }

    /// Gives up what took much longer than the best in each of the first rounds.
    pub(super) fn give_up(&mut self, incumbent: Tactic) {
        let rounds = self.costs.iter().map(Vec::len);
        if !rounds.clone().all(|turns| turns == HOPELESS_ROUNDS) {
            return;
        }
        for tactic in Tactic::ALL {
            // All the others are compared with the incumbent.
            self.given_up[tactic.index()] = tactic != incumbent
                && (0..HOPELESS_ROUNDS).all(|round| {
                    let of = |index: usize| self.costs[index][round].time_ns;
                    of(tactic.index()) > HOPELESS * (0..3).map(of).fold(f64::INFINITY, f64::min)
                });
        }
    }

    pub(super) fn verdict(&self, at_ns: u64, incumbent: Tactic, favour: Favour) -> Verdict {
        let bases = &self.costs[incumbent.index()];
        let relative = |tactic: Tactic| -> Option<Vec<Cost>> {
            let costs = &self.costs[tactic.index()];
            let pairs = costs.iter().zip(bases).map(|(cost, base)| cost.relative_to(*base));
            (costs.len() == ROUNDS).then(|| pairs.collect())
        };
        let rounds = Tactic::ALL.map(relative);
        let costs = [0, 1, 2].map(|index| rounds[index].as_deref().and_then(median));
        let best = costs.iter().flatten().map(|cost| cost.time_ns).fold(f64::INFINITY, f64::min);
        let tolerance = 1.0 + favour.tolerance().unwrap_or_default();
        let is_fast = |cost: &Cost| cost.time_ns <= best * tolerance;
        // The incumbent's own ratio is 1, and it stays unless it is clearly beaten.
        let holds = 1.0 <= best * (tolerance + NOISE);
        let wins = |tactic: Tactic| {
            // What is at the edge of the tolerance comes in by its median and goes out by every round, so that it does not do both in turn.
            let won = |cost: &&Cost| if holds { cost.cpu_ns < 1.0 } else { cost.time_ns * tolerance < 1.0 };
            rounds[tactic.index()].as_ref().is_some_and(|rounds| rounds.iter().filter(won).count() >= WINS)
        };
        let cheapest = Tactic::ALL
            .into_iter()
            .filter_map(|tactic| Some((tactic, costs[tactic.index()]?)))
            .filter(|(tactic, cost)| is_fast(cost) && wins(*tactic))
            .filter(|(_, cost)| !holds || favour.tolerance().is_some() && cost.cpu_ns < CHEAPER)
            .min_by(|(_, one), (_, other)| one.cpu_ns.total_cmp(&other.cpu_ns));
        let after = cheapest.map_or(incumbent, |(tactic, _)| tactic);
        Verdict { at_ns, before: incumbent, after, costs, base: median(bases).unwrap_or(Cost::SAME) }
    }

    /// Whether turns can have come to this: the incumbent is had, and nobody is ahead by more than a turn.
    pub(super) fn is_sound(&self, incumbent: Tactic) -> bool {
        let open = || Tactic::ALL.into_iter().filter(|tactic| !self.given_up[tactic.index()]);
        let turns = || open().map(|tactic| self.costs[tactic.index()].len());
        let (fewest, most) = (turns().min().unwrap_or(0), turns().max().unwrap_or(0));
        let sane = |cost: &Cost| [cost.time_ns, cost.cpu_ns].iter().all(|ns| ns.is_finite() && *ns >= 0.0);
        !self.given_up[incumbent.index()]
            && !self.given_up[self.turn.index()]
            && most <= ROUNDS
            && most - fewest <= 1
            && self.costs.iter().all(|costs| costs.len() <= most && costs.iter().all(sane))
    }
}

/// The medians of time and of processor time, each for itself.
fn median(costs: &[Cost]) -> Option<Cost> {
    let of = |part: fn(&Cost) -> f64| {
        let mut parts: Vec<f64> = costs.iter().map(part).collect();
        parts.sort_unstable_by(f64::total_cmp);
        let middle = parts.len() / 2;
        let below = parts.get(middle.checked_sub(1)?)?;
        Some(if parts.len().is_multiple_of(2) { (below + parts[middle]) / 2.0 } else { parts[middle] })
    };
    Some(Cost { time_ns: of(|cost| cost.time_ns)?, cpu_ns: of(|cost| cost.cpu_ns)? })
}
