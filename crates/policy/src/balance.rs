//! Who serves what: how many shared workers there are, and which ring each of them has.
//!
//! One worker for everything batches best and wakes least, and stops where its thread does: the vhost note's one worker at two jobs. A
//! worker for each ring wastes what the first one saves. So there are as few workers as keep queueing below what is favoured
//! ([`Favour::busy_max`]), and every change is judged by what came of it:
//!
//! 1. **Seen**: the busy time of workers and rings between two samples ([`LOOK_NS`] apart), a mean of the last few.
//! 2. **Spread** when a worker is busy for more than what is favoured: rings go to less busy workers, the largest part first, and new
//!    workers are asked for when those that are there do not suffice. What the rings of a *saturated* worker would do with more of it
//!    cannot be seen, so they are taken for four times as demanding as they are, or for what they did when they could; what that was
//!    too much is gathered.
//! 3. **Gather** when all fits on fewer workers with room to spare (`ROOM`) for a second: one that idles costs wake-ups and batches.
//! 4. **Judge**: the rate of the rings concerned and the processor time a request, before and after. A change that lost is undone, and so
//!    is a spread off a saturated worker that gained no more than what is favoured tolerates and took more processor time.
//! 5. **Rest**: what was undone is not tried again, and after three turns back and forth, [`CHANGES_MAX`] changes or three seconds
//!    without one nothing is, until the load is another one. That is what makes it settle whatever the machine is like, and whatever
//!    noise does to it.
//!
//! From the literature. SPDK's dynamic scheduler (`module/scheduler/dynamic`): load as busy time over busy and idle time, threads moved off
//! a core that is busy for 95 %, all others gathered on the first core where they fit, those below 20 % on one. Its fixed limits are what
//! is favoured here. It takes a thread's busy time for what it wants, also where its core had no more to give; and that it never looks
//! at what a move did is what the vhost note's two jobs speak against: two workers do 0.77x of one
//! there. Little's law and the M/M/1 queue give the limits their meaning: a worker that is busy for a share `b` of its time keeps a request
//! waiting for `b / (1 - b)` others. Work stealing (Blumofe and Leiserson, 1999) balances without anybody's plan, but takes from the victim's
//! queue with an atomic operation a request, and a ring has one owner. Receiver-initiated sharing (Eager, Lazowska and Zahorjan, 1986) is best
//! at high load, which an idle worker would have to be awake for. The judge is the hill climber of [`trial`](crate::Trial).

mod judge;
mod load;
mod plan;
mod record;
mod rest;
mod sample;
#[cfg(test)]
mod tests;

pub use judge::Outcome;
pub use record::{Record, Stretch};
pub use sample::{Allowed, Bound, Cpu, Machine, RingLoad, Sample, WorkerLoad};

use judge::Change;
use load::{LOAD_MIN, SATURATED, Seen};
use plan::{Bin, Item, Plan};
use rest::Rest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use utoipa::ToSchema;
use values::Favour;

/// Time between two samples.
pub const LOOK_NS: u64 = 100_000_000;
/// Samples that are so far apart say nothing of the present.
const GONE_NS: u64 = 2_000_000_000;
/// A worker may exceed what is favoured by so much before its rings are spread...
const BAND: f64 = 0.05;
/// ...and rings are gathered only onto workers that stay so far below it.
const ROOM: f64 = 0.15;
/// Looks in a row that have to ask for a spread, at least...
const SPREAD_LOOKS: u32 = 2;
/// ...and for a gathering: a burst that has ended is often followed by another.
const GATHER_LOOKS: u32 = 10;
/// Looks that new workers are waited for.
const START_LOOKS: u32 = 3;
/// Moves of one change. Each costs two workers some tens of microseconds, and a saturated one has half of its rings taken off at once.
pub const MOVES_MAX: usize = 128;
/// Changes under one load.
pub const CHANGES_MAX: u32 = 16;

/// A ring that is to have another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The ring.
    pub ring: u64,
    /// Its worker now.
    pub from: u32,
    /// Its worker from now on.
    pub to: u32,
}

