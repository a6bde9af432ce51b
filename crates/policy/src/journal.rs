//! What a policy saw and decided: bounded, and enough to make the same decisions again.

use crate::trial::{Sample, Tactic, Trial, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use utoipa::ToSchema;
use values::Favour;

/// Samples of one stretch, at most: some seconds of trials, or a minute of rest.
const SAMPLES_MAX: usize = 1024;
/// Stretches that are kept.
const STRETCHES_MAX: usize = 8;
/// Decisions that are kept for those who ask why.
const VERDICTS_MAX: usize = 16;

/// A stretch of samples: the policy as it was before the first of them, and what it decided at which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// The policy's state before the first sample.
    #[schema(value_type = Object)]
    before: Trial,
    /// What it was shown.
    samples: Vec<Sample>,
    /// What it decided.
    verdicts: Vec<Verdict>,
}

/// A decision that was recorded or is made again, and what another favour would have made of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// What was decided; `None` for a decision that the record does not have.
    pub recorded: Option<Verdict>,
    /// The decision that is made from the same samples; `None` when it is not made.
    pub again: Option<Verdict>,
    /// The decision with another favour; `None` when nobody asked, or when the tactic that it would have started from was given up.
    pub instead: Option<Verdict>,
}

impl Replayed {
    /// Whether the same was decided again.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.recorded == self.again
    }
}

impl Stretch {
    /// Samples in it.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// Decisions in it.
    #[must_use]
    pub fn decisions(&self) -> usize {
        self.verdicts.len()
    }

    /// What is favoured in it.
    #[must_use]
    pub fn favour(&self) -> Favour {
        self.before.favour()
    }

    /// Whether a policy can have written this, wherever it was read.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let grows = |one: &Sample, next: &Sample| {
            one.at_ns <= next.at_ns
                && one.requests <= next.requests
                && one.waits <= next.waits
                && one.cpu_ns <= next.cpu_ns
        };
        self.before.is_sound()
            && self.samples.len() <= SAMPLES_MAX
            && self.verdicts.len() <= self.samples.len()
            && self.samples.is_sorted_by(grows)
            && self.verdicts.is_sorted_by(|one, next| one.at_ns < next.at_ns)
    }

    /// Decides again, and as if `instead` had been favoured, from the tactic that this would have chosen before: at the beginning the one
    /// that was chosen then.
    #[must_use]
    pub fn replay(&self, instead: Option<Favour>) -> Vec<Replayed> {
        replay(std::slice::from_ref(self), instead)
    }

    fn replay_from(&self, other: &mut Tactic, instead: Option<Favour>) -> Vec<Replayed> {
        let mut trial = self.before.clone();
        if trial.is_new() {
            *other = trial.incumbent();
        }
        let mut recorded = self.verdicts.iter().copied().peekable();
        let mut replayed = Vec::new();
        let missed = |recorded| Replayed { recorded: Some(recorded), again: None, instead: None };
        for sample in &self.samples {
            let Some(verdict) = trial.look(*sample) else { continue };
            while let Some(earlier) = recorded.next_if(|earlier| earlier.at_ns < verdict.at_ns) {
                replayed.push(missed(earlier));
            }
            let instead = instead.and_then(|favour| trial.judge_as(*other, favour));
            *other = instead.map_or(*other, |verdict| verdict.after);
            let recorded = recorded.next_if(|recorded| recorded.at_ns == verdict.at_ns);
            replayed.push(Replayed { recorded, again: Some(verdict), instead });
        }
        replayed.extend(recorded.map(missed));
        replayed
    }
}

/// Replays the stretches of one worker, the oldest first.
#[must_use]
pub fn replay(stretches: &[Stretch], instead: Option<Favour>) -> Vec<Replayed> {
    let Some(first) = stretches.first() else { return Vec::new() };
    let mut other = first.before.incumbent();
    stretches.iter().flat_map(|stretch| stretch.replay_from(&mut other, instead)).collect()
}

