//! Medians and worst cases, and the last line of a run.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

/// How long things took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<f64>);

/// Median and worst of some times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Times among which these are.
    pub(crate) count: usize,
    /// The median; of an even number the upper one.
    pub(crate) median_ms: f64,
    /// The worst.
    pub(crate) worst_ms: f64,
}

impl Times {
    /// Adds one.
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e3);
    }

    /// Median and worst, if there is any.
    pub(crate) fn spread(&self) -> Option<Spread> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        Some(Spread { count: sorted.len(), median_ms: median(&self.0)?, worst_ms: *sorted.last()? })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "median {:.1} ms, worst {:.1} ms", self.median_ms, self.worst_ms)
    }
}

/// The median; of an even number of values the upper one.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// What was lost, in words.
pub(crate) fn lost(result: Result<()>) -> Option<String> {
    result.err().map(|error| format!("{error:#}"))
}

/// Ends a run: prints its last line or JSON document, and fails if anything was lost.
pub(crate) fn finish<R: Serialize + fmt::Display>(report: &R, json: bool, lost: Option<&str>) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        println!("{report}");
    }
    match lost {
        None => Ok(()),
        Some(what) => bail!("{what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_worst() {
        let mut times = Times::default();
        assert_eq!(times.spread(), None);
        for ms in [30, 10, 20, 400] {
            times.push(Duration::from_millis(ms));
        }
        assert_eq!(times.spread(), Some(Spread { count: 4, median_ms: 30.0, worst_ms: 400.0 }));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    }
}
