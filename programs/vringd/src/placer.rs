//! Moves rings between the shared workers, as `policy::balance` decides by what workers and rings have done.

use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::lookout::{Look, Lookout};
use control::model::PolicyMode;
use control::model::policy::{PlacementDecision, PlacementPolicy, RingMove};
use engine::{Pulse, RingId, WorkerFigures, catch, monotonic_ns};
use export::DAEMON;
use policy::balance::{Balance, LOOK_NS, Machine, Record, Sample, Stretch, Verdict, WorkerLoad};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks that decide something.
const LOOK: Duration = Duration::from_nanos(LOOK_NS);
/// Time between two looks at requests that do not end, and what a look may take at most.
const LOOK_IDLY: Duration = Duration::from_secs(1);
/// A look may take this part of the time between two: with thousands of rings there are fewer.
const SHARE: u32 = 50;
/// So many looks that find no more requests are followed by rare ones.
const STILL_LOOKS: u32 = 10;
/// A turn that has lasted so long says that its worker hangs, or serves something slow on the spot.
const LONG_TURN_NS: u64 = 50_000_000;
/// Decisions that are remembered.
const DECISIONS: usize = 16;

/// What was decided.
#[derive(Debug, Default)]
pub(crate) struct Placements(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    changes: u64,
    moves: u64,
    record: Record,
    /// The last ones, the latest first, and when they were made.
    decisions: VecDeque<(u64, PlacementDecision)>,
}

impl Placements {
    /// As the API tells it.
    pub(crate) fn told(&self) -> PlacementPolicy {
        let told = self.lock();
        let now_ns = monotonic_ns();
        let ago = |(at_ns, decision): &(u64, PlacementDecision)| PlacementDecision {
            seconds_ago: now_ns.saturating_sub(*at_ns) as f64 / 1e9,
            ..decision.clone()
        };
        PlacementPolicy {
            changes: told.changes,
            moves: told.moves,
            decisions: told.decisions.iter().map(ago).collect(),
        }
    }

    /// What was seen and decided lately.
    pub(crate) fn record(&self) -> Vec<Stretch> {
        self.lock().record.stretches().cloned().collect()
    }

    fn add(&self, at_ns: u64, decision: PlacementDecision) {
        let mut told = self.lock();
        told.changes += 1;
        told.moves += decision.moves.len() as u64;
        told.decisions.push_front((at_ns, decision));
        told.decisions.truncate(DECISIONS);
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to move rings. The thread ends when what is returned is dropped.
///
/// # Errors
/// There can be no thread.
pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Lookout, Failure> {
    Lookout::start("placer", daemon, Placer::default())
}

#[derive(Default)]
struct Placer {
    /// What is known; nothing when nothing is to be decided.
    balance: Option<Balance>,
    /// The policy has failed: rings stay where they are.
    has_failed: bool,
    /// Work has begun that was not looked at.
    owes_look: bool,
    /// How busy each worker has been.
    busy: HashMap<u32, Busy>,
    /// Requests of all rings at the last look, and looks in a row that have found no more.
    requests: u64,
    still: u32,
}

/// A worker's busy time: its turns, or what its thread took for anything but polling, whichever is more. A call that waits is in the first,
/// what the kernel does while requests are submitted in the second.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    turns_ns: u64,
    worked_ns: u64,
    sum_ns: u64,
}

impl Busy {
    fn add(&mut self, figures: &WorkerFigures) -> u64 {
        let worked_ns = figures.cpu_ns.saturating_sub(figures.polled_ns);
        let turned = figures.busy_ns.saturating_sub(self.turns_ns);
        self.sum_ns += turned.max(worked_ns.saturating_sub(self.worked_ns));
        (self.turns_ns, self.worked_ns) = (figures.busy_ns, worked_ns.max(self.worked_ns));
        self.sum_ns
    }
}

/// Where a ring was found.
struct Found {
    export: String,
    index: u16,
}

impl Look for Placer {
    fn may_rest(&self) -> bool {
        !self.owes_look
    }

    fn pause(&mut self) -> Duration {
        self.owes_look = true;
        LOOK
    }

    fn look(&mut self, daemon: &Arc<Daemon>) -> Duration {
        self.owes_look = false;
        let began = Instant::now();
        let is_fixed = daemon.engine().policy_mode() == PolicyMode::Fixed;
        let Some((sample, found)) = (!is_fixed && !self.has_failed).then(|| self.sample(daemon)).flatten() else {
            self.balance = None;
            return LOOK;
        };
        let requests = sample.rings.iter().fold(0u64, |sum, ring| sum.wrapping_add(ring.requests));
        let is_still = std::mem::replace(&mut self.requests, requests) == requests;
        self.still = if is_still { self.still.saturating_add(1) } else { 0 };
        let verdict = self.decide(daemon, sample);
        let took = began.elapsed();
        if let Some(verdict) = verdict {
            carry_out(daemon, &verdict, &found);
        }
        // Somebody may wait for the same request for hours.
        if self.still > STILL_LOOKS { LOOK_IDLY } else { (took * SHARE).clamp(LOOK, LOOK_IDLY) }
    }
}

impl Placer {
    fn decide(&mut self, daemon: &Daemon, sample: Sample) -> Option<Verdict> {
        let favour = daemon.engine().favour();
        let is_new = self.balance.as_ref().is_none_or(|balance| balance.favour() != favour);
        let balance = self.balance.get_or_insert_with(|| Balance::new(favour));
        balance.set_favour(favour);
        let mut told = daemon.placements.lock();
        if is_new {
            told.record.cut(balance);
        }
        let decided = catch(|| told.record.look(balance, sample));
        drop(told);
        decided.unwrap_or_else(|why| {
            tracing::error!(reason = %why, "the policy failed: rings stay on the workers that they have");
            self.has_failed = true;
            None
        })
    }

