//! Trying tactics against each other: what cannot be seen from inside the present one has to be tried.
//!
//! A worker that sleeps never sees how soon a client would have been back had it looked; one that looks keeps a processor from whoever
//! makes its completions. So tactics take turns of some milliseconds each, round after round, and are compared by what they did:
//! requests, and processor time for them. It is hill climbing on a rate under noise, as thread pools do it (Hellerstein, Morrison,
//! Eilebrecht: "Applying control theory in the real world: experience with building a controller for the .NET thread pool", 2010),
//! with two changes: ratios are taken within a round, so that a load that drifts changes all of them alike, and a challenger has to win
//! nearly every round, so that noise changes nothing.

mod rounds;
#[cfg(test)]
pub(crate) mod tests;

pub use rounds::{Cost, Sample, Tactic, Verdict};

use rounds::Rounds;
use serde::{Deserialize, Serialize};
use values::Favour;

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
/// ...unless it has fewer than this.
const REQUESTS_MIN: u64 = 8;
/// A turn that takes so long has lost its load. A shorter stall counts like any other time: a tactic may be what stalls.
const GONE_NS: u64 = 120_000_000;
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

    /// Ends what is being tried without a verdict. What is chosen holds.
    pub(crate) fn stop(&mut self) {
        if matches!(self.state, State::Trying(_)) {
            self.state = State::Resting;
        }
        self.shifted = 0;
    }

    /// Asks for no sample for the usual time.
    pub fn look_later(&mut self, now_ns: u64) {
        self.next_ns = now_ns.saturating_add(LOOK_NS);
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
            (self.state, self.shifted) = (State::Quiet, 0);
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
        self.next_ns = sample.at_ns.saturating_add(SETTLE_NS);
        if passed_ns > GONE_NS {
            self.state = State::Resting;
            return None;
        }
        if rounds.began.is_none() {
            rounds.began = Some(*sample);
            self.next_ns = sample.at_ns.saturating_add(MEASURE_NS);
            return None;
        }
        let is_long = passed_ns >= MEASURE_NS_MAX && requests >= REQUESTS_MIN;
        let cost = Cost::between(&since, sample).filter(|_| requests >= MEASURE_REQUESTS || is_long);
        let Some(cost) = cost else {
            self.next_ns = sample.at_ns.saturating_add(MEASURE_NS);
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
}
