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

/// A recorded trial, and what another favour would have made of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// What was decided.
    pub recorded: Verdict,
    /// The same again, from the same samples.
    pub again: Option<Verdict>,
    /// With what is favoured now.
    pub instead: Option<Verdict>,
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

    /// Decides again. A recorded decision that is not made again has no `again`; there is none where a program of another version
    /// recorded it with another rule.
    #[must_use]
    pub fn replay(&self, favour: Option<Favour>) -> Vec<Replayed> {
        let mut trial = self.before.clone();
        let mut other = self.before.chosen();
        let mut again = Vec::new();
        for sample in &self.samples {
            let Some(verdict) = trial.look(*sample) else { continue };
            let instead = favour.and_then(|favour| trial.judge_as(other, favour));
            other = instead.map_or(other, |verdict| verdict.after);
            again.push((verdict, instead));
        }
        let of = |recorded: &Verdict| {
            let found = again.iter().find(|(verdict, _)| verdict.at_ns == recorded.at_ns);
            Replayed {
                recorded: *recorded,
                again: found.map(|(verdict, _)| *verdict).filter(|verdict| verdict == recorded),
                instead: found.and_then(|(_, instead)| *instead),
            }
        };
        self.verdicts.iter().map(of).collect()
    }
}

/// The journal of one worker.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    stretches: VecDeque<Stretch>,
    verdicts: VecDeque<Verdict>,
    trials: u64,
    changes: u64,
    /// Samples that follow do not belong to the stretch before.
    is_cut: bool,
}

impl Journal {
    /// Shows a sample to the policy and writes down what came of it.
    pub fn look(&mut self, trial: &mut Trial, sample: Sample) -> Option<Verdict> {
        let is_full = self.stretches.back().is_none_or(|stretch| stretch.samples.len() >= SAMPLES_MAX);
        if is_full || std::mem::take(&mut self.is_cut) {
            if self.stretches.len() == STRETCHES_MAX {
                self.stretches.pop_front();
            }
            let before = trial.clone();
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

    /// Since when the present tactic holds, in nanoseconds; `None` when it is the one before any trial.
    #[must_use]
    pub fn since_ns(&self) -> Option<u64> {
        let changed = self.verdicts.iter().rev().find(|verdict| verdict.before != verdict.after);
        changed.map(|verdict| verdict.at_ns)
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
        let replayed: Vec<Replayed> = stretches.iter().flat_map(|stretch| stretch.replay(None)).collect();
        assert_eq!(replayed.len() as u64, journal.trials());
        for decision in replayed {
            assert_eq!(decision.again, Some(decision.recorded));
            assert_eq!(decision.instead, None);
        }
    }

    #[test]
    fn another_favour_decides_otherwise_by_the_same_record() {
        let journal = record(Favour::Balance, 2.0);
        let stretches = journal.stretches();
        let instead = |favour| -> Vec<Tactic> {
            let replayed = stretches.iter().flat_map(|stretch| stretch.replay(Some(favour)));
            replayed.filter_map(|decision| decision.instead).map(|verdict| verdict.after).collect()
        };
        assert!(!instead(Favour::Balance).contains(&Tactic::Sleep), "it is 10 % slower");
        assert!(instead(Favour::Efficiency).contains(&Tactic::Sleep), "and takes a fifth of the processor time");
    }

    #[test]
    fn a_journal_has_a_bound_and_its_end_is_what_is_kept() {
        let journal = record(Favour::Balance, 60.0);
        assert_eq!(journal.verdicts().len(), VERDICTS_MAX);
        let samples: usize = journal.stretches().iter().map(|stretch| stretch.samples.len()).sum();
        assert!(samples <= SAMPLES_MAX * STRETCHES_MAX);
        assert_eq!(journal.stretches().last().unwrap().verdicts.last(), journal.verdicts().last());
        for decision in journal.stretches().iter().flat_map(|stretch| stretch.replay(None)) {
            assert_eq!(decision.again, Some(decision.recorded));
        }
    }
}
