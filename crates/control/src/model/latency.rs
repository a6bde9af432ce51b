//! Latency as the API shows it: a summary for people, and bucket counts for Prometheus and for intervals.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Upper bounds of the latency buckets, inclusive, in microseconds: a 1-2-5 series from 1 µs to 10 s.
///
/// A last bucket without a bound follows, so that [`LatencySummary::buckets`] is one longer than this list.
pub const LATENCY_BOUNDS_US: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// A distribution of latencies since the ring first ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// Number of requests measured.
    pub count: u64,
    /// Sum of all latencies, in microseconds.
    pub sum_us: f64,
    /// Mean, in microseconds; 0 when nothing was measured.
    pub mean_us: f64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 90th percentile, in microseconds.
    pub p90_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, in microseconds.
    pub p999_us: f64,
    /// Largest value, in microseconds.
    pub max_us: f64,
    /// Number of requests in each bucket, not cumulative. The bounds are `latency_bounds_us` of `/v1/info`; one more
    /// bucket, without an upper bound, follows the last of them. Empty when nothing was measured.
    pub buckets: Vec<u64>,
}

impl LatencySummary {
    /// Summarises a histogram that was recorded in nanoseconds.
    pub fn from_ns(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let mut buckets = vec![0; LATENCY_BOUNDS_US.len() + 1];
        for step in histogram.iter_recorded() {
            let ns = step.value_iterated_to();
            let index = LATENCY_BOUNDS_US.partition_point(|bound_us| bound_us * 1_000 < ns);
            buckets[index] += step.count_at_value();
        }
        let mean_us = histogram.mean() / 1e3;
        Self {
            count: histogram.len(),
            sum_us: mean_us * histogram.len() as f64,
            mean_us,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p90_us: us(histogram.value_at_quantile(0.9)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_counts_every_value_in_the_bucket_that_holds_it() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        for ns in [500, 1_000, 1_500, 90_000, 20_000_000_000] {
            histogram.record(ns).unwrap();
        }
        let summary = LatencySummary::from_ns(&histogram);
        assert_eq!(summary.count, 5);
        assert_eq!(summary.buckets.len(), LATENCY_BOUNDS_US.len() + 1);
        assert_eq!(summary.buckets.iter().sum::<u64>(), 5);
        assert_eq!((summary.buckets[0], summary.buckets[1]), (2, 1));
        assert_eq!((summary.buckets[6], summary.buckets[22]), (1, 1));
        assert!((summary.p50_us - 1.5).abs() < 0.01, "{}", summary.p50_us);
        assert!((summary.max_us / 2e7 - 1.0).abs() < 0.01, "{}", summary.max_us);
        assert!((summary.sum_us - summary.mean_us * 5.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_measured_is_all_zero() {
        let histogram = Histogram::<u64>::new(3).unwrap();
        assert_eq!(LatencySummary::from_ns(&histogram), LatencySummary::default());
    }
}
