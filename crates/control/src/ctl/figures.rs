//! What happened between two looks at the daemon.

use super::p9::{self, P9Sample};
use super::percentile::percentile;
use super::volume::{self, VolumeSample};
use crate::model::{Export, RingInfo, RingState, Worker, WorkerState};
use policy::Tactic;
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
    /// The tactic by which it waits; absent when its window is pinned, it is dead or the policy has failed.
    pub(super) tactic: Option<Tactic>,
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
            tactic: now.tactic,
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
