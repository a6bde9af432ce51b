//! Trying tactics against each other: what cannot be seen from inside the present one has to be tried.
//!
//! A worker that sleeps never sees how soon a client would have been back had it looked; one that looks keeps a processor from whoever
//! makes its completions. So tactics take turns of some milliseconds each, round after round, and are compared by what they did:
//! requests, and processor time for them. It is hill climbing on a rate under noise, as thread pools do it (Hellerstein, Morrison,
//! Eilebrecht: "Applying control theory in the real world: experience with building a controller for the .NET thread pool", 2010),
//! with two changes: ratios are taken within a round, so that a load that drifts changes all of them alike, and a challenger has to win
//! nearly every round, so that noise changes nothing.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use values::Favour;

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

    fn index(self) -> usize {
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
    fn between(from: &Sample, to: &Sample) -> Option<Cost> {
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

    /// As much as what it is compared with.
    pub const SAME: Cost = Cost { time_ns: 1.0, cpu_ns: 1.0 };

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

/// Time between two looks at the load when nothing is tried.
const LOOK_NS: u64 = 50_000_000;
/// A tactic's turn: the first part, which is not counted, as what went before still has its effect.
const SETTLE_NS: u64 = 1_000_000;
/// The second part...
const MEASURE_NS: u64 = 4_000_000;
/// ...which goes on until it has so many requests...
const MEASURE_REQUESTS: u64 = 64;
/// ...but not for longer than this.
const MEASURE_NS_MAX: u64 = 12_000_000;
/// A turn with fewer requests says nothing: the load is gone.
const REQUESTS_MIN: u64 = 8;
/// A turn that took so long was interrupted, and is had again...
const INTERRUPTED_NS: u64 = 40_000_000;
/// ...but not more often than this in a trial.
const INTERRUPTIONS_MAX: u32 = 8;
/// Turns of each tactic in a trial.
const ROUNDS: usize = 8;
/// Rounds that a challenger has to win.
const WINS: usize = 7;
/// Behind so many rounds, those are given up that have no prospect...
const HOPELESS_ROUNDS: usize = 2;
/// ...as they took so much longer than the best each time.
const HOPELESS: f64 = 1.3;
/// From so many waits a second on there is something to win, and a turn has requests enough to tell...
const WAITS_A_SECOND_BUSY: u64 = 1_500;
/// ...and below so many there is not.
const WAITS_A_SECOND_QUIET: u64 = 500;
/// Time from the beginning of the first trial to that of the next. It doubles as long as trials change nothing...
const REST_NS: u64 = 2_000_000_000;
/// ...up to this.
const REST_NS_MAX: u64 = 64_000_000_000;
/// A change of the load ends a rest that has lasted so long. It doubles as long as such trials change nothing, as a device may have no
/// steady pace...
const CALM_NS: u64 = 500_000_000;
/// ...up to this.
const CALM_NS_MAX: u64 = 16_000_000_000;
/// The load is another when requests cost so much more or less...
const SHIFT: f64 = 1.25;
/// ...at so many looks in a row.
const SHIFT_LOOKS: u32 = 3;
/// A challenger that is within the tolerance has to need so much less processor time.
const CHEAPER: f64 = 0.93;
/// What two medians may differ by without meaning it.
const NOISE: f64 = 0.02;

/// The tactic of one worker, and what is being done to find a better one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    favour: Favour,
    /// The tactic that holds under a load when nothing is tried.
    chosen: Tactic,
    state: State,
    /// The rest behind the next trial.
    rest_ns: u64,
    /// What a request has cost with the chosen tactic so far: by it a load that comes back is told from another one.
    usual_ns: Option<f64>,
    /// Looks in a row that saw another load.
    shifted: u32,
    /// When the present rest ends.
    rests_until_ns: u64,
    /// When the last trial began.
    tried_ns: u64,
    /// How long a rest lasts at least, whatever the load does.
    calm_ns: u64,
    /// The last look.
    last: Option<Sample>,
    /// The last trial that came to its end.
    judged: Option<Rounds>,
    next_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum State {
    /// Too little is done to learn anything from. What was found before is kept, as the load may come back.
    Quiet,
    Resting,
    Trying(Rounds),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rounds {
    /// By tactic; the same number for each that is not given up, or one more.
    costs: [Vec<Cost>; 3],
    given_up: [bool; 3],
    turn: Tactic,
    /// `None`: the turn has not settled yet.
    began: Option<Sample>,
    /// Turns that were had again.
    interruptions: u32,
}

impl Rounds {
    fn new(first: Tactic) -> Rounds {
        Rounds { costs: Default::default(), given_up: [false; 3], turn: first, began: None, interruptions: 0 }
    }

    /// The next tactic that has had fewer turns than others; `None` when all have had all.
    fn next(&self) -> Option<Tactic> {
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
    fn give_up(&mut self, incumbent: Tactic) {
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

    fn verdict(&self, at_ns: u64, incumbent: Tactic, favour: Favour) -> Verdict {
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
    fn is_sound(&self, incumbent: Tactic) -> bool {
        let open = || Tactic::ALL.into_iter().filter(|tactic| !self.given_up[tactic.index()]);
        let turns = || open().map(|tactic| self.costs[tactic.index()].len());
        let (fewest, most) = (turns().min().unwrap_or(0), turns().max().unwrap_or(0));
        let sane = |cost: &Cost| [cost.time_ns, cost.cpu_ns].iter().all(|ns| ns.is_finite() && *ns >= 0.0);
        !self.given_up[incumbent.index()]
            && !self.given_up[self.turn.index()]
            && most <= ROUNDS
            && most - fewest <= 1
            && self.costs.iter().all(|costs| costs.len() <= most && costs.iter().all(sane))
            && self.interruptions <= INTERRUPTIONS_MAX
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

impl Trial {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(favour: Favour) -> Trial {
        Trial {
            favour,
            chosen: Tactic::Learned,
            state: State::Quiet,
            rest_ns: REST_NS,
            usual_ns: None,
            shifted: 0,
            rests_until_ns: 0,
            tried_ns: 0,
            calm_ns: CALM_NS,
            last: None,
            judged: None,
            next_ns: 0,
        }
    }

    /// What is favoured.
    #[inline]
    #[must_use]
    pub fn favour(&self) -> Favour {
        self.favour
    }

    /// What is favoured from now on: what was found by another measure is tried again at once.
    pub fn set_favour(&mut self, favour: Favour) {
        if favour == self.favour {
            return;
        }
        let state = match self.state {
            State::Quiet => State::Quiet,
            State::Resting | State::Trying(_) => State::Resting,
        };
        *self = Trial { favour, chosen: self.chosen, state, last: self.last, ..Trial::new(favour) };
    }

    /// The tactic now: the one that holds, or the one whose turn it is.
    #[inline]
    #[must_use]
    pub fn tactic(&self) -> Tactic {
        match &self.state {
            State::Trying(rounds) => rounds.turn,
            State::Resting => self.chosen,
            State::Quiet => Tactic::Learned,
        }
    }

    /// The tactic that holds when nothing is tried.
    #[must_use]
    pub fn chosen(&self) -> Tactic {
        match &self.state {
            State::Trying(_) | State::Resting => self.chosen,
            State::Quiet => Tactic::Learned,
        }
    }

    /// The tactic that a trial begins with.
    pub(crate) fn incumbent(&self) -> Tactic {
        self.chosen
    }

    /// Whether a sample is wanted at this time.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Whether this can be the state of a policy, wherever it was read.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let trying = match &self.state {
            State::Trying(rounds) => rounds.is_sound(self.chosen) && rounds.next().is_some(),
            State::Resting | State::Quiet => true,
        };
        trying
            && self.usual_ns.is_none_or(f64::is_finite)
            && self.judged.is_none()
            && (REST_NS..=REST_NS_MAX).contains(&self.rest_ns)
            && (CALM_NS..=CALM_NS_MAX).contains(&self.calm_ns)
    }

    /// Whether nothing was seen or chosen yet.
    pub(crate) fn is_new(&self) -> bool {
        self.last.is_none() && self.chosen == Tactic::Learned
    }

    /// Forgets the last trial, which only [`Trial::judge_as`] looks at.
    pub(crate) fn without_past(&self) -> Trial {
        Trial { judged: None, ..self.clone() }
    }

    /// Looks at what was done since the last sample. The verdict, when a trial has ended with it.
    pub fn look(&mut self, sample: Sample) -> Option<Verdict> {
        let verdict = match &self.state {
            State::Trying(_) => self.go_on(&sample),
            State::Quiet | State::Resting => {
                self.rest(&sample);
                None
            }
        };
        self.last = Some(sample);
        verdict
    }

    /// What the last trial would have come to with another tactic before and another favour; `None` when there was no trial, or that
    /// tactic was given up in it.
    pub(crate) fn judge_as(&self, before: Tactic, favour: Favour) -> Option<Verdict> {
        let (rounds, last) = (self.judged.as_ref()?, self.last?);
        (!rounds.given_up[before.index()]).then(|| rounds.verdict(last.at_ns, before, favour))
    }

    /// A look at a worker that tries nothing.
    fn rest(&mut self, sample: &Sample) {
        self.next_ns = sample.at_ns.saturating_add(LOOK_NS);
        let Some(last) = self.last else { return };
        let passed_ns = sample.at_ns.saturating_sub(last.at_ns);
        let waits = sample.waits.saturating_sub(last.waits).saturating_mul(1_000_000_000);
        let is_above = |a_second: u64| waits >= a_second.saturating_mul(passed_ns);
        let cost = Cost::between(&last, sample);
        if self.state == State::Quiet {
            if is_above(WAITS_A_SECOND_BUSY) && passed_ns > 0 {
                self.state = State::Resting;
            }
            return;
        }
        let Some(cost) = cost.filter(|_| is_above(WAITS_A_SECOND_QUIET)) else {
            self.state = State::Quiet;
            return;
        };
        let usual = self.usual_ns.get_or_insert(cost.time_ns);
        if cost.time_ns > *usual * SHIFT || cost.time_ns * SHIFT < *usual {
            self.shifted = self.shifted.saturating_add(1);
        } else {
            self.shifted = 0;
            *usual += (cost.time_ns - *usual) / 8.0;
        }
        let is_another = self.shifted >= SHIFT_LOOKS && sample.at_ns >= self.tried_ns.saturating_add(self.calm_ns);
        if is_another {
            self.calm_ns = self.calm_ns.saturating_mul(2).min(CALM_NS_MAX);
        }
        if is_another || sample.at_ns >= self.rests_until_ns {
            // Whatever becomes of this trial, the next one is as far away.
            self.tried_ns = sample.at_ns;
            self.rests_until_ns = sample.at_ns.saturating_add(self.rest_ns);
            self.rest_ns = self.rest_ns.saturating_mul(2).min(REST_NS_MAX);
            self.state = State::Trying(Rounds::new(Tactic::Learned));
            self.next_ns = sample.at_ns.saturating_add(SETTLE_NS);
        }
    }

    /// A look at a worker in the middle of a trial.
    fn go_on(&mut self, sample: &Sample) -> Option<Verdict> {
        let State::Trying(rounds) = &mut self.state else { return None };
        let since = rounds.began.or(self.last).unwrap_or(*sample);
        let passed_ns = sample.at_ns.saturating_sub(since.at_ns);
        let requests = sample.requests.saturating_sub(since.requests);
        let waits = sample.waits.saturating_sub(since.waits);
        self.next_ns = sample.at_ns.saturating_add(SETTLE_NS);
        if passed_ns > INTERRUPTED_NS {
            rounds.began = None;
            rounds.interruptions += 1;
            let is_idle = waits.saturating_mul(1_000_000_000) < WAITS_A_SECOND_QUIET.saturating_mul(passed_ns);
            if is_idle || rounds.interruptions > INTERRUPTIONS_MAX {
                self.give_trial_up(sample);
            }
            return None;
        }
        if rounds.began.is_none() {
            rounds.began = Some(*sample);
            self.next_ns = sample.at_ns.saturating_add(MEASURE_NS);
            return None;
        }
        if requests < MEASURE_REQUESTS && passed_ns < MEASURE_NS_MAX {
            self.next_ns = sample.at_ns.saturating_add(MEASURE_NS);
            return None;
        }
        let Some(cost) = Cost::between(&since, sample).filter(|_| requests >= REQUESTS_MIN) else {
            self.give_trial_up(sample);
            return None;
        };
        rounds.costs[rounds.turn.index()].push(cost);
        rounds.began = None;
        rounds.give_up(self.chosen);
        if let Some(next) = rounds.next() {
            rounds.turn = next;
            return None;
        }
        let State::Trying(rounds) = std::mem::replace(&mut self.state, State::Resting) else { return None };
        self.next_ns = sample.at_ns.saturating_add(LOOK_NS);
        let verdict = rounds.verdict(sample.at_ns, self.chosen, self.favour);
        self.judged = Some(rounds);
        self.chosen = verdict.after;
        (self.usual_ns, self.shifted) = (None, 0);
        if verdict.before != verdict.after {
            (self.rest_ns, self.calm_ns) = (REST_NS, CALM_NS);
            self.rests_until_ns = sample.at_ns.saturating_add(REST_NS);
        }
        Some(verdict)
    }

    /// A trial that nothing can come of: what was chosen before holds.
    fn give_trial_up(&mut self, sample: &Sample) {
        self.state = State::Resting;
        self.next_ns = sample.at_ns.saturating_add(LOOK_NS);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine on which each tactic has its price, in nanoseconds a request.
    pub(crate) struct Machine {
        pub(crate) prices: [(f64, f64); 3],
        /// A stretch may take so much more or less, as a share.
        noise: f64,
        random: u64,
        now: Sample,
    }

    impl Machine {
        pub(crate) fn new(prices: [(f64, f64); 3], noise: f64) -> Machine {
            Machine { prices, noise, random: 0x9e37_79b9_7f4a_7c15, now: Sample::default() }
        }

        fn random(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 11) as f64 / (1u64 << 53) as f64
        }

        /// Serves for so long, and says what was decided.
        fn run(&mut self, trial: &mut Trial, seconds: f64) -> Vec<Verdict> {
            self.drive(trial, seconds, Trial::look)
        }

        /// The same, with somebody between who shows the samples.
        pub(crate) fn drive(
            &mut self,
            trial: &mut Trial,
            seconds: f64,
            mut look: impl FnMut(&mut Trial, Sample) -> Option<Verdict>,
        ) -> Vec<Verdict> {
            let end_ns = self.now.at_ns + (seconds * 1e9) as u64;
            let mut verdicts = Vec::new();
            while self.now.at_ns < end_ns {
                let (time_ns, cpu_ns) = self.prices[trial.tactic().index()];
                let factor = 1.0 + self.noise * (2.0 * self.random() - 1.0);
                // A turn's worth of requests between two looks at the clock.
                let requests = (200_000.0 / time_ns).max(1.0).floor();
                self.now.requests += requests as u64;
                self.now.waits += requests as u64;
                self.now.at_ns += (requests * time_ns * factor) as u64;
                self.now.cpu_ns += (requests * cpu_ns * factor) as u64;
                if trial.is_due(self.now.at_ns) {
                    verdicts.extend(look(trial, self.now));
                }
            }
            verdicts
        }
    }

    fn chosen(favour: Favour, prices: [(f64, f64); 3]) -> Tactic {
        let mut trial = Trial::new(favour);
        Machine::new(prices, 0.1).run(&mut trial, 2.0);
        trial.chosen()
    }

    #[test]
    fn the_fastest_is_found_within_two_seconds() {
        for favour in Favour::ALL {
            assert_eq!(chosen(favour, [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)]), Tactic::Spin, "{favour}");
            assert_eq!(chosen(favour, [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)]), Tactic::Sleep, "{favour}");
            assert_eq!(chosen(favour, [(10e3, 8e3), (30e3, 12e3), (14e3, 14e3)]), Tactic::Learned, "{favour}");
        }
    }

    #[test]
    fn what_is_favoured_decides_between_the_fast_and_the_cheap() {
        let alike = [(100e3, 90e3), (101e3, 30e3), (100e3, 100e3)];
        assert_eq!(chosen(Favour::Latency, alike), Tactic::Learned);
        assert_eq!(chosen(Favour::Balance, alike), Tactic::Sleep);
        assert_eq!(chosen(Favour::Efficiency, alike), Tactic::Sleep);
        let dear = [(100e3, 90e3), (112e3, 30e3), (100e3, 100e3)];
        assert_eq!(chosen(Favour::Latency, dear), Tactic::Learned);
        assert_eq!(chosen(Favour::Balance, dear), Tactic::Learned);
        assert_eq!(chosen(Favour::Efficiency, dear), Tactic::Sleep);
    }

    /// Another load is met by another trial, at once and not when the rest is over.
    #[test]
    fn a_load_that_changes_is_tried_anew() {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)], 0.1);
        machine.run(&mut trial, 60.0);
        assert_eq!(trial.chosen(), Tactic::Spin);
        for round in 0..20 {
            machine.prices = [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)];
            machine.run(&mut trial, 2.0);
            assert_eq!(trial.chosen(), Tactic::Sleep, "round {round}");
            machine.prices = [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)];
            machine.run(&mut trial, 2.0);
            assert_eq!(trial.chosen(), Tactic::Spin, "round {round}");
        }
    }

    /// What was found for one load is not what holds for another that comes after a pause.
    #[test]
    fn another_load_behind_a_pause_is_tried_anew() {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(0.0, 0.0); 3], 0.1);
        for round in 0..20 {
            machine.prices = [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)];
            machine.run(&mut trial, 2.0);
            assert_eq!(trial.chosen(), Tactic::Sleep, "round {round}");
            machine.prices = [(50e6, 20e3); 3];
            machine.run(&mut trial, 5.0);
            machine.prices = [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)];
            machine.run(&mut trial, 2.0);
            assert_eq!(trial.chosen(), Tactic::Spin, "round {round}");
            machine.prices = [(50e6, 20e3); 3];
            machine.run(&mut trial, 5.0);
        }
    }

    #[test]
    fn another_favour_leaves_what_was_found_until_it_is_tried() {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(100e3, 90e3), (112e3, 30e3), (90e3, 100e3)], 0.05);
        machine.run(&mut trial, 30.0);
        assert_eq!(trial.chosen(), Tactic::Spin);
        trial.set_favour(Favour::Efficiency);
        assert_eq!((trial.chosen(), trial.tactic()), (Tactic::Spin, Tactic::Spin));
        machine.run(&mut trial, 3.0);
        assert_ne!(trial.chosen(), Tactic::Spin);
    }

    /// A device whose pace changes all the time, by which nothing else becomes the better choice, is not tried all the time.
    #[test]
    fn an_unsteady_device_is_left_alone_in_the_end() {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(0.0, 0.0); 3], 0.1);
        let mut trials = 0;
        for second in 0..120 {
            let time_ns = if second % 2 == 0 { 20e3 } else { 60e3 };
            machine.prices = [(time_ns, time_ns / 2.0), (time_ns, time_ns / 2.0), (time_ns * 1.2, time_ns)];
            trials += machine.run(&mut trial, 1.0).len();
        }
        assert!((4..20).contains(&trials), "{trials} trials");
        assert_eq!(trial.chosen(), Tactic::Learned);
    }

    #[test]
    fn without_a_load_nothing_is_tried_and_nothing_of_it_stays() {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)], 0.1);
        machine.run(&mut trial, 3.0);
        assert_eq!(trial.chosen(), Tactic::Sleep);
        machine.prices = [(50e6, 20e3); 3];
        assert_eq!(machine.run(&mut trial, 60.0), []);
        assert_eq!((trial.chosen(), trial.tactic()), (Tactic::Learned, Tactic::Learned));
        assert_eq!(trial.state, State::Quiet);
        // What was found holds as soon as there is a load again, and is tried before long.
        machine.prices = [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)];
        machine.run(&mut trial, 0.15);
        assert_eq!(trial.chosen(), Tactic::Sleep);
    }

    /// The share of time that trials take of a load which comes and goes, or lets a turn fail now and then.
    fn tried_share(mut prices: impl FnMut(u64) -> (f64, f64)) -> f64 {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(0.0, 0.0); 3], 0.1);
        let (mut tried_ns, mut last_ns) = (0, 0);
        while machine.now.at_ns < 100_000_000_000 {
            let is_trying = matches!(trial.state, State::Trying(_));
            machine.prices = [prices(machine.now.at_ns); 3];
            machine.run(&mut trial, 0.0005);
            tried_ns += if is_trying { machine.now.at_ns - last_ns } else { 0 };
            last_ns = machine.now.at_ns;
        }
        tried_ns as f64 / last_ns as f64
    }

    #[test]
    fn trials_that_come_to_nothing_are_not_begun_again_and_again() {
        // Bursts that are too short for a trial; a load about the least that counts; stalls in the middle.
        let bursts = |at_ns: u64| if at_ns % 1_000_000_000 < 200_000_000 { (200e3, 50e3) } else { (50e6, 50e3) };
        let sparse = |_| (900e3, 50e3);
        let stalls = |at_ns: u64| if at_ns % 200_000_000 < 100_000 { (60e6, 50e3) } else { (20e3, 10e3) };
        let shares = [tried_share(bursts), tried_share(sparse), tried_share(stalls)];
        assert!(shares.iter().all(|share| *share < 0.05), "{shares:?}");
    }

    /// A trial costs what it costs: the share of time in which another tactic than the chosen one is used.
    #[test]
    fn little_time_goes_into_trials() {
        let mut trial = Trial::new(Favour::Balance);
        let mut machine = Machine::new([(10e3, 9e3), (30e3, 12e3), (10e3, 10e3)], 0.1);
        let (mut tried_ns, mut last_ns) = (0, 0);
        while machine.now.at_ns < 100_000_000_000 {
            let is_trying = trial.tactic() != trial.chosen();
            machine.run(&mut trial, 0.0005);
            tried_ns += if is_trying { machine.now.at_ns - last_ns } else { 0 };
            last_ns = machine.now.at_ns;
        }
        assert!(tried_ns < 1_000_000_000, "{tried_ns} ns of 100 s");
    }

    fn prices() -> impl Strategy<Value = [(f64, f64); 3]> {
        let price = || (1e3..200e3_f64, 0.05..1.0_f64).prop_map(|(time, busy)| (time, time * busy));
        [price(), price(), price()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Of any stationary load: what is chosen is nearly as good as the best, and it is chosen once.
        #[test]
        fn a_stationary_load_has_one_choice_and_it_is_a_good_one(prices in prices(), noise in 0.0..0.15_f64) {
            for favour in Favour::ALL {
                let mut trial = Trial::new(favour);
                let mut machine = Machine::new(prices, noise);
                machine.run(&mut trial, 3.0);
                let late = machine.run(&mut trial, 60.0);
                let changes = late.iter().filter(|verdict| verdict.before != verdict.after).count();
                prop_assert!(changes <= 2, "{changes} changes in a minute: {late:?}");
                let best = prices.iter().map(|(time_ns, _)| *time_ns).fold(f64::INFINITY, f64::min);
                let (time_ns, cpu_ns) = prices[trial.chosen().index()];
                let tolerance = 1.0 + favour.tolerance().unwrap_or_default() + 3.0 * NOISE;
                prop_assert!(time_ns <= best * tolerance, "{favour}: {time_ns} for {best}");
                if favour.tolerance().is_some() {
                    let cheapest = prices.iter().filter(|(time_ns, _)| *time_ns <= best * 1.01);
                    let cheapest = cheapest.map(|(_, cpu_ns)| *cpu_ns).fold(f64::INFINITY, f64::min);
                    prop_assert!(cpu_ns <= 1.2 * cheapest, "{favour}: {cpu_ns} ns of processor time for {cheapest}");
                }
            }
        }

        /// Whatever comes in, in whatever order: something sane comes out, and the next look is never far.
        #[test]
        fn nonsense_makes_no_nonsense(samples in prop::collection::vec(any::<[u64; 4]>(), 0..400), small: bool) {
            let mut trial = Trial::new(Favour::Balance);
            for [at_ns, requests, waits, cpu_ns] in samples {
                let within = |value: u64| if small { value % 100_000_000 } else { value };
                let sample =
                    Sample { at_ns: within(at_ns), requests: within(requests), waits: within(waits), cpu_ns: within(cpu_ns) };
                trial.look(sample);
                prop_assert!(trial.next_ns <= sample.at_ns.saturating_add(LOOK_NS));
                prop_assert!(trial.without_past().is_sound());
                prop_assert!(Tactic::ALL.contains(&trial.chosen()));
            }
        }
    }
}
