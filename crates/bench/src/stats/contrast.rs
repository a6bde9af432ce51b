//! How two sides compare: the logarithm of their ratio, and how sure it is.
//!
//! Ratios are compared by their logarithms, in which twice as fast and half as fast lie equally far from 1, and noise that is
//! a part of what is measured has the same size everywhere.

use std::collections::BTreeMap;

use super::spread::{Interval, Ratio};
use super::student;

/// The logarithm of a ratio as the rounds have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    /// Mean of the logarithms.
    pub log_ratio: f64,
    /// Variance of one round's logarithm, at least 0.
    pub variance: f64,
    /// Degrees of freedom of [`Contrast::variance`], at least 1.
    pub freedom: f64,
    /// Variance of [`Contrast::log_ratio`] as a part of that of one round.
    pub scale: f64,
}

/// What is typical of the noise between two sides, over all workloads: a variance, and how many degrees of freedom it is
/// worth in the judgement of one workload. See [`Pool::of`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pool {
    /// The typical variance of one round.
    pub variance: f64,
    /// What it is worth; 0 where the workloads have nothing in common.
    pub freedom: f64,
}

impl Contrast {
    /// Of rounds in which both sides were measured, one after the other: each round has a ratio of its own, and what changes
    /// from round to round for both is in none of them. `None` with less than two rounds, or a value that is not positive.
    pub fn paired(rounds: &[(f64, f64)]) -> Option<Self> {
        let logs: Option<Vec<f64>> = rounds.iter().map(|&(part, whole)| Some(log(part)? - log(whole)?)).collect();
        Self::of_logs(&logs?)
    }

    /// Of what two sides measured, by round. Where failures left hardly a round in common, what there is is compared as it
    /// stands.
    pub fn of_rounds(part: &BTreeMap<u32, f64>, whole: &BTreeMap<u32, f64>) -> Option<Self> {
        let shared: Vec<(f64, f64)> = part.iter().filter_map(|(r, part)| Some((*part, *whole.get(r)?))).collect();
        if shared.len() < 2 {
            let values = |rounds: &BTreeMap<u32, f64>| rounds.values().copied().collect::<Vec<f64>>();
            return Self::unpaired(&values(part), &values(whole));
        }
        Self::paired(&shared)
    }

    /// Of logarithms of ratios, one a round; `None` with less than two.
    pub fn of_logs(logs: &[f64]) -> Option<Self> {
        let (log_ratio, squares) = mean_and_squares(logs)?;
        let freedom = logs.len() as f64 - 1.0;
        Some(Self { log_ratio, variance: squares / freedom, freedom, scale: 1.0 / logs.len() as f64 })
    }

    /// Of sides that were measured apart, as in two runs: their noise is taken to be of one size. `None` with less than two
    /// values on a side, or a value that is not positive.
    pub fn unpaired(part: &[f64], whole: &[f64]) -> Option<Self> {
        let logs = |values: &[f64]| values.iter().map(|&value| log(value)).collect::<Option<Vec<f64>>>();
        let (part, whole) = (logs(part)?, logs(whole)?);
        let (of_part, of_whole) = (mean_and_squares(&part)?, mean_and_squares(&whole)?);
        let (parts, wholes) = (part.len() as f64, whole.len() as f64);
        let freedom = parts + wholes - 2.0;
        Some(Self {
            log_ratio: of_part.0 - of_whole.0,
            variance: (of_part.1 + of_whole.1) / freedom,
            freedom,
            scale: 1.0 / parts + 1.0 / wholes,
        })
    }

    /// Where the ratio lies with a confidence of 95 %: Student's interval, with the noise of this workload and that of the
    /// others weighed by their degrees of freedom.
    pub fn interval(&self, pool: Pool) -> Interval {
        let freedom = self.freedom + pool.freedom;
        let mixed = (self.freedom * self.variance + pool.freedom * pool.variance) / freedom;
        // Never less than the workload's own: one round that went astray would otherwise be taken for an effect.
        let variance = mixed.max(self.variance);
        let reach = student::reach(freedom) * (variance * self.scale).sqrt();
        // Finite, so that it can be written down as a number.
        Interval { low: (self.log_ratio - reach).exp(), high: (self.log_ratio + reach).exp().min(f64::MAX) }
    }
}

impl Ratio {
    /// The ratio of two medians with the interval of `contrast`, widened to hold it: the median of few rounds may lie apart
    /// from their mean, and a ratio outside its own interval would decide too much.
    pub fn of(part: f64, whole: f64, contrast: Option<Contrast>, pool: Pool) -> Option<Self> {
        let value = part / whole;
        value.is_finite().then(|| {
            let interval = contrast
                .map(|contrast| contrast.interval(pool))
                .map(|interval| Interval { low: interval.low.min(value), high: interval.high.max(value) });
            Self { value, interval }
        })
    }
}

/// The logarithm of a quantity that must be positive to have one.
pub(super) fn log(value: f64) -> Option<f64> {
    (value > 0.0 && value.is_finite()).then(|| value.ln())
}

/// The mean of at least two values, and the sum of squared distances from it.
pub(super) fn mean_and_squares(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Some((mean, values.iter().map(|value| (value - mean).powi(2)).sum()))
}
