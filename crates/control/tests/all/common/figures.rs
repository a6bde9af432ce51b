//! Figures of rings that serve nothing, and which workers see whom.

use control::Scope;
use control::model::{LATENCY_BOUNDS_US, LatencySummary, Owner, RingFigures, RingInfo, RingState, Worker};

pub(crate) fn latency(counts: &[(usize, u64)]) -> LatencySummary {
    let mut buckets = vec![0; LATENCY_BOUNDS_US.len() + 1];
    for &(index, count) in counts {
        buckets[index] = count;
    }
    let count = buckets.iter().sum();
    LatencySummary {
        count,
        sum_us: 40.0 * count as f64,
        mean_us: 40.0,
        p50_us: 35.5,
        p90_us: 48.0,
        p99_us: 310.25,
        p999_us: 420.0,
        max_us: 433.0,
        buckets,
    }
}

pub(super) fn figures() -> RingFigures {
    RingFigures {
        requests: [("read", 1000), ("write", 500), ("flush", 3), ("get_id", 1)]
            .map(|(kind, count)| (kind.to_owned(), count))
            .into(),
        bytes_read: 4_096_000,
        bytes_written: 2_048_000,
        errors: 2,
        in_flight: 7,
        oldest_in_flight_ms: Some(1_250),
        in_flight_max: 128,
        kicks: 90,
        notifications_sent: 80,
        notifications_suppressed: 1420,
        polls_hit: 60,
        polls_missed: 5,
        moves: 4,
        latency_queued: latency(&[(0, 1400), (1, 104)]),
        latency_served: latency(&[(5, 1400), (7, 104)]),
        ..RingFigures::default()
    }
}

pub(super) fn ring(index: u16, worker: u32, figures: RingFigures) -> RingInfo {
    RingInfo { index, state: RingState::Running, broken: None, size: 256, worker: Some(worker), figures }
}

pub(super) fn visible(worker: &Worker, scope: &Scope) -> bool {
    match scope {
        Scope::Daemon => true,
        Scope::Export(name) => worker.owner == Owner::Export(name.clone()),
    }
}
