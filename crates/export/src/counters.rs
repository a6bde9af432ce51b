//! A ring's live counters: a page that moves with the ring, written by the ring's present owner only, read by any thread.

use crate::figures::{LATENCY_MAX_NS, Latency, Requests, RingFigures};
use engine::Counter;
use std::sync::Arc;

/// Buckets a power of two, as in an HdrHistogram of two significant digits: values below twice as many have a bucket each, larger
/// ones share theirs with values that differ by less than 1 %.
const SUB_BUCKETS: usize = 128;
const SUB_BUCKETS_LOG2: u32 = SUB_BUCKETS.ilog2();

/// The bucket of a value.
const fn bucket_of(value: u64) -> usize {
    // Only the eight leading bits count.
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BUCKETS_LOG2 + 1);
    shift as usize * SUB_BUCKETS + (value >> shift) as usize
}

/// The least value of a bucket.
const fn value_of(bucket: usize) -> u64 {
    let shift = (bucket / SUB_BUCKETS).saturating_sub(1);
    ((bucket - shift * SUB_BUCKETS) as u64) << shift
}

const BUCKETS: usize = bucket_of(LATENCY_MAX_NS) + 1;

/// Times of requests as they come in.
#[derive(Debug)]
pub(crate) struct LatencyCounters(Box<[Counter]>);

impl Default for LatencyCounters {
    fn default() -> Self {
        LatencyCounters((0..BUCKETS).map(|_| Counter::default()).collect())
    }
}

impl LatencyCounters {
    /// Counts `count` requests that took `latency_ns`.
    #[inline]
    pub(crate) fn record(&self, latency_ns: u64, count: u64) {
        // The last bucket is that of the longest latency.
        if let Some(bucket) = self.0.get(bucket_of(latency_ns.clamp(1, LATENCY_MAX_NS))) {
            bucket.add(count);
        }
    }

    fn read(&self) -> Latency {
        let mut latency = Latency::default();
        for (bucket, count) in self.0.iter().enumerate() {
            match count.get() {
                0 => {}
                count => latency.record(value_of(bucket), count),
            }
        }
        latency
    }
}

/// Counts of requests by kind. The names are the device's.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    names: &'static [&'static str],
    counts: Box<[Counter]>,
}

impl RequestCounters {
    /// Counts one request of kind number `kind`, which the names have.
    #[inline]
    pub(crate) fn count(&self, kind: usize) {
        if let Some(count) = self.counts.get(kind) {
            count.add(1);
        }
    }

    /// Of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().map(Counter::get).sum()
    }
}

/// A ring's counters, but for those that its queue and its gate keep.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// As in [`RingFigures`], which this becomes.
    pub(crate) requests: RequestCounters,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    pub(crate) errors: Counter,
    pub(crate) in_flight_max: Counter,
    pub(crate) queued: LatencyCounters,
    pub(crate) served: LatencyCounters,
    /// When the request in each slot was taken, in nanoseconds of CLOCK_MONOTONIC; 0 for one that waits for nothing of ours.
    taken_ns: Box<[Counter]>,
}

impl Counters {
    /// Zeroes, for a ring with these kinds of requests and so many slots.
    pub(crate) fn new(kinds: &'static [&'static str], slots: usize) -> Arc<Counters> {
        let zeroes = |count: usize| (0..count).map(|_| Counter::default()).collect();
        let requests = RequestCounters { names: kinds, counts: zeroes(kinds.len()) };
        Arc::new(Counters { requests, taken_ns: zeroes(slots), ..Counters::default() })
    }

    /// The place where slot `slot` shows when its request was taken.
    pub(crate) fn stamp(self: &Arc<Self>, slot: usize) -> Stamp {
        Stamp { counters: self.clone(), slot }
    }

    /// When the request was taken that has been in flight longest. Scans all slots: not for the path of a request.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.taken_ns.iter().map(Counter::get).filter(|taken_ns| *taken_ns != 0).min()
    }

    pub(crate) fn read(&self) -> RingFigures {
        let counts = self.requests.counts.iter().map(Counter::get).collect();
        RingFigures {
            requests: Requests::new(self.requests.names, counts),
            bytes_read: self.bytes_read.get(),
            bytes_written: self.bytes_written.get(),
            errors: self.errors.get(),
            in_flight_max: self.in_flight_max.get() as usize,
            queued: self.queued.read(),
            served: self.served.read(),
            ..RingFigures::default()
        }
    }
}

