//! What happened between two looks at the daemon.

use super::p9::{self, P9Sample};
use super::volume::{self, VolumeSample};
use crate::model::{Export, LATENCY_BOUNDS_US, LatencySummary, RingInfo, RingState, Worker, WorkerState};
use serde::Serialize;
use std::collections::HashMap;

/// The daemon at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) exports: Vec<Export>,
    pub(super) workers: Vec<Worker>,
}

/// What happened between two looks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Sample {
    pub(super) interval_seconds: f64,
    pub(super) rings: Vec<RingSample>,
    pub(super) workers: Vec<WorkerSample>,
    pub(super) volumes: Vec<VolumeSample>,
    pub(super) p9: Vec<P9Sample>,
}

/// A ring in an interval; the queue depth is that of its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RingSample {
    pub(super) export: String,
    pub(super) ring: u16,
    pub(super) state: RingState,
    pub(super) worker: Option<u32>,
    pub(super) requests_per_second: f64,
    pub(super) read_bytes_per_second: f64,
    pub(super) written_bytes_per_second: f64,
    pub(super) in_flight: u64,
    pub(super) kicks_per_second: f64,
    pub(super) notifications_per_second: f64,
    pub(super) queued_p50_us: Option<f64>,
    pub(super) queued_p99_us: Option<f64>,
    pub(super) served_p50_us: Option<f64>,
    pub(super) served_p99_us: Option<f64>,
    /// Share of the interval in which requests waited for a limit; absent when none ever has.
    pub(super) throttled: Option<f64>,
}

/// A worker in an interval; the poll window is that of its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct WorkerSample {
    pub(super) worker: u32,
    pub(super) name: String,
    pub(super) state: WorkerState,
    pub(super) rings: usize,
    /// CPU seconds in each second.
    pub(super) cpu: f64,
    pub(super) turns_per_second: f64,
    pub(super) syscalls_per_second: f64,
    pub(super) sleeps_per_second: f64,
    /// Poll windows in which work arrived, of all; absent when there was none.
    pub(super) polls_hit: Option<f64>,
    pub(super) poll_window_us_now: u32,
}

/// Compares two looks. What was not there at the first counts from zero.
pub(super) fn compare(before: &Look, after: &Look, interval_seconds: f64) -> Sample {
    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / interval_seconds;
    let old_rings: HashMap<_, _> = before.exports.iter().flat_map(rings).collect();
    let old_workers: HashMap<_, _> = before.workers.iter().map(|worker| (worker.id, worker)).collect();
    let ring = |((export, index), now): ((&str, u16), &RingInfo)| {
        let (new, old) =
            (&now.figures, old_rings.get(&(export, index)).map(|ring| ring.figures.clone()).unwrap_or_default());
        RingSample {
            export: export.to_owned(),
            ring: index,
            state: now.state,
            worker: now.worker,
            requests_per_second: rate(new.requests(), old.requests()),
            read_bytes_per_second: rate(new.bytes_read, old.bytes_read),
            written_bytes_per_second: rate(new.bytes_written, old.bytes_written),
            in_flight: new.in_flight,
            kicks_per_second: rate(new.kicks, old.kicks),
            notifications_per_second: rate(new.notifications_sent, old.notifications_sent),
            queued_p50_us: percentile(&old.latency_queued, &new.latency_queued, 0.5),
            queued_p99_us: percentile(&old.latency_queued, &new.latency_queued, 0.99),
            served_p50_us: percentile(&old.latency_served, &new.latency_served, 0.5),
            served_p99_us: percentile(&old.latency_served, &new.latency_served, 0.99),
            throttled: (new.throttled > 0).then(|| {
                let seconds = (new.throttled_seconds - old.throttled_seconds).max(0.0);
                (seconds / interval_seconds).min(1.0)
            }),
        }
    };
    let worker = |now: &Worker| {
        let (new, old) = (now.figures, old_workers.get(&now.id).map(|worker| worker.figures).unwrap_or_default());
        let hit = new.polls_hit.saturating_sub(old.polls_hit);
        let polls = hit + new.polls_missed.saturating_sub(old.polls_missed);
        WorkerSample {
            worker: now.id,
            name: now.name.clone(),
            state: now.state,
            rings: now.rings.len(),
            cpu: (new.cpu_seconds - old.cpu_seconds).max(0.0) / interval_seconds,
            turns_per_second: rate(new.turns, old.turns),
            syscalls_per_second: rate(new.syscalls, old.syscalls),
            sleeps_per_second: rate(new.sleeps, old.sleeps),
            polls_hit: (polls > 0).then(|| hit as f64 / polls as f64),
            poll_window_us_now: now.poll_window_us_now,
        }
    };
    Sample {
        interval_seconds,
        rings: after.exports.iter().flat_map(rings).map(ring).collect(),
        workers: after.workers.iter().map(worker).collect(),
        volumes: volume::compare(&before.exports, &after.exports, interval_seconds),
        p9: p9::look(&after.exports),
    }
}

fn rings(export: &Export) -> impl Iterator<Item = ((&str, u16), &RingInfo)> {
    export.rings.iter().map(|ring| ((export.name.as_str(), ring.index), ring))
}

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
