//! What is said about one quantity over the rounds, and about the ratio of two.

use std::f64::consts::FRAC_PI_2;

use serde::{Deserialize, Serialize};

use super::contrast::{log, mean_and_squares};
use super::student;

/// The median of a quantity over the rounds, and how far the rounds lay apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// How many rounds it was measured in, at least 1.
    pub rounds: u32,
    /// Half the width of a 95 % interval of the median, as a part of it (0.05: ±5 %); `None` with less than two rounds, or
    /// where a value is not positive.
    pub uncertainty: Option<f64>,
}

/// A ratio of two medians, and where the true ratio lies with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Judged")]
pub struct Ratio {
    /// The ratio of the medians.
    pub value: f64,
    /// The least and the greatest ratio that the rounds admit, `value` among them; `None` with less than two rounds, which
    /// say nothing about noise.
    pub interval: Option<Interval>,
}

/// A ratio as it is written, with the verdict that a reader would else have to repeat.
#[derive(Serialize)]
struct Judged {
    value: f64,
    interval: Option<Interval>,
    hidden: bool,
}

impl From<Ratio> for Judged {
    fn from(ratio: Ratio) -> Self {
        Self { value: ratio.value, interval: ratio.interval, hidden: ratio.is_hidden() }
    }
}

/// A range of ratios.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Spread {
    /// Sums up `values`; `None` when there are none. Values that are not finite are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        let rounds = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
        Some(Self { median, min, max, rounds, uncertainty: uncertainty(&sorted) })
    }

    /// The distance of the largest from the smallest value as a part of the median; `None` with less than two rounds or a
    /// median of 0.
    pub fn relative(&self) -> Option<f64> {
        (self.rounds > 1 && self.median != 0.0).then(|| (self.max - self.min) / self.median)
    }
}

/// Half the width of the median's interval, as a part of it.
///
/// Of normal noise the median is less sure than the mean by a factor that grows with the rounds to √(π/2), and is 1 for two.
fn uncertainty(values: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = values.iter().map(|&value| log(value)).collect::<Option<_>>()?;
    let (_, squares) = mean_and_squares(&logs)?;
    let freedom = logs.len() as f64 - 1.0;
    let of_median = if logs.len() == 2 { 1.0 } else { FRAC_PI_2.sqrt() };
    let error = (squares / freedom / logs.len() as f64).sqrt() * of_median;
    Some((student::reach(freedom) * error).exp_m1().min(f64::MAX))
}

impl Ratio {
    /// Whether noise hides which of the two is larger: the interval includes 1, or there is none.
    pub fn is_hidden(&self) -> bool {
        self.interval.is_none_or(|interval| interval.low <= 1.0 && interval.high >= 1.0)
    }
}