/// Why something is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A worker is busier than what is favoured allows, and others are not.
    Spread,
    /// All fits on fewer workers.
    Gather,
    /// The last change lost, or gained less than it took.
    Undo,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Spread => "spread",
            Cause::Gather => "gather",
            Cause::Undo => "undo",
        })
    }
}

/// What is to be done, and the numbers that say why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// When.
    pub at_ns: u64,
    /// Why.
    pub cause: Cause,
    /// Shared workers that serve something now.
    pub serving: u32,
    /// Shared workers that are wanted. Fewer than there are: those without rings may be freed.
    pub workers: u32,
    /// How many there may be, and why no more.
    pub allowed: Allowed,
    /// Processors for the workers that are missing, where processors are known.
    pub seats: Vec<u16>,
    /// What is moved now, at most 128 rings (`MOVES_MAX`); none while workers are missing.
    pub moves: Vec<Move>,
    /// The busiest shared worker.
    pub busiest: u32,
    /// The share of its time that the busiest shared worker is busy, from 0 to 1.
    pub busy: f64,
    /// The sum of all shared workers' busy shares, in processors.
    pub load: f64,
    /// What is undone: how it compared with what was before.
    pub outcome: Option<Outcome>,
}

impl Verdict {
    /// The reason in words.
    #[must_use]
    pub fn why(&self) -> String {
        let Verdict { busiest, busy, load, serving, workers, .. } = self;
        let percent = busy * 100.0;
        match (self.cause, self.outcome) {
            (Cause::Spread, _) => {
                format!(
                    "worker {busiest} is busy for {percent:.0} % of its time; {load:.2} processors' work on {serving} workers"
                )
            }
            (Cause::Gather, _) => {
                format!("{load:.2} processors' work on {serving} workers, where {workers} are enough")
            }
            (Cause::Undo, Some(Outcome { rate, cpu })) => {
                format!("the last change gave {rate:.2}x the requests at {cpu:.2}x the processor time each")
            }
            (Cause::Undo, None) => "the last change did not last long enough to be judged".to_owned(),
        }
    }
}

/// The controller: who serves what, and what is being done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    favour: Favour,
    last: Option<Sample>,
    seen: Seen,
    state: State,
    rest: Rest,
    /// Looks in a row that asked for more workers or other ones, and for fewer.
    spreads: u32,
    gathers: u32,
    /// A worker is busier than it should be, and no move would help.
    is_stuck: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum State {
    Watching,
    /// So many more looks for workers that were asked for.
    Starting(u32),
    Judging(Change),
}

impl Balance {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(favour: Favour) -> Balance {
        Balance {
            favour,
            last: None,
            seen: Seen::default(),
            state: State::Watching,
            rest: Rest::default(),
            spreads: 0,
            gathers: 0,
            is_stuck: false,
        }
    }

    /// What is favoured.
    #[must_use]
    pub fn favour(&self) -> Favour {
        self.favour
    }

    /// What is favoured from now on. Everything may be tried again; who serves what stays until something is.
    pub fn set_favour(&mut self, favour: Favour) {
        if favour != self.favour {
            *self = Balance { last: self.last.take(), ..Balance::new(favour) };
        }
    }

    /// Looks at what was done since the last sample. What is to be done, if anything: the next sample shows whether it was.
    pub fn look(&mut self, sample: &Sample) -> Option<Verdict> {
        let last = self.last.replace(sample.clone())?;
        let latest = Seen::between(&last, sample)?;
        if sample.at_ns - last.at_ns > GONE_NS {
            (self.state, self.seen, self.spreads, self.gathers) = (State::Watching, latest, 0, 0);
            return None;
        }
        match std::mem::replace(&mut self.state, State::Watching) {
            State::Judging(change) => self.judge(change, latest, sample),
            State::Starting(looks) => {
                self.seen.add(latest);
                self.spread(sample, looks)
            }
            State::Watching => {
                self.seen.add(latest);
                if self.rest.look(sample.at_ns, &self.seen) {
                    // What is gathered is judged by what it did under the same load.
                    self.gathers = 0;
                    self.seen.forget_wishes();
                }
                self.watch(sample)
            }
        }
    }

