//! What a volume counts: plain atomics that any worker adds to and a person reads.

use std::sync::atomic::{AtomicU64, Ordering};
use storage::{LATENCY_BUCKETS, LatencyFigures};

/// A latency that is being counted.
#[derive(Default)]
pub(super) struct Latency {
    count: AtomicU64,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; LATENCY_BUCKETS],
}

fn bucket(ns: u64) -> usize {
    // 0 for less than a microsecond; one more with each doubling.
    let bits = u64::BITS - (ns / 1000).leading_zeros();
    (bits as usize).min(LATENCY_BUCKETS - 1)
}

impl Latency {
    pub(super) fn record(&self, ns: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> LatencyFigures {
        let mut buckets = [0; LATENCY_BUCKETS];
        for (to, from) in buckets.iter_mut().zip(&self.buckets) {
            *to = from.load(Ordering::Relaxed);
        }
        LatencyFigures {
            count: self.count.load(Ordering::Relaxed),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
            max_ns: self.max_ns.load(Ordering::Relaxed),
            buckets,
        }
    }
}

/// The counters behind [`VolumeFigures`]; what is read off the cache or the log is not among them.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) commits: AtomicU64,
    pub(super) committed_requests: AtomicU64,
    pub(super) committed_blocks: AtomicU64,
    pub(super) committed_bytes: AtomicU64,
    pub(super) flushes_for_nothing: AtomicU64,
    pub(super) company_wait: Latency,
    pub(super) commit_latency: Latency,
    pub(super) flush_latency: Latency,
    pub(super) written_back_bytes: AtomicU64,
    pub(super) write_back_errors: AtomicU64,
    pub(super) log_errors: AtomicU64,
    pub(super) sweeps: AtomicU64,
    pub(super) parked_writers: AtomicU64,
    pub(super) parked_commits: AtomicU64,
}

/// Adds to a counter that nobody orders anything by.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_buckets() {
        let latency = Latency::default();
        for ns in [0, 999, 1000, 1999, 2000, 4_000_000, u64::MAX / 2] {
            latency.record(ns);
        }
        let figures = latency.read();
        assert_eq!(figures.count, 7);
        assert_eq!(figures.buckets[0], 2);
        assert_eq!(figures.buckets[1], 2);
        assert_eq!(figures.buckets[2], 1);
        assert_eq!(figures.buckets[12], 1, "4 ms lies between 2.048 and 4.096");
        assert_eq!(figures.buckets[LATENCY_BUCKETS - 1], 1);
        assert_eq!(figures.buckets.iter().sum::<u64>(), figures.count);
        assert_eq!(figures.max_ns, u64::MAX / 2);
        for (index, _) in figures.buckets.iter().enumerate() {
            let Some(bound) = LatencyFigures::bound_ns(index) else { continue };
            assert_eq!(bucket(bound - 1), index);
            assert_eq!(bucket(bound), index + 1);
        }
    }

    #[test]
    fn the_mean_of_nothing_is_nothing() {
        assert_eq!(LatencyFigures::default().mean_ns(), 0);
    }
}
