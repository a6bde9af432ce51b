//! What a volume counts: plain atomics that any worker adds to and a person reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a latency: bucket n counts what took less than 2^n microseconds and not less than the half of that; the last
/// one, everything longer.
pub const LATENCY_BUCKETS: usize = 26;

/// How long something took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyFigures {
    /// How often.
    pub count: u64,
    /// All of it together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// By duration, see [`LATENCY_BUCKETS`]: bucket 0 is below 1 µs, bucket 1 below 2 µs, bucket 2 below 4 µs...
    pub buckets: [u64; LATENCY_BUCKETS],
}

impl LatencyFigures {
    /// The mean, in nanoseconds; 0 for nothing.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// Upper bound of bucket `index`, in nanoseconds; `None` for the last, which has none.
    pub fn bound_ns(index: usize) -> Option<u64> {
        (index + 1 < LATENCY_BUCKETS).then(|| 1000 << index)
    }
}

/// What a volume has done since it was opened, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFigures {
    /// Log records written and completed.
    pub commits: u64,
    /// Flushes and durable writes that those commits answered.
    pub committed_requests: u64,
    /// Blocks of 4096 bytes in those commits.
    pub committed_blocks: u64,
    /// Bytes of those commits in the log, with headers.
    pub committed_bytes: u64,
    /// Flushes that had nothing to wait for: all that was written before them was safe already.
    pub flushes_for_nothing: u64,
    /// Waits for company before a commit: how often, and how long.
    pub company_wait: LatencyFigures,
    /// From the start of a log write to its completion.
    pub commit_latency: LatencyFigures,
    /// From a flush or durable write to its answer, where it had to wait at all.
    pub flush_latency: LatencyFigures,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes in memory that are not written back yet.
    pub dirty_bytes: u64,
    /// Bytes of memory for them.
    pub dirty_bytes_max: u64,
    /// Bytes written back to the lower storage.
    pub written_back_bytes: u64,
    /// Writes of the write-back that failed, and were or will be tried again.
    pub write_back_errors: u64,
    /// Log writes that failed.
    pub log_errors: u64,
    /// Sweeps of the write-back that came to their end.
    pub sweeps: u64,
    /// Writers that had to wait for a free slot, ever.
    pub parked_writers: u64,
    /// Writers that wait for a free slot now.
    pub parked_writers_now: u64,
    /// Times a commit had to wait for room in the log.
    pub parked_commits: u64,
}

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
