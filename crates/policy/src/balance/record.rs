//! What the controller saw and decided: bounded, and enough to decide the same again.

use super::{Balance, Sample, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use utoipa::ToSchema;

/// Samples of one stretch: half a minute.
const SAMPLES_MAX: usize = 300;
/// Workers and rings in them, together: some 3 MiB.
const LOADS_MAX: usize = 32_768;
/// Stretches that are kept.
const STRETCHES_MAX: usize = 2;

/// Samples in a row: the controller as it was before the first of them, and what it decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// Its fields are the program's own.
    #[schema(value_type = Object)]
    before: Balance,
    samples: Vec<Sample>,
    verdicts: Vec<Verdict>,
}

impl Stretch {
    /// The controller decides again, from the same samples: what is recorded and what it comes to.
    #[must_use]
    pub fn replay(&self) -> (&[Verdict], Vec<Verdict>) {
        let mut balance = self.before.clone();
        (&self.verdicts, self.samples.iter().filter_map(|sample| balance.look(sample)).collect())
    }

    fn is_full(&self) -> bool {
        let loads: usize = self.samples.iter().map(|sample| sample.workers.len() + sample.rings.len()).sum();
        self.samples.len() >= SAMPLES_MAX || loads >= LOADS_MAX
    }
}

/// The latest stretches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record(VecDeque<Stretch>);

impl Record {
    /// Has the controller look at a sample, and notes both it and what came of it.
    pub fn look(&mut self, balance: &mut Balance, sample: Sample) -> Option<Verdict> {
        if self.0.back().is_none_or(Stretch::is_full) {
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
