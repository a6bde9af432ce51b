//! Figures from samples: latency percentiles, medians with their spread, ratios.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies up to a minute are told apart; longer ones count as a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// An empty histogram of latencies in nanoseconds, three significant digits.
pub(crate) fn latencies() -> Histogram<u64> {
    // The bounds are constants that the crate accepts; a failure would show in the first test.
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds")
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many requests these figures describe.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The slowest request.
    pub max_us: f64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let quantile_us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1000.0,
            p50_us: quantile_us(0.5),
            p90_us: quantile_us(0.9),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            max_us: histogram.max() as f64 / 1000.0,
        }
    }
}

/// The median of several runs and how far they lay apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest sample.
    pub min: f64,
    /// The middle sample, or the mean of the two middle ones.
    pub median: f64,
    /// The largest sample.
    pub max: f64,
}

impl Spread {
    /// Sums up `samples`; `None` when there are none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { min: first, median, max: last })
    }
}

/// `part / whole`; `None` when that says nothing (a zero or unknown `whole`).
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    let ratio = part / whole;
    (whole != 0.0 && ratio.is_finite()).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let odd = Spread::of([9.0, 1.0, 2.0]).unwrap();
        assert_eq!(odd, Spread { min: 1.0, median: 2.0, max: 9.0 });
        let even = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(even, Spread { min: 1.0, median: 2.5, max: 4.0 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        assert_eq!(ratio(3.0, 2.0), Some(1.5));
        assert_eq!(ratio(0.0, 2.0), Some(0.0));
        assert_eq!(ratio(3.0, 0.0), None);
        assert_eq!(ratio(3.0, f64::NAN), None);
    }

    #[test]
    fn latencies_are_given_in_microseconds() {
        let mut histogram = latencies();
        for us in 1..=1000_u64 {
            histogram.saturating_record(us * 1000);
        }
        let latency = Latency::from(&histogram);
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected * 0.002;
        assert_eq!(latency.count, 1000);
        assert!(near(latency.mean_us, 500.5), "{latency:?}");
        assert!(near(latency.p50_us, 500.0), "{latency:?}");
        assert!(near(latency.p90_us, 900.0), "{latency:?}");
        assert!(near(latency.p99_us, 990.0), "{latency:?}");
        assert!(near(latency.p999_us, 999.0), "{latency:?}");
        assert!(near(latency.max_us, 1000.0), "{latency:?}");
        assert_eq!(Latency::from(&latencies()), Latency::default());
    }
}
