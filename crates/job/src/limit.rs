//! How fast a job may copy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Time that was not used and is made up for: a job that was held up by a slow disk does not burst for longer.
const BURST_NS: u64 = 100_000_000;
const SECOND_NS: u128 = 1_000_000_000;
const NONE: u64 = u64::MAX;

/// The limit as it is now: any thread sets it while the job runs.
pub(crate) struct Limit(AtomicU64);

impl Limit {
    pub(crate) fn none() -> Limit {
        Limit(AtomicU64::new(NONE))
    }

    /// Bytes a second. 0 stops the walk until there is another limit.
    pub(crate) fn set(&self, bytes_per_second: Option<u64>) {
        self.0.store(bytes_per_second.unwrap_or(NONE), Ordering::Relaxed);
    }
}

/// A token bucket as a line of time: what was taken moves the moment at which more may be taken.
pub(crate) struct Bucket {
    /// The limit that this time was reckoned with.
    limit: u64,
    next_ns: u64,
}

impl Bucket {
    pub(crate) fn new() -> Bucket {
        Bucket { limit: NONE, next_ns: 0 }
    }

    /// When the next bytes may be taken; `u64::MAX`: not before the limit changes. A new limit forgets the old one's debts, which
    /// may be years.
    pub(crate) fn next_ns(&mut self, limit: &Limit, now_ns: u64) -> u64 {
        let limit = limit.0.load(Ordering::Relaxed);
        if limit != self.limit {
            *self = Bucket { limit, next_ns: now_ns };
        }
        if limit == 0 { u64::MAX } else { self.next_ns }
    }

    /// Takes bytes, now.
    pub(crate) fn take(&mut self, bytes: u64, now_ns: u64) {
        let cost_ns = match self.limit {
            NONE | 0 => 0,
            limit => u64::try_from(u128::from(bytes) * SECOND_NS / u128::from(limit)).unwrap_or(u64::MAX),
        };
        self.next_ns = self.next_ns.max(now_ns.saturating_sub(BURST_NS)).saturating_add(cost_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = SECOND_NS as u64;

    #[test]
    fn a_limit_is_kept_and_can_be_changed() {
        let (limit, mut bucket) = (Limit::none(), Bucket::new());
        let start = 100 * SECOND;
        assert!(bucket.next_ns(&limit, start) <= start);
        bucket.take(1 << 40, start);
        assert!(bucket.next_ns(&limit, start) <= start, "nothing is charged without a limit");
        limit.set(Some(1 << 20));
        let mut now = start;
        for _ in 0..100 {
            now = bucket.next_ns(&limit, now).max(now);
            bucket.take(1 << 18, now);
        }
        let seconds = (bucket.next_ns(&limit, now) - start) as f64 / SECOND as f64;
        assert!((24.0..=25.0).contains(&seconds), "25 MiB at 1 MiB a second took {seconds} s");
        limit.set(Some(1));
        assert_eq!(bucket.next_ns(&limit, now), now);
        bucket.take(1 << 40, now);
        assert!(bucket.next_ns(&limit, now) > now + 1000 * SECOND);
        limit.set(Some(1 << 20));
        assert_eq!(bucket.next_ns(&limit, now), now, "the debt is forgotten");
        limit.set(Some(0));
        assert_eq!(bucket.next_ns(&limit, now), u64::MAX);
        limit.set(None);
        assert_eq!(bucket.next_ns(&limit, now), now);
    }
}
