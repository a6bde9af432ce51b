//! Workers as the control API shows them, and what takes the place of a dead one.

use crate::choices::worker_name;
use control::model::{self as api, Owner, RingRef};
use engine::{Death, EngineError, WorkerStatus};
use export::{DAEMON, Engine, Export};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which rings each worker serves, by the exports' own account.
pub(crate) fn rings_of_each(exports: &[Arc<Export>]) -> BTreeMap<u32, Vec<RingRef>> {
    let mut map: BTreeMap<u32, Vec<RingRef>> = BTreeMap::new();
    for export in exports {
        for (index, worker) in export.running() {
            map.entry(worker).or_default().push(RingRef { export: export.name().to_owned(), index });
        }
    }
    map
}

/// A worker, with the rings that it serves.
pub(crate) fn shown(engine: &Engine, status: &WorkerStatus, rings: Vec<RingRef>) -> api::Worker {
    let figures = engine.worker_figures(status.number).unwrap_or_default();
    api::Worker {
        id: status.number,
        name: worker_name(status.number),
        owner: match status.owner.as_str() {
            DAEMON => Owner::Daemon,
            name => Owner::Export(name.to_owned()),
        },
        cpus: status.spec.cpus.clone(),
        numa_node: status.spec.numa_node,
        cgroup: status.spec.cgroup.as_ref().map(|path| path.display().to_string()),
        poll: status.poll,
        poll_window_us_now: (figures.poll_window_ns / 1000) as u32,
        tactic: figures.tactic,
        tid: status.tid,
        state: if status.alive { api::WorkerState::Running } else { api::WorkerState::Dead },
        rings,
        figures: api::WorkerFigures {
            turns: figures.turns,
            syscalls: figures.enters,
            sleeps: figures.sleeps,
            polls_hit: figures.polls_hit,
            polls_missed: figures.polls_missed,
            policy_trials: figures.trials,
            policy_changes: figures.changes,
            sqes: figures.sqes,
            cqes: figures.cqes,
            mailbox_messages: figures.messages,
            cpu_seconds: figures.cpu_ns as f64 / 1e9,
            busy_seconds: figures.busy_ns as f64 / 1e9,
        },
    }
}

/// Starts another shared worker where one has died, so that rings find a place that come after. The dead one stays listed
/// unless its place is needed.
pub(crate) fn replace_shared(engine: &Engine, death: &Death) {
    if death.owner != DAEMON {
        return;
    }
    let start = || engine.worker_new(DAEMON, death.spec.clone(), death.poll);
    let started = start().or_else(|error| match error {
        EngineError::TooManyWorkers(_) => engine.worker_free(death.worker).and_then(|()| start()),
        other => Err(other),
    });
    match started {
        Ok(worker) => {
            tracing::warn!(worker, dead = death.worker, "a shared worker was started in place of the dead one");
        }
        Err(error) => tracing::error!(dead = death.worker, %error, "no shared worker takes the place of the dead one"),
    }
}
