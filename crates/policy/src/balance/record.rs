//! What the controller saw and decided: bounded, and enough to decide the same again.

use super::{Balance, Sample, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Samples of one stretch: half a minute.
const SAMPLES_MAX: usize = 300;
/// Stretches that are kept.
const STRETCHES_MAX: usize = 2;

/// Samples in a row: the controller as it was before the first of them, and what it decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    before: Balance,
    samples: Vec<Sample>,
    verdicts: Vec<Verdict>,
}

impl Stretch {
    /// The controller decides again, from the same samples.
    ///
    /// # Errors
    /// It comes to something else: what it comes to.
    pub fn replay(&self) -> Result<&[Verdict], Vec<Verdict>> {
        let mut balance = self.before.clone();
        let verdicts: Vec<Verdict> = self.samples.iter().filter_map(|sample| balance.look(sample)).collect();
        if verdicts == self.verdicts { Ok(&self.verdicts) } else { Err(verdicts) }
    }
}

/// The latest stretches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record(VecDeque<Stretch>);

impl Record {
    /// Has the controller look at a sample, and notes both it and what came of it.
    pub fn look(&mut self, balance: &mut Balance, sample: Sample) -> Option<Verdict> {
        if self.0.back().is_none_or(|stretch| stretch.samples.len() >= SAMPLES_MAX) {
            self.cut(balance);
        }
        let verdict = balance.look(&sample);
        if let Some(stretch) = self.0.back_mut() {
            stretch.samples.push(sample);
            stretch.verdicts.extend(verdict.clone());
        }
        verdict
    }

    /// Begins a stretch: the controller was changed from outside.
    pub fn cut(&mut self, balance: &Balance) {
        self.0.push_back(Stretch { before: balance.clone(), samples: Vec::new(), verdicts: Vec::new() });
        while self.0.len() > STRETCHES_MAX {
            self.0.pop_front();
        }
    }

    /// From the earliest to the latest.
    pub fn stretches(&self) -> impl Iterator<Item = &Stretch> {
        self.0.iter()
    }
}