/// One slot's place on the page.
#[derive(Debug)]
pub(crate) struct Stamp {
    counters: Arc<Counters>,
    slot: usize,
}

impl Stamp {
    /// Whose place it is. Rings have no more slots than there are such numbers.
    #[inline]
    pub(crate) fn slot(&self) -> u16 {
        self.slot as u16
    }

    /// A request was taken at `now_ns`.
    #[inline]
    pub(crate) fn set(&self, now_ns: u64) {
        if let Some(taken_ns) = self.counters.taken_ns.get(self.slot) {
            taken_ns.set(now_ns);
        }
    }

    /// The request has ended, or waits for another client rather than for storage.
    #[inline]
    pub(crate) fn clear(&self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn latency() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..600_u64,
            0..100_000_000_u64,
            0..2 * LATENCY_MAX_NS,
            (0..64_u32).prop_map(|bit| 1 << bit),
            any::<u64>()
        ]
    }

    proptest! {
        #[test]
        fn buckets_are_those_of_the_histogram(recorded in vec((latency(), 1..100_u64), 0..200)) {
            let counters = LatencyCounters::default();
            let mut oracle = Histogram::<u64>::new_with_bounds(1, LATENCY_MAX_NS, 2).unwrap();
            for &(ns, count) in &recorded {
                counters.record(ns, count);
                oracle.saturating_record_n(ns.clamp(1, LATENCY_MAX_NS), count);
            }
            let read = counters.read();
            prop_assert_eq!(read.histogram(), &oracle);
            prop_assert_eq!(read.histogram().len(), oracle.len());
            prop_assert_eq!((read.histogram().min(), read.histogram().max()), (oracle.min(), oracle.max()));
            prop_assert_eq!(read.histogram().mean(), oracle.mean());
            for quantile in [0.5, 0.9, 0.99, 0.999] {
                let [ours, theirs] = [read.histogram(), &oracle].map(|it| it.value_at_quantile(quantile));
                prop_assert_eq!(ours, theirs);
            }
        }

        #[test]
        fn a_bucket_begins_with_its_least_value(value in 1..=LATENCY_MAX_NS) {
            let bucket = bucket_of(value);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(value_of(bucket) <= value && value < value_of(bucket + 1));
            prop_assert_eq!(bucket_of(value_of(bucket)), bucket);
        }
    }

    #[test]
    fn what_is_counted_can_be_read_meanwhile() {
        let counters = Counters::new(&["read", "write"], 2);
        let reader = counters.clone();
        let counting = std::thread::spawn(move || {
            for round in 1..=100_000 {
                counters.requests.count(1);
                counters.bytes_written.add(512);
                counters.served.record(round, 1);
            }
        });
        let mut last = 0;
        while !counting.is_finished() {
            let now = reader.bytes_written.get();
            assert!(now >= last && now.is_multiple_of(512), "{now} after {last}");
            last = now;
        }
        counting.join().unwrap();
        let figures = reader.read();
        assert_eq!(figures.requests.iter().collect::<Vec<_>>(), [("read", 0), ("write", 100_000)]);
        assert_eq!((figures.bytes_written, figures.served.histogram().len()), (51_200_000, 100_000));
    }

    #[test]
    fn the_oldest_request_is_the_one_taken_first_of_those_that_wait() {
        let counters = Counters::new(&[], 3);
        let stamps: Vec<_> = (0..4).map(|slot| counters.stamp(slot)).collect();
        assert_eq!(counters.oldest_ns(), None);
        stamps[0].set(30);
        stamps[2].set(20);
        // A slot that the ring does not have has no place.
        stamps[3].set(10);
        assert_eq!(counters.oldest_ns(), Some(20));
        stamps[2].clear();
        assert_eq!(counters.oldest_ns(), Some(30));
    }
}