/// The tactic that holds, since when, and by which decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// The tactic.
    pub tactic: Tactic,
    /// Since when, in nanoseconds of the samples' clock.
    pub since_ns: u64,
    /// What chose it; `None` when there was no trial, or when it came back with its load.
    pub by: Option<Verdict>,
}

/// The journal of one worker.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    stretches: VecDeque<Stretch>,
    verdicts: VecDeque<Verdict>,
    held: Option<Held>,
    trials: u64,
    changes: u64,
    /// Samples that follow do not belong to the stretch before.
    is_cut: bool,
}

impl Journal {
    /// Shows a sample to the policy and writes down what came of it.
    pub fn look(&mut self, trial: &mut Trial, sample: Sample) -> Option<Verdict> {
        let is_cut = std::mem::take(&mut self.is_cut);
        if is_cut || self.stretches.back().is_none_or(|stretch| stretch.samples.len() >= SAMPLES_MAX) {
            if self.stretches.len() == STRETCHES_MAX {
                self.stretches.pop_front();
            }
            let before = trial.without_past();
            self.stretches.push_back(Stretch { before, samples: Vec::new(), verdicts: Vec::new() });
        }
        let verdict = trial.look(sample);
        if let Some(stretch) = self.stretches.back_mut() {
            stretch.samples.push(sample);
            stretch.verdicts.extend(verdict);
        }
        if let Some(verdict) = verdict {
            self.trials += 1;
            self.changes += u64::from(verdict.before != verdict.after);
            if self.verdicts.len() == VERDICTS_MAX {
                self.verdicts.pop_front();
            }
            self.verdicts.push_back(verdict);
        }
        if is_cut && self.stretches.back().is_some_and(|stretch| stretch.before.is_new()) {
            self.held = None;
        }
        let tactic = trial.chosen();
        if self.held.is_none_or(|held| held.tactic != tactic) {
            let by = verdict.filter(|verdict| verdict.before != verdict.after);
            self.held = Some(Held { tactic, since_ns: sample.at_ns, by });
        }
        verdict
    }

    /// Somebody else has changed the policy's state.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// All that is kept, the oldest first.
    #[must_use]
    pub fn stretches(&self) -> Vec<Stretch> {
        self.stretches.iter().cloned().collect()
    }

    /// The last decisions, the latest last.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.verdicts.iter().copied().collect()
    }

    /// Trials that have ended with a decision.
    #[must_use]
    pub fn trials(&self) -> u64 {
        self.trials
    }

    /// Those that changed the tactic.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The tactic that held at the last look; `None` before the first.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.held
    }
}

