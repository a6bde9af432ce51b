//! Loads from counters: what each worker and ring did between two samples, whatever the counters say.

use super::sample::{RingLoad, Sample, WorkerLoad};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// From so much of its time on, a worker is taken for busy all the time: what its rings would do with more of it is not known.
pub(super) const SATURATED: f64 = 0.9;
/// What a ring of a saturated worker might do with a worker of its own, as a multiple of what it does. Too much is corrected when it
/// has one; too little takes another step.
const GROWTH: f64 = 4.0;
/// By how much a ring may exceed what it is known to wish.
const KNOWN: f64 = 1.2;
/// A ring with less is idle: it stays where it is, since a move would wake two workers for nothing.
pub(super) const LOAD_MIN: f64 = 0.002;
/// What the latest stretch counts in a mean.
const WEIGHT: f64 = 0.5;

/// What a worker did lately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerSeen {
    pub(super) shared: bool,
    pub(super) cpu: Option<u16>,
    /// Shares of its time: in turns, and on a processor.
    pub(super) busy: f64,
    pub(super) cpu_share: f64,
}

/// What a ring did lately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RingSeen {
    pub(super) export: u64,
    pub(super) worker: u32,
    pub(super) movable: bool,
    pub(super) node: Option<u32>,
    /// The share of a worker's time that it had.
    pub(super) load: f64,
    /// Requests a second.
    pub(super) rate: f64,
    /// The share that it had when its worker had time to spare, under the same load: what it wishes.
    pub(super) wish: Option<f64>,
}

/// What all of them did lately: a mean that forgets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seen {
    pub(super) workers: BTreeMap<u32, WorkerSeen>,
    pub(super) rings: BTreeMap<u64, RingSeen>,
}

/// What rings of saturated workers get.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wishes {
    /// By worker: the sum, and of how many.
    workers: BTreeMap<u32, (f64, f64)>,
    /// The mean of all.
    all: f64,
}

impl Seen {
    /// Between two samples; `None` when no time has passed.
    pub(super) fn between(from: &Sample, to: &Sample) -> Option<Seen> {
        let passed_ns = to.at_ns.checked_sub(from.at_ns).filter(|passed| *passed > 0)? as f64;
        // Counters that go backwards, or are ahead of the clock, count as little and as much as can be.
        let share = |from: u64, to: u64| (to.saturating_sub(from) as f64 / passed_ns).min(1.0);
        let before: BTreeMap<u32, &WorkerLoad> = from.workers.iter().map(|it| (it.worker, it)).collect();
        let workers: BTreeMap<u32, WorkerSeen> = to
            .workers
            .iter()
            .map(|it| {
                // One that was not there has done nothing yet.
                let was = before.get(&it.worker).copied().unwrap_or(it);
                let (busy, cpu_share) = (share(was.busy_ns, it.busy_ns), share(was.cpu_ns, it.cpu_ns));
                (it.worker, WorkerSeen { shared: it.shared, cpu: it.cpu, busy, cpu_share })
            })
            .collect();
        let before: BTreeMap<u64, &RingLoad> = from.rings.iter().map(|it| (it.ring, it)).collect();
        let mut rings: BTreeMap<u64, RingSeen> = BTreeMap::new();
        for it in &to.rings {
            let was = before.get(&it.ring).copied().unwrap_or(it);
            let worker = workers.get(&it.worker);
            let seen = RingSeen {
                export: it.export,
                worker: it.worker,
                movable: !it.pinned && worker.is_some_and(|worker| worker.shared),
                node: it.node,
                load: it.busy_ns.map_or(-1.0, |busy_ns| share(was.busy_ns.unwrap_or(busy_ns), busy_ns)),
                rate: it.requests.saturating_sub(was.requests) as f64 * 1e9 / passed_ns,
                wish: None,
            };
            rings.insert(it.ring, seen);
        }
        apportion(&workers, &mut rings);
        Some(Seen { workers, rings })
    }

    /// Takes in what was seen after this. What is new counts in full, what is gone is forgotten.
    pub(super) fn add(&mut self, latest: Seen) {
        let Seen { mut workers, mut rings } = latest;
        let mean = |new: &mut f64, old: f64| *new = *new * WEIGHT + old * (1.0 - WEIGHT);
        for (number, new) in &mut workers {
            if let Some(old) = self.workers.get(number) {
                mean(&mut new.busy, old.busy);
                mean(&mut new.cpu_share, old.cpu_share);
            }
        }
        for (number, new) in &mut rings {
            if let Some(old) = self.rings.get(number) {
                mean(&mut new.load, old.load);
                mean(&mut new.rate, old.rate);
            }
        }
        let before = std::mem::replace(self, Seen { workers, rings });
        self.remember(&before);
    }