    /// What workers and rings have done. `None` when there is nothing to choose from: fewer than two shared workers, or no ring of theirs.
    fn sample(&mut self, daemon: &Daemon) -> Option<(Sample, HashMap<u64, Found>)> {
        let engine = daemon.engine();
        let statuses = engine.workers();
        let shared = statuses.iter().filter(|worker| worker.owner == DAEMON && worker.alive).count();
        if shared < 2 {
            return None;
        }
        let now_ns = monotonic_ns();
        let homes = statuses.iter().flat_map(|worker| worker.rings.iter().map(|ring| (*ring, worker.number)));
        let homes: HashMap<RingId, u32> = homes.collect();
        self.busy.retain(|number, _| statuses.iter().any(|worker| worker.number == *number));
        let mut workers = Vec::new();
        for worker in statuses.iter().filter(|worker| worker.alive) {
            let figures = engine.worker_figures(worker.number).unwrap_or_default();
            // What hangs looks idle, as its turn has not ended. Nothing is given to it, and what it has would not come.
            let hangs =
                matches!(worker.pulse, Pulse::Busy { since_ns } if now_ns.saturating_sub(since_ns) > LONG_TURN_NS);
            workers.push(WorkerLoad {
                worker: worker.number,
                shared: worker.owner == DAEMON && !hangs,
                cpu: None,
                busy_ns: self.busy.entry(worker.number).or_default().add(&figures),
                cpu_ns: figures.cpu_ns,
            });
        }
        let (mut rings, mut found) = (Vec::new(), HashMap::new());
        for (number, export) in daemon.all().into_iter().enumerate() {
            for (index, load) in export.loads(number as u64, |ring| homes.get(&ring).copied()) {
                found.insert(load.ring, Found { export: export.name().to_owned(), index });
                rings.push(load);
            }
        }
        // The number of workers is the operator's.
        let machine = Machine { workers_max: u32::try_from(shared).unwrap_or(u32::MAX), ..Machine::default() };
        let is_free = rings.iter().any(|ring| !ring.pinned);
        is_free.then_some((Sample { at_ns: now_ns, workers, rings, machine }, found))
    }
}

/// Moves what is to be moved, as far as it is still there and free to be, for as long as that takes no longer than a look may.
fn carry_out(daemon: &Daemon, verdict: &Verdict, found: &HashMap<u64, Found>) {
    let end = Instant::now() + LOOK_IDLY;
    let mut moves = Vec::new();
    // Workers that did not answer: their other rings are not asked for.
    let mut silent = Vec::new();
    for it in &verdict.moves {
        let Some(Found { export, index }) = found.get(&it.ring) else { continue };
        if silent.contains(&it.from) || silent.contains(&it.to) {
            continue;
        }
        // A program that is being replaced keeps its rings where they are. It waits for one move, not for all.
        let _open = daemon.upgrade.gate();
        if Instant::now() > end || daemon.engine().policy_mode() == PolicyMode::Fixed {
            break;
        }
        let Ok(serving) = daemon.get(export) else { continue };
        match serving.shift(RingId(it.ring), it.to) {
            Ok(true) => moves.push(RingMove { export: export.clone(), ring: *index, from: it.from, to: it.to }),
            Ok(false) => {}
            Err(error) => {
                silent.extend([it.from, it.to]);
                tracing::debug!(export, ring = index, to = it.to, %error, "a ring stays where it is");
            }
        }
    }
    if moves.is_empty() {
        return;
    }
    let why = verdict.why();
    tracing::debug!(rings = moves.len(), cause = %verdict.cause, why, "rings have other workers");
    let decision = PlacementDecision { seconds_ago: 0.0, cause: verdict.cause, moves, why };
    daemon.placements.add(verdict.at_ns, decision);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_busy_with_what_it_waits_for_and_with_what_the_kernel_does_for_it_and_not_with_polling() {
        let mut busy = Busy::default();
        let figures =
            |busy_ns, cpu_ns, polled_ns| WorkerFigures { busy_ns, cpu_ns, polled_ns, ..WorkerFigures::default() };
        assert_eq!(busy.add(&figures(500, 100, 0)), 500, "it waited in its turns");
        assert_eq!(busy.add(&figures(600, 1100, 300)), 500 + 700, "it submitted behind them");
        assert_eq!(busy.add(&figures(600, 2100, 1300)), 1200, "it polled");
        assert_eq!(busy.add(&figures(600, 2100, 1400)), 1200, "pages are read one after the other");
        assert_eq!(busy.add(&figures(700, 2200, 1500)), 1300);
    }
}
