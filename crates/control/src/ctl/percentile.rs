//! Percentiles of what happened between two looks.

use crate::model::{LATENCY_BOUNDS_US, LatencySummary};

/// The percentile of what was measured between two summaries, interpolated within its bucket, in microseconds.
pub(super) fn percentile(before: &LatencySummary, after: &LatencySummary, quantile: f64) -> Option<f64> {
    let old = before.buckets.iter().copied().chain(std::iter::repeat(0));
    let counts: Vec<u64> = after.buckets.iter().zip(old).map(|(new, old)| new.saturating_sub(old)).collect();
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = quantile * all as f64;
    let (mut below, mut lower_us) = (0.0, 0.0);
    for (&count, &upper_us) in counts.iter().zip(&LATENCY_BOUNDS_US) {
        let (count, upper_us) = (count as f64, upper_us as f64);
        if count > 0.0 && below + count >= wanted {
            return Some(lower_us + (upper_us - lower_us) * ((wanted - below) / count));
        }
        (below, lower_us) = (below + count, upper_us);
    }
    // It lies in the bucket without an upper bound: the lower one is all that is known.
    Some(lower_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(counts: &[(usize, u64)]) -> LatencySummary {
        let mut buckets = vec![0; LATENCY_BOUNDS_US.len() + 1];
        for &(index, count) in counts {
            buckets[index] = count;
        }
        LatencySummary { buckets, ..LatencySummary::default() }
    }

    #[test]
    fn a_percentile_covers_the_interval_alone() {
        let before = summary(&[(0, 1_000)]);
        let after = summary(&[(0, 1_000), (5, 50), (6, 50)]);
        assert_eq!(percentile(&before, &after, 0.5), Some(50.0));
        assert_eq!(percentile(&before, &after, 0.25), Some(35.0));
        assert_eq!(percentile(&before, &after, 0.99), Some(50.0 + 50.0 * 0.98));
        assert_eq!(percentile(&after, &after, 0.5), None);
        assert_eq!(percentile(&LatencySummary::default(), &before, 1.0), Some(1.0));
    }

    #[test]
    fn beyond_the_last_bound_the_last_bound_is_said() {
        let after = summary(&[(LATENCY_BOUNDS_US.len(), 3)]);
        assert_eq!(percentile(&LatencySummary::default(), &after, 0.5), Some(10_000_000.0));
    }
}