    /// Notes what rings wish that can be seen now, and keeps what was seen before of those that cannot.
    pub(super) fn remember(&mut self, before: &Seen) {
        let Seen { workers, rings } = self;
        for (number, ring) in rings {
            let saturated = workers.get(&ring.worker).is_some_and(|worker| worker.busy >= SATURATED);
            let known = ring.wish.or_else(|| before.rings.get(number).and_then(|old| old.wish));
            // One that gets more than it was known to wish is not known.
            ring.wish = if saturated { known.filter(|wish| ring.load <= wish * KNOWN) } else { Some(ring.load) };
        }
    }

    /// The load is another one.
    pub(super) fn forget_wishes(&mut self) {
        self.rings.values_mut().for_each(|ring| ring.wish = None);
    }

    /// What the rings of saturated workers get on average: on each such worker, and on all together.
    pub(super) fn wishes(&self) -> Wishes {
        let mut wishes = Wishes::default();
        let mut all = (0.0, 0.0);
        for ring in self.rings.values().filter(|ring| ring.load >= LOAD_MIN && self.is_saturated(ring.worker)) {
            let (load, count) = wishes.workers.entry(ring.worker).or_default();
            (*load, *count) = (*load + ring.load, *count + 1.0);
            all = (all.0 + ring.load, all.1 + 1.0);
        }
        wishes.all = if all.1 > 0.0 { all.0 / all.1 } else { 0.0 };
        wishes
    }

    fn is_saturated(&self, worker: u32) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.busy >= SATURATED)
    }

    /// What a ring might do with as much of a worker as it likes: what it did when it could, if that was seen. On a saturated worker nobody knows: rings there are taken for alike but
    /// for what they get relative to their neighbours, so that one among many wishes as much as one among few.
    pub(super) fn demand(&self, ring: &RingSeen, wishes: &Wishes) -> f64 {
        if let Some(wish) = ring.wish {
            return wish.max(ring.load);
        }
        match wishes.workers.get(&ring.worker) {
            Some((load, count)) if self.is_saturated(ring.worker) && *load > 0.0 => {
                let relative = ring.load * count / load;
                (GROWTH * wishes.all * relative).clamp(ring.load.min(1.0), 1.0)
            }
            _ => ring.load,
        }
    }

    /// A worker's time that none of its movable rings had: that of pinned ones, and its own.
    pub(super) fn fixed(&self, number: u32) -> f64 {
        let movable: f64 = self.rings_of(number).filter(|ring| ring.movable).map(|ring| ring.load).sum();
        self.workers.get(&number).map_or(0.0, |worker| (worker.busy - movable).max(0.0))
    }

    /// Shared workers that serve a ring with a load.
    pub(super) fn serving(&self) -> u32 {
        let serves = |number: u32| self.rings_of(number).any(|ring| ring.load >= LOAD_MIN);
        self.workers.iter().filter(|(number, worker)| worker.shared && serves(**number)).count() as u32
    }

    fn rings_of(&self, number: u32) -> impl Iterator<Item = &RingSeen> {
        self.rings.values().filter(move |ring| ring.worker == number)
    }
}

/// Divides the time of workers whose rings do not measure theirs, by requests, and keeps all rings together within the worker's time.
fn apportion(workers: &BTreeMap<u32, WorkerSeen>, rings: &mut BTreeMap<u64, RingSeen>) {
    let mut totals: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for ring in rings.values() {
        let (measured, rate) = totals.entry(ring.worker).or_default();
        if ring.load < 0.0 {
            *rate += ring.rate;
        } else {
            *measured += ring.load;
        }
    }
    for ring in rings.values_mut() {
        let busy = workers.get(&ring.worker).map_or(0.0, |worker| worker.busy);
        let (measured, rate) = totals.get(&ring.worker).copied().unwrap_or_default();
        if ring.load < 0.0 {
            let left = (busy - measured).max(0.0);
            ring.load = if rate > 0.0 { left * ring.rate / rate } else { 0.0 };
        } else if measured > busy {
            ring.load *= busy / measured;
        }
    }
}