impl Verdict {
    /// Why, in words with numbers.
    #[must_use]
    pub fn why(&self) -> String {
        let of = |tactic: Tactic| match self.cost(tactic) {
            Some(cost) => format!(
                "{tactic} {:.2}x the requests at {:.2}x the processor time each",
                1.0 / cost.time_ns.max(f64::EPSILON),
                cost.cpu_ns
            ),
            None => format!("{tactic} much slower, given up"),
        };
        let others: Vec<String> = Tactic::ALL.into_iter().filter(|tactic| *tactic != self.before).map(of).collect();
        format!(
            "{} took {:.1} us a request and {:.1} us of processor time; {}",
            self.before,
            self.base.time_ns / 1e3,
            self.base.cpu_ns / 1e3,
            others.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::tests::Machine;

    const SPIN_WINS: [(f64, f64); 3] = [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)];
    const SLEEP_IS_CHEAP: [(f64, f64); 3] = [(100e3, 90e3), (110e3, 20e3), (100e3, 100e3)];

    fn record(favour: Favour, seconds: f64) -> Journal {
        let (mut trial, mut journal) = (Trial::new(favour), Journal::default());
        let mut machine = Machine::new(SPIN_WINS, 0.1);
        for _ in 0..6 {
            for prices in [SPIN_WINS, SLEEP_IS_CHEAP] {
                machine.prices = prices;
                machine.drive(&mut trial, seconds, |trial, sample| journal.look(trial, sample));
            }
        }
        journal
    }

    /// By way of a file, as an operator does it.
    #[test]
    fn a_saved_record_gives_the_same_decisions() {
        let journal = record(Favour::Balance, 2.0);
        assert!(journal.changes() >= 6, "{}", journal.changes());
        let saved = serde_json::to_string(&journal.stretches()).unwrap();
        let stretches: Vec<Stretch> = serde_json::from_str(&saved).unwrap();
        assert_eq!(stretches, journal.stretches());
        assert!(stretches.iter().all(Stretch::is_sound));
        let replayed = replay(&stretches, None);
        assert_eq!(replayed.len() as u64, journal.trials());
        assert!(replayed.iter().all(|decision| decision.is_same() && decision.instead.is_none()));
    }

    #[test]
    fn a_record_with_a_decision_too_much_or_too_few_is_told_from_the_right_one() {
        let mut stretch = record(Favour::Balance, 2.0).stretches().remove(0);
        let right = stretch.replay(None);
        let taken = stretch.verdicts.remove(1);
        let fewer = stretch.replay(None);
        assert_eq!(fewer.len(), right.len());
        assert_eq!((fewer[1].recorded, fewer[1].again), (None, Some(taken)));
        stretch.verdicts.insert(1, Verdict { at_ns: taken.at_ns + 1, ..taken });
        let more = stretch.replay(None);
        assert_eq!(more.iter().filter(|decision| !decision.is_same()).count(), 2);
    }

    #[test]
    fn another_favour_decides_otherwise_by_the_same_record() {
        let stretches = record(Favour::Balance, 2.0).stretches();
        let instead = |favour| -> Vec<Tactic> {
            let replayed = replay(&stretches, Some(favour)).into_iter();
            replayed.filter_map(|decision| decision.instead).map(|verdict| verdict.after).collect()
        };
        assert!(!instead(Favour::Balance).contains(&Tactic::Sleep), "it is 10 % slower");
        assert!(instead(Favour::Efficiency).contains(&Tactic::Sleep), "and takes a fifth of the processor time");
    }

    #[test]
    fn a_journal_has_a_bound_and_its_end_is_what_is_kept() {
        let journal = record(Favour::Balance, 60.0);
        assert_eq!(journal.verdicts().len(), VERDICTS_MAX);
        let samples: usize = journal.stretches().iter().map(Stretch::samples).sum();
        assert!(samples <= SAMPLES_MAX * STRETCHES_MAX);
        let stretches = journal.stretches();
        let last = stretches.iter().rev().find_map(|stretch| stretch.verdicts.last());
        assert_eq!(last, journal.verdicts().last());
        assert!(replay(&journal.stretches(), None).iter().all(Replayed::is_same));
    }

    #[test]
    fn what_holds_is_known_with_its_cause_however_often_it_is_confirmed() {
        let (mut trial, mut journal) = (Trial::new(Favour::Balance), Journal::default());
        let mut machine = Machine::new(SPIN_WINS, 0.1);
        machine.drive(&mut trial, 4000.0, |trial, sample| journal.look(trial, sample));
        let held = journal.held().unwrap();
        assert_eq!((held.tactic, held.by.map(|verdict| verdict.after)), (Tactic::Spin, Some(Tactic::Spin)));
        assert!(
            held.since_ns < 1_000_000_000 && journal.verdicts().iter().all(|verdict| verdict.at_ns > held.since_ns)
        );
        // Without a load it is another, and nobody chose it.
        machine.prices = [(50e6, 20e3); 3];
        machine.drive(&mut trial, 5.0, |trial, sample| journal.look(trial, sample));
        let held = journal.held().unwrap();
        assert_eq!((held.tactic, held.by), (Tactic::Learned, None));
        assert!(held.since_ns > 4_000_000_000_000);
    }

    /// Whatever is changed from outside, and in whatever state: the record is one that a policy can have made, and is decided again.
    #[test]
    fn a_policy_that_is_changed_from_outside_is_recorded_anew() {
        let (mut trial, mut journal) = (Trial::new(Favour::Balance), Journal::default());
        let mut machine = Machine::new(SPIN_WINS, 0.1);
        let look = |journal: &mut Journal, trial: &mut Trial, machine: &mut Machine, seconds| {
            machine.drive(trial, seconds, |trial, sample| journal.look(trial, sample));
        };
        look(&mut journal, &mut trial, &mut machine, 2.0);
        assert_eq!(journal.held().map(|held| (held.tactic, held.by.is_some())), Some((Tactic::Spin, true)));
        // Another favour keeps what holds, with its cause.
        trial.set_favour(Favour::Latency);
        journal.cut();
        look(&mut journal, &mut trial, &mut machine, 0.07);
        assert_eq!(journal.stretches().last().map(Stretch::favour), Some(Favour::Latency));
        assert_eq!(journal.held().map(|held| (held.tactic, held.by.is_some())), Some((Tactic::Spin, true)));
        look(&mut journal, &mut trial, &mut machine, 2.0);
        // Another mode begins without knowledge, and the tactic of before holds no more.
        let cuts = journal.stretches().len();
        trial = Trial::new(Favour::Latency);
        journal.cut();
        look(&mut journal, &mut trial, &mut machine, 0.001);
        assert_eq!(journal.held().map(|held| (held.tactic, held.by)), Some((Tactic::Learned, None)));
        assert_eq!(journal.stretches().len(), cuts + 1);
        look(&mut journal, &mut trial, &mut machine, 2.0);
        let stretches = journal.stretches();
        assert!(stretches.iter().all(Stretch::is_sound));
        let replayed = replay(&stretches, Some(Favour::Efficiency));
        assert!(replayed.iter().all(Replayed::is_same));
        // As the policy does, the one that might have been begins with nothing.
        let begins = stretches[cuts].replay(Some(Favour::Efficiency));
        assert_eq!(begins[0].instead.map(|verdict| verdict.before), Some(Tactic::Learned));
        assert!(replayed.contains(&begins[0]));
    }

    /// What is no record of ours is refused, and nothing that is let in does harm.
    #[test]
    fn a_record_that_lies_is_told_from_one_that_does_not() {
        let saved = serde_json::to_value(record(Favour::Balance, 2.0).stretches()).unwrap();
        let sound = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut stretch = saved[0].clone();
            change(&mut stretch);
            serde_json::from_value::<Stretch>(stretch).is_ok_and(|stretch| {
                let _ = stretch.is_sound() && !stretch.replay(Some(Favour::Latency)).is_empty();
                stretch.is_sound()
            })
        };
        let cost = serde_json::json!({ "time_ns": 1.0, "cpu_ns": 1.0 });
        let eight = vec![cost; 8];
        let trying = |costs: serde_json::Value, given_up: [bool; 3]| serde_json::json!({ "trying": { "costs": costs, "given_up": given_up, "turn": "learned", "began": null } });
        assert!(sound(&|_| {}));
        assert!(sound(&|stretch| stretch["before"]["next_ns"] = u64::MAX.into()));
        assert!(!sound(&|stretch| stretch["before"]["rest_ns"] = 0.into()));
        assert!(!sound(&|stretch| stretch["before"]["rest_ns"] = u64::MAX.into()));
        assert!(!sound(
            &|stretch| stretch["before"]["state"] = trying(serde_json::json!([[], eight, eight]), [true, false, false])
        ));
        assert!(!sound(
            &|stretch| stretch["before"]["state"] = trying(serde_json::json!([eight, eight, eight]), [false; 3])
        ));
        assert!(!sound(&|stretch| stretch["before"]["state"] = trying(serde_json::json!([[], [], []]), [true; 3])));
        assert!(sound(&|stretch| stretch["before"]["state"] = trying(serde_json::json!([[], [], []]), [false; 3])));
        assert!(!sound(&|stretch| stretch["samples"][1]["requests"] = u64::MAX.into()));
        assert!(!sound(&|stretch| stretch["samples"] = serde_json::json!([])));
        assert!(!sound(&|stretch| stretch["before"]["state"] = "asleep".into()));
        assert!(!sound(&|stretch| stretch["before"]["more"] = 1.into()));
    }
}
