//! What came of a change: the rate of the rings concerned and their processor time, before and after.

use super::load::{SATURATED, Seen};
use super::{BAND, Cause, Move};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use utoipa::ToSchema;
use values::Favour;

/// Looks that are not counted: what went before still has its effect.
const SETTLE_LOOKS: u32 = 1;
/// Looks that are.
const MEASURE_LOOKS: u32 = 2;
/// A loss has to be seen so many times in a row: a worker that gets rings tries other ways to wait, which costs it some tenths of a second.
const LOSSES: u32 = 2;
/// A gain that one look is enough for.
const CLEAR: f64 = 1.1;
/// What two rates may differ by without meaning it.
const NOISE: f64 = 0.03;
/// What processor time a request has to differ by to count: as in trials of tactics.
const DEARER: f64 = 1.0 / 0.93;

/// What a change came to, relative to what was before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Requests a second of the rings on the workers concerned.
    pub rate: f64,
    /// Processor time a request of these workers.
    pub cpu: f64,
}

/// A change that is being judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    cause: Cause,
    moves: Vec<Move>,
    /// A worker that lost rings was busy all the time: no queue was measured, and only the rate tells.
    was_saturated: bool,
    /// Workers that gave or got rings, and the rings on them before.
    workers: BTreeSet<u32>,
    rings: BTreeSet<u64>,
    before: Work,
    serving: u32,
    looks: u32,
    /// Times that it was seen to lose.
    losses: u32,
    after: Work,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Work {
    rate: f64,
    cpu: f64,
}

impl Change {
    pub(super) fn new(cause: Cause, moves: Vec<Move>, was_saturated: bool, seen: &Seen) -> Change {
        let workers: BTreeSet<u32> = moves.iter().flat_map(|it| [it.from, it.to]).collect();
        let rings = seen.rings.iter().filter(|(_, it)| workers.contains(&it.worker)).map(|(ring, _)| *ring).collect();
        let mut change = Change {
            cause,
            moves,
            was_saturated,
            workers,
            rings,
            before: Work::default(),
            serving: seen.serving(),
            looks: 0,
            losses: 0,
            after: Work::default(),
            seen: Seen::default(),
        };
        change.before = change.work(seen);
        change
    }

    pub(super) fn cause(&self) -> Cause {
        self.cause
    }

    pub(super) fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// How many workers served before.
    pub(super) fn serving(&self) -> u32 {
        self.serving
    }

    /// What was seen since.
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    fn work(&self, seen: &Seen) -> Work {
        let rate = self.rings.iter().filter_map(|ring| seen.rings.get(ring)).map(|it| it.rate).sum();
        let cpu = self.workers.iter().filter_map(|worker| seen.workers.get(worker)).map(|it| it.cpu_share).sum();
        Work { rate, cpu }
    }

    /// Takes in a look; the outcome when there were enough of them.
    pub(super) fn look(&mut self, latest: Seen) -> Option<Outcome> {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= SETTLE_LOOKS {
            return None;
        }
        let work = self.work(&latest);
        self.after.rate += work.rate;
        self.after.cpu += work.cpu;
        self.seen.add(latest);
        let counted = self.looks - SETTLE_LOOKS;
        // A load that went away says nothing: as if nothing had changed.
        let relative = |after: f64, before: f64| if before > 0.0 && after > 0.0 { after / before } else { 1.0 };
        let rate = relative(self.after.rate / f64::from(counted), self.before.rate);
        let cpu = relative(self.after.cpu / self.after.rate.max(1e-9), self.before.cpu / self.before.rate.max(1e-9));
        let is_clear = self.cause == Cause::Spread && rate >= CLEAR;
        (counted >= MEASURE_LOOKS || is_clear).then_some(Outcome { rate, cpu })
    }

    /// It was seen to lose. Whether that is enough; if not, it is looked at anew.
    pub(super) fn has_lost(&mut self) -> bool {
        self.losses = self.losses.saturating_add(1);
        (self.looks, self.after) = (0, Work::default());
        self.losses >= LOSSES
    }

    /// The share of its time that the busiest of the workers concerned is busy.
    pub(super) fn busiest(&self, seen: &Seen) -> f64 {
        self.workers.iter().filter_map(|worker| seen.workers.get(worker)).map(|it| it.busy).fold(0.0, f64::max)
    }

    /// Whether it spread what a saturated worker has, and left as much to do as before.
    pub(super) fn is_in_vain(&self, outcome: Outcome, busiest: f64) -> bool {
        self.cause == Cause::Spread && self.was_saturated && busiest >= SATURATED && outcome.rate < 1.0 + NOISE
    }

    /// Whether it stays.
    pub(super) fn is_good(&self, outcome: Outcome, busiest: f64, favour: Favour) -> bool {
        let tolerance = favour.tolerance().unwrap_or_default();
        match self.cause {
            Cause::Spread => {
                let lost = outcome.rate < 1.0 - NOISE;
                // What was before is within what is favoured, and cheaper.
                let is_dear = self.was_saturated && outcome.rate * (1.0 - tolerance) <= 1.0 && outcome.cpu > DEARER;
                !(lost || is_dear && favour.tolerance().is_some())
            }
            Cause::Gather => {
                // Fewer requests have to be cheaper ones: else workers are merely too few.
                let is_cheap = outcome.rate >= 1.0 - tolerance && outcome.cpu * DEARER < 1.0;
                (outcome.rate >= 1.0 - NOISE || is_cheap) && busiest <= favour.busy_max() + BAND
            }
            Cause::Undo => true,
        }
    }
}
