//! Reports: what a run came to, for people and for programs.
//!
//! [`summary`] is the model; everything else renders it and computes nothing. A report reads a run and no guest, no server and
//! no clock, so that the same run always gives the same report.

pub mod agreement;
pub mod compare;
mod contest;
pub mod curves;
pub mod data;
mod notes;
pub mod output;
pub mod page;
pub mod reading;
mod summarize;
pub mod summary;
pub mod table;
pub mod words;

use crate::record::Run;
use summary::Summary;

/// A run with all that is said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The run.
    pub run: Run,
    /// Its medians, ratios and verdicts.
    pub summary: Summary,
    /// What they say, a sentence each.
    pub reading: Vec<String>,
}

impl Report {
    /// Sums up and reads `run`.
    pub fn of(run: Run) -> Self {
        let summary = Summary::of(&run);
        let reading = reading::of(&summary);
        Self { run, summary, reading }
    }
}

#[cfg(test)]
mod tests;
