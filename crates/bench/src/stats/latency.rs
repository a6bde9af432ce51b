//! Latencies of requests: gathered in a histogram, told as a mean and percentiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies up to a minute are told apart; longer ones count as a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// An empty histogram of latencies in nanoseconds, three significant digits.
pub(crate) fn latencies() -> Histogram<u64> {
    // The bounds are constants that the crate accepts; a failure would show in the first test.
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds")
}

/// Latencies in microseconds. Of a mixed load that fio made: the mean of both directions, and the percentiles of the worse one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many requests these figures describe; left out where there are none or a journal of an earlier version is read.
    #[serde(skip_serializing_if = "is_none")]
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

fn is_none(count: &u64) -> bool {
    *count == 0
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

#[cfg(test)]
mod tests {
    use super::*;

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
