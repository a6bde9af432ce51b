//! What rings have done: copies of what they count (`counters`), and sums over their lives.

use hdrhistogram::Histogram;

/// Latencies above this are counted as this, in nanoseconds (one minute).
pub(crate) const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// Two significant digits: an error below 1 %, and 30 KiB a histogram.
const DIGITS: u8 = 2;

/// Counts of requests by kind. The names are the device's.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    names: &'static [&'static str],
    counts: Box<[u64]>,
}

impl Requests {
    /// As many of each kind.
    pub(crate) fn new(names: &'static [&'static str], counts: Box<[u64]>) -> Self {
        Requests { names, counts }
    }

    /// Kinds with their names, those that never occurred too. Empty for a ring that never ran.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.iter().copied().zip(self.counts.iter().copied())
    }

    fn add(&mut self, other: &Requests) {
        if self.names.is_empty() {
            self.clone_from(other);
            return;
        }
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum += count;
        }
    }
}

/// Times of requests, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        // The bounds are constants that the histogram accepts; the smallest legal one stands behind them all the same.
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS);
        Latency(histogram.or_else(|_| Histogram::new(1)).unwrap_or_else(|_| unreachable!("one digit is legal")))
    }
}

impl Latency {
    /// Counts `count` requests that took `latency_ns`.
    pub(crate) fn record(&mut self, latency_ns: u64, count: u64) {
        self.0.saturating_record_n(latency_ns.max(1), count);
    }

    /// Adds what another ring, or this one in an earlier session, has counted.
    pub fn add(&mut self, other: &Latency) {
        // Equal bounds: cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// The counts themselves.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }
}

/// What one ring has done.
#[derive(Clone, Debug, Default)]
pub struct RingFigures {
    /// Requests answered, by kind.
    pub requests: Requests,
    /// Bytes read by the guest.
    pub bytes_read: u64,
    /// Bytes written by the guest.
    pub bytes_written: u64,
    /// Requests that ended with an error status, refused ones included.
    pub errors: u64,
    /// Most requests in flight at once.
    pub in_flight_max: usize,
    /// Notifications sent to the driver.
    pub notifications_sent: u64,
    /// Publications that needed no notification.
    pub notifications_suppressed: u64,
    /// Requests that had to wait for a limit.
    pub throttled: u64,
    /// Time during which requests waited for a limit, in nanoseconds.
    pub throttled_ns: u64,
    /// From when the worker could have taken a request to when it did.
    pub queued: Latency,
    /// From when the worker took a request to when its answer was ready.
    pub served: Latency,
}

impl RingFigures {
    /// Adds the figures of an earlier life of the same ring.
    pub fn add(&mut self, other: &RingFigures) {
        self.requests.add(&other.requests);
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.errors += other.errors;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
        self.notifications_sent += other.notifications_sent;
        self.notifications_suppressed += other.notifications_suppressed;
        self.throttled += other.throttled;
        self.throttled_ns += other.throttled_ns;
        self.queued.add(&other.queued);
        self.served.add(&other.served);
    }
}
