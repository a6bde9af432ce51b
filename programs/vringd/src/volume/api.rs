//! Between the API's words for volumes and those of the storage.

use control::model::{LATENCY_BOUNDS_US, LatencySummary, VolumeInfo};
use storage::{LatencyFigures, VolumeStatus};

/// A volume as it is shown.
pub(crate) fn info_out(status: &VolumeStatus) -> VolumeInfo {
    let figures = &status.figures;
    VolumeInfo {
        sync: status.sync,
        log: status.log_path.clone(),
        failure: status.failure.clone(),
        log_bytes: figures.log_bytes,
        log_used_bytes: figures.log_used_bytes,
        dirty_bytes: figures.dirty_bytes,
        dirty_bytes_max: figures.dirty_bytes_max,
        parked: figures.parked_writers_now,
        parked_writes: figures.parked_writers,
        parked_commits: figures.parked_commits,
        commits: figures.commits,
        committed_requests: figures.committed_requests,
        committed_blocks: figures.committed_blocks,
        committed_bytes: figures.committed_bytes,
        flushes_for_nothing: figures.flushes_for_nothing,
        log_errors: figures.log_errors,
        written_back_bytes: figures.written_back_bytes,
        sweeps: figures.sweeps,
        write_back_errors: figures.write_back_errors,
        company_wait: latency_out(&figures.company_wait),
        commit_latency: latency_out(&figures.commit_latency),
        flush_latency: latency_out(&figures.flush_latency),
    }
}

/// The storage counts by powers of two and the API by its own bounds: each count goes to the bucket that surely holds it, so
/// that a bucket never says less than was.
fn latency_out(figures: &LatencyFigures) -> LatencySummary {
    // Not `count`, which is read at another moment: percentiles and buckets must agree with it.
    let count: u64 = figures.buckets.iter().sum();
    if count == 0 {
        return LatencySummary::default();
    }
    let mut buckets = vec![0; LATENCY_BOUNDS_US.len() + 1];
    for (index, in_bucket) in figures.buckets.iter().enumerate() {
        let holds = |bound_ns| LATENCY_BOUNDS_US.partition_point(|bound_us| bound_us * 1_000 < bound_ns);
        buckets[LatencyFigures::bound_ns(index).map_or(LATENCY_BOUNDS_US.len(), holds)] += in_bucket;
    }
    let us = |ns: f64| ns / 1e3;
    LatencySummary {
        count,
        sum_us: us(figures.sum_ns as f64),
        mean_us: us(figures.sum_ns as f64 / count as f64),
        p50_us: us(quantile_ns(figures, count, 0.5)),
        p90_us: us(quantile_ns(figures, count, 0.9)),
        p99_us: us(quantile_ns(figures, count, 0.99)),
        p999_us: us(quantile_ns(figures, count, 0.999)),
        max_us: us(figures.max_ns as f64),
        buckets,
    }
}

/// Interpolated within its power of two.
fn quantile_ns(figures: &LatencyFigures, count: u64, quantile: f64) -> f64 {
    let (longest, wanted) = (figures.max_ns as f64, quantile * count as f64);
    let (mut below, mut lower) = (0.0, 0.0);
    for (index, in_bucket) in figures.buckets.iter().enumerate() {
        let upper =
            LatencyFigures::bound_ns(index).map_or(longest, |bound_ns| (bound_ns as f64).min(longest)).max(lower);
        let in_bucket = *in_bucket as f64;
        if in_bucket > 0.0 && below + in_bucket >= wanted {
            return lower + (upper - lower) * ((wanted - below) / in_bucket);
        }
        (below, lower) = (below + in_bucket, upper);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(counts: &[(usize, u64)], max_ns: u64) -> LatencyFigures {
        let mut figures = LatencyFigures { max_ns, ..LatencyFigures::default() };
        for &(index, count) in counts {
            figures.buckets[index] = count;
            figures.sum_ns += count * 1_000;
        }
        figures
    }

    #[test]
    fn every_count_lies_below_the_bound_of_its_bucket() {
        for index in 0..figures(&[], 0).buckets.len() {
            let shown = latency_out(&figures(&[(index, 7)], u64::MAX));
            let place = shown.buckets.iter().position(|count| *count == 7).unwrap();
            match (LatencyFigures::bound_ns(index), LATENCY_BOUNDS_US.get(place)) {
                (Some(bound_ns), Some(shown_us)) => assert!(bound_ns <= shown_us * 1_000, "{index}"),
                (Some(bound_ns), None) => assert!(bound_ns > 10_000_000_000, "{index}"),
                (None, place) => assert!(place.is_none()),
            }
            assert_eq!((shown.count, shown.buckets.iter().sum::<u64>()), (7, 7));
        }
    }

    #[test]
    fn percentiles_lie_in_the_power_of_two_that_holds_them() {
        // 90 took 64 to 128 µs, 10 took 4096 to 8192 µs, the longest 5 ms.
        let shown = latency_out(&figures(&[(7, 90), (13, 10)], 5_000_000));
        assert!((64.0..=128.0).contains(&shown.p50_us), "{shown:?}");
        assert!((4_096.0..=5_000.0).contains(&shown.p99_us), "{shown:?}");
        assert!(shown.p999_us <= shown.max_us && (shown.max_us - 5_000.0).abs() < 1e-9);
        assert_eq!(latency_out(&figures(&[], 0)), LatencySummary::default());
    }
}
