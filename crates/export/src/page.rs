//! What can be read of a running ring without a message to its worker.

use crate::counters::Counters;
use crate::figures::RingFigures;
use crate::limit::Held;
use crate::queue::{Broken, QueuePage};
use std::sync::Arc;

/// The pages of a ring's parts, written while it serves. They outlive the ring, with its last values. Numbers are read one after
/// the other, so a later one may be younger.
#[derive(Clone, Debug, Default)]
pub(crate) struct RingPage {
    pub(crate) counters: Arc<Counters>,
    pub(crate) held: Arc<Held>,
    /// A connection has no virtqueue.
    pub(crate) queue: Arc<QueuePage>,
}

impl RingPage {
    /// What the ring has done.
    pub(crate) fn figures(&self) -> RingFigures {
        RingFigures {
            notifications_sent: self.queue.sent.get(),
            notifications_suppressed: self.queue.suppressed.get(),
            throttled: self.held.requests.get(),
            throttled_ns: self.held.ns.get(),
            ..self.counters.read()
        }
    }

    /// Requests answered.
    pub(crate) fn requests(&self) -> u64 {
        self.counters.requests.total()
    }

    /// Requests taken and not yet answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue.in_flight.get() as usize
    }

    /// When the request was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.counters.oldest_ns()
    }

    /// Why it takes no more requests until it is started again.
    pub(crate) fn broken(&self) -> Option<String> {
        self.queue.broken.get().map(Broken::to_string)
    }

    /// Whether the driver lets it take requests.
    pub(crate) fn enabled(&self) -> bool {
        self.queue.enabled()
    }
}
