//! Moves rings between the shared workers, as `policy::balance` decides by what workers and rings have done.

use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::lookout::{Look, Lookout};
use control::model::PolicyMode;
use control::model::policy::{PlacementDecision, PlacementPolicy, RingMove};
use engine::{RingId, catch, monotonic_ns};
use export::{DAEMON, Export};
use policy::balance::{Balance, LOOK_NS, Machine, Record, Sample, Stretch, Verdict, WorkerLoad};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks that decide something.
const LOOK: Duration = Duration::from_nanos(LOOK_NS);
/// Time between two looks where there is nothing to decide.
const LOOK_IDLY: Duration = Duration::from_secs(1);
/// A look may take this part of the time between two: with thousands of rings there are fewer.
const SHARE: u32 = 50;
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
    Lookout::start("placer", daemon, Placer { balance: None, has_failed: false })
}

struct Placer {
    /// What is known; nothing when nothing is to be decided.
    balance: Option<Balance>,
    /// The policy has failed: rings stay where they are.
    has_failed: bool,
}

/// Where a ring was found.
struct Found {
    export: Arc<Export>,
    index: u16,
}

impl Look for Placer {
    fn may_rest(&self) -> bool {
        true
    }

    fn pause(&self) -> Duration {
        LOOK
    }

    fn look(&mut self, daemon: &Arc<Daemon>) -> Duration {
        let began = Instant::now();
        let is_fixed = daemon.engine().policy_mode() == PolicyMode::Fixed;
        let Some((sample, found)) = (!is_fixed && !self.has_failed).then(|| sample(daemon)).flatten() else {
            self.balance = None;
            return LOOK_IDLY;
        };
        if let Some(verdict) = self.decide(daemon, sample) {
            carry_out(daemon, &verdict, &found);
        }
        LOOK.max(began.elapsed() * SHARE)
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
}

/// What workers and rings have done. `None` when there is nothing to choose from: fewer than two shared workers, or no ring of theirs.
fn sample(daemon: &Daemon) -> Option<(Sample, HashMap<u64, Found>)> {
    let engine = daemon.engine();
    let statuses = engine.workers();
    let shared = statuses.iter().filter(|worker| worker.owner == DAEMON && worker.alive).count();
    if shared < 2 {
        return None;
    }
    let homes = statuses.iter().flat_map(|worker| worker.rings.iter().map(|ring| (*ring, worker.number)));
    let homes: HashMap<RingId, u32> = homes.collect();
    let workers = statuses.iter().filter(|worker| worker.alive).map(|worker| {
        let figures = engine.worker_figures(worker.number).unwrap_or_default();
        WorkerLoad {
            worker: worker.number,
            shared: worker.owner == DAEMON,
            cpu: None,
            busy_ns: figures.busy_ns,
            cpu_ns: figures.cpu_ns,
        }
    });
    let workers = workers.collect();
    let (mut rings, mut found) = (Vec::new(), HashMap::new());
    for (number, export) in daemon.all().into_iter().enumerate() {
        for (index, load) in export.loads(number as u64, |ring| homes.get(&ring).copied()) {
            found.insert(load.ring, Found { export: export.clone(), index });
            rings.push(load);
        }
    }
    // The number of workers is the operator's.
    let machine = Machine { workers_max: u32::try_from(shared).unwrap_or(u32::MAX), ..Machine::default() };
    let is_free = rings.iter().any(|ring| !ring.pinned);
    is_free.then(|| (Sample { at_ns: monotonic_ns(), workers, rings, machine }, found))
}

/// Moves what is to be moved, as far as it is still there and free to be.
fn carry_out(daemon: &Daemon, verdict: &Verdict, found: &HashMap<u64, Found>) {
    // A program that is being replaced keeps its rings where they are.
    let _open = daemon.upgrade.gate();
    let mut moves = Vec::new();
    for it in &verdict.moves {
        let Some(Found { export, index }) = found.get(&it.ring) else { continue };
        match export.shift(RingId(it.ring), it.to) {
            Ok(true) => {
                moves.push(RingMove { export: export.name().to_owned(), ring: *index, from: it.from, to: it.to });
            }
            Ok(false) => {}
            Err(error) => {
                // Whoever hangs keeps this thread no longer than for one ring.
                tracing::debug!(export = export.name(), ring = index, to = it.to, %error, "a ring stays where it is");
                break;
            }
        }
    }
    if moves.is_empty() {
        return;
    }
    let why = verdict.why();
    tracing::debug!(rings = moves.len(), cause = ?verdict.cause, why, "rings have other workers");
    let decision = PlacementDecision { seconds_ago: 0.0, cause: verdict.cause, moves, why };
    daemon.placements.add(verdict.at_ns, decision);
}
