//! Statistics of few samples: medians with their spread, ratios with intervals, and what noise hides.
//!
//! The promise: of two sides that are equal, at most one comparison in twenty says that they differ, with three rounds as with
//! more. It is kept by three means, each proven by simulation in the tests:
//!
//! - configurations take turns within a round, so their ratio is taken round by round, and drift is in none ([`Contrast`]);
//! - the noise of one workload is judged together with that of the others where they are alike ([`Pool`]);
//! - the ratio shown is that of the medians, and the interval shown always holds it ([`Ratio`]).

mod contrast;
mod latency;
mod pool;
mod spread;
mod student;

pub use contrast::{Contrast, Pool};
pub use latency::Latency;
pub(crate) use latency::latencies;
pub use spread::{Interval, Ratio, Spread};

/// `part / whole`; `None` when that says nothing (a zero or unknown `whole`).
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    let ratio = part / whole;
    (whole != 0.0 && ratio.is_finite()).then_some(ratio)
}

/// The geometric mean of positive `values`; `None` when there are none. Others are left out.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().filter_map(contrast::log).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests;
