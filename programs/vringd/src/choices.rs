//! What the daemon chooses by itself, as the control API tells it.

use control::model::policy::{Decision, PlacementPolicy, Policy, PolicyRecord, WorkerPolicy, WorkerRecord};
use engine::{Poll, WorkerStatus};
use export::Engine;
use policy::balance::Stretch;

/// The name of a worker's thread.
pub(crate) fn worker_name(number: u32) -> String {
    format!("worker-{number}")
}

/// What is chosen now, since when, and why.
pub(crate) fn policy(engine: &Engine, placement: PlacementPolicy) -> Policy {
    let now_ns = engine::monotonic_ns();
    let of = |status: &WorkerStatus| {
        let number = status.number;
        let figures = engine.worker_figures(number).unwrap_or_default();
        let journal = engine.worker_journal(number).unwrap_or_default();
        let held = journal.held().filter(|held| figures.tactic == Some(held.tactic));
        WorkerPolicy {
            id: number,
            name: worker_name(number),
            poll: status.poll,
            pinned: matches!(status.poll, Poll::Off | Poll::Fixed(_)),
            tactic: figures.tactic,
            since_seconds: held.map(|held| now_ns.saturating_sub(held.since_ns) as f64 / 1e9),
            chosen_by: held.and_then(|held| held.by).map(|verdict| Decision::new(&verdict, now_ns)),
            poll_window_us_now: (figures.poll_window_ns / 1000) as u32,
            // As many as there are decisions to it: the page may be a moment behind.
            trials: journal.trials(),
            changes: journal.changes(),
            decisions: journal.verdicts().iter().rev().map(|verdict| Decision::new(verdict, now_ns)).collect(),
        }
    };
    let workers = engine.workers().iter().map(of).collect();
    Policy { favour: engine.favour(), policy: engine.policy_mode(), workers, placement }
}

/// What was seen and decided lately.
pub(crate) fn record(engine: &Engine, placement: Vec<Stretch>) -> PolicyRecord {
    let of = |status: WorkerStatus| {
        let journal = engine.worker_journal(status.number).unwrap_or_default();
        WorkerRecord { id: status.number, stretches: journal.stretches() }
    };
    PolicyRecord {
        version: PolicyRecord::VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        favour: engine.favour(),
        workers: engine.workers().into_iter().map(of).collect(),
        placement,
    }
}