    /// A look while nothing is under way.
    fn watch(&mut self, sample: &Sample) -> Option<Verdict> {
        let limit = self.favour.busy_max();
        let is_over = self.busiest().1 > limit + BAND;
        self.is_stuck &= is_over;
        self.spreads = if is_over && self.rest.may_spread() { self.spreads.saturating_add(1) } else { 0 };
        // A worker that is busy with one ring, or with pinned ones, keeps nobody else from being gathered.
        let is_calm = !is_over || self.is_stuck || !self.rest.may_spread();
        self.gathers = if is_calm && self.rest.may_gather() { self.gathers.saturating_add(1) } else { 0 };
        // The more was changed under this load, the longer the next reason has to last.
        if self.spreads >= SPREAD_LOOKS.max(self.rest.changes()) {
            let verdict = self.spread(sample, START_LOOKS);
            if verdict.is_some() {
                return verdict;
            }
        }
        if self.gathers >= GATHER_LOOKS && self.state == State::Watching {
            // Once a second is often enough to think of it.
            (self.gathers, self.spreads) = (0, 0);
            let moves = self.plan(sample, None).gather(limit - ROOM, MOVES_MAX);
            let emptied = emptied(&self.seen, &moves);
            return self.begin(sample, Cause::Gather, moves, self.seen.serving().saturating_sub(emptied).max(1));
        }
        None
    }

    /// Spreads; or asks for the workers that this takes, and waits for them for so many looks.
    fn spread(&mut self, sample: &Sample, looks: u32) -> Option<Verdict> {
        let there = shared(sample);
        let mut wanted = self.wanted(sample);
        if wanted > there && !self.rest.is_refused() {
            if let Some(left) = looks.checked_sub(1) {
                self.state = State::Starting(left);
                return (looks == START_LOOKS).then(|| self.verdict(sample, Cause::Spread, Vec::new(), wanted));
            }
            self.rest.refused();
        }
        wanted = wanted.min(there);
        let moves = self.plan(sample, Some(wanted as usize)).spread(self.favour.busy_max(), MOVES_MAX);
        self.spreads = 0;
        self.is_stuck = moves.is_empty();
        self.begin(sample, Cause::Spread, moves, wanted)
    }

    /// How many workers a spread would like, within what is allowed.
    fn wanted(&self, sample: &Sample) -> u32 {
        let needed = self.plan(sample, None).needed(self.favour.busy_max()) as u32;
        needed.max(self.seen.serving()).min(sample.machine.allowed(shared(sample)).workers).max(1)
    }

    /// Begins a change, if it is one.
    fn begin(&mut self, sample: &Sample, cause: Cause, moves: Vec<Move>, wanted: u32) -> Option<Verdict> {
        if moves.is_empty() {
            return None;
        }
        let was_saturated =
            moves.iter().any(|it| self.seen.workers.get(&it.from).is_some_and(|it| it.busy >= SATURATED));
        self.rest.changed(cause);
        self.state = State::Judging(Change::new(cause, moves.clone(), was_saturated, &self.seen));
        Some(self.verdict(sample, cause, moves, wanted))
    }

    /// A look at what a change has done.
    fn judge(&mut self, mut change: Change, latest: Seen, sample: &Sample) -> Option<Verdict> {
        let Some(outcome) = change.look(latest) else {
            self.state = State::Judging(change);
            return None;
        };
        let before = std::mem::replace(&mut self.seen, change.seen().clone());
        self.seen.remember(&before);
        let busiest = change.busiest(&self.seen);
        if change.is_good(outcome, busiest, self.favour) {
            self.rest.kept(change.is_in_vain(outcome, busiest));
            // What is saturated still needs no second look.
            self.spreads = SPREAD_LOOKS;
            return None;
        }
        if !change.has_lost() {
            self.state = State::Judging(change);
            return None;
        }
        self.rest.undone(sample.at_ns, change.cause());
        let there: Vec<u32> = sample.workers.iter().filter(|it| it.shared).map(|it| it.worker).collect();
        let is_there =
            |ring: u64, worker: u32| self.seen.rings.get(&ring).is_some_and(|it| it.worker == worker && it.movable);
        let back = change.moves().iter().filter(|it| there.contains(&it.from) && is_there(it.ring, it.to));
        let moves: Vec<Move> = back.map(|it| Move { ring: it.ring, from: it.to, to: it.from }).collect();
        if moves.is_empty() {
            return None;
        }
        let verdict = self.verdict(sample, Cause::Undo, moves, change.serving());
        Some(Verdict { outcome: Some(outcome), ..verdict })
    }

    /// The present state as a plan, on at most so many workers, those that serve most first; without a number on those that serve.
    fn plan(&self, sample: &Sample, workers: Option<usize>) -> Plan {
        let wishes = (workers.is_some() || self.spreads > 0).then(|| self.seen.wishes());
        let movable = self.seen.rings.iter().filter(|(_, ring)| ring.movable && ring.load >= LOAD_MIN);
        let items: Vec<Item> = movable
            .map(|(ring, it)| Item {
                ring: *ring,
                export: it.export,
                worker: it.worker,
                node: it.node,
                demand: wishes.as_ref().map_or(it.load, |wishes| self.seen.demand(it, wishes)),
            })
            .collect();
        // Only what the sample still shows can be given a ring.
        let mut shared: Vec<(u32, Option<u16>)> =
            sample.workers.iter().filter(|it| it.shared).map(|it| (it.worker, it.cpu)).collect();
        let serves = |number: u32| items.iter().any(|item| item.worker == number);
        let busy = |number: u32| self.seen.workers.get(&number).map_or(0.0, |it| it.busy);
        shared.sort_by(|a, b| serves(b.0).cmp(&serves(a.0)).then(busy(b.0).total_cmp(&busy(a.0))).then(a.0.cmp(&b.0)));
        shared.dedup_by_key(|it| it.0);
        let kept = workers.unwrap_or(shared.len());
        let bins: BTreeMap<u32, Bin> = shared
            .into_iter()
            .take(kept)
            .map(|(number, cpu)| {
                let node = cpu.and_then(|cpu| sample.machine.node(cpu));
                (number, Bin { node, fixed: self.seen.fixed(number) })
            })
            .collect();
        Plan::new(bins, items)
    }

    fn busiest(&self) -> (u32, f64) {
        let shared = self.seen.workers.iter().filter(|(_, it)| it.shared);
        shared.map(|(number, it)| (*number, it.busy)).max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }

    fn verdict(&self, sample: &Sample, cause: Cause, moves: Vec<Move>, workers: u32) -> Verdict {
        let there = shared(sample);
        let taken: Vec<u16> = sample.workers.iter().filter_map(|it| it.cpu).collect();
        let missing = workers.saturating_sub(there) as usize;
        let (busiest, busy) = self.busiest();
        let node = self.seen.workers.get(&busiest).and_then(|it| it.cpu).and_then(|cpu| sample.machine.node(cpu));
        Verdict {
            at_ns: sample.at_ns,
            cause,
            serving: self.seen.serving(),
            workers,
            allowed: sample.machine.allowed(there),
            seats: sample.machine.seats(&taken, node, missing),
            moves,
            busiest,
            busy,
            load: self.seen.workers.values().filter(|it| it.shared).map(|it| it.busy).sum(),
            outcome: None,
        }
    }
}

/// How many workers rings may be given to.
fn shared(sample: &Sample) -> u32 {
    let numbers: BTreeSet<u32> = sample.workers.iter().filter(|it| it.shared).map(|it| it.worker).collect();
    numbers.len() as u32
}

/// How many workers a plan leaves without a load.
fn emptied(seen: &Seen, moves: &[Move]) -> u32 {
    let mut left: BTreeMap<u32, i64> = BTreeMap::new();
    for ring in seen.rings.values().filter(|ring| ring.load >= LOAD_MIN) {
        *left.entry(ring.worker).or_default() += 1;
    }
    for it in moves {
        *left.entry(it.from).or_default() -= 1;
        *left.entry(it.to).or_default() += 1;
    }
    left.values().filter(|count| **count <= 0).count() as u32
}
