//! What may be tried under the present load, and when the load is another one.

use super::load::Seen;
use super::{CHANGES_MAX, Cause};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Turns from spreading to gathering or back, under one load.
const TURNS_MAX: u32 = 2;
/// Spreads among saturated workers that may gain nothing, in a row: what is full is not emptied by moving it about.
const VAIN_MAX: u32 = 3;
/// Looks whose mean is what the load is usually like.
const USUAL_LOOKS: u32 = 10;
/// Looks without a change behind which nothing more is tried: all there was to try has had its time, and what is left is noise.
const SETTLED_LOOKS: u32 = 30;
/// The load is another when a ring's differs by so much of a worker...
const SHIFT: f64 = 0.1;
/// ...and this share of what it was, or all of them together by as much...
const SHIFT_SHARE: f64 = 0.25;
/// ...or a worker's by so much...
const SHIFT_WORKER: f64 = 0.15;
/// ...at so many looks in a row.
const SHIFT_LOOKS: u32 = 5;
/// Another load lets everything be tried again when the last try that came to nothing is so long ago. It doubles each time...
const CALM_NS: u64 = 500_000_000;
/// ...up to this.
const CALM_NS_MAX: u64 = 16_000_000_000;

/// What is left alone, and what the load is like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rest {
    no_spread: bool,
    no_gather: bool,
    no_workers: bool,
    changes: u32,
    /// Spreads in a row that left a saturated worker as saturated as before, and gained nothing.
    vain: u32,
    turns: u32,
    last: Option<Cause>,
    /// Loads by ring and by worker behind the last change...
    rings: BTreeMap<u64, f64>,
    workers: BTreeMap<u32, f64>,
    /// ...and the looks since.
    looks: u32,
    shifted: u32,
    undone_ns: u64,
    calm_ns: u64,
}

impl Rest {
    pub(super) fn may_spread(&self) -> bool {
        !self.no_spread && self.vain < VAIN_MAX && self.is_open()
    }

    pub(super) fn may_gather(&self) -> bool {
        !self.no_gather && self.is_open()
    }

    /// Changes under this load.
    pub(super) fn changes(&self) -> u32 {
        self.changes
    }

    fn is_open(&self) -> bool {
        self.looks < SETTLED_LOOKS && self.changes < CHANGES_MAX && self.turns <= TURNS_MAX
    }

    /// Workers that were asked for did not come.
    pub(super) fn refused(&mut self) {
        self.no_workers = true;
    }

    pub(super) fn is_refused(&self) -> bool {
        self.no_workers
    }

    /// Something is changed.
    pub(super) fn changed(&mut self, cause: Cause) {
        self.changes = self.changes.saturating_add(1);
        self.turns = self.turns.saturating_add(u32::from(self.last.is_some_and(|last| last != cause)));
        self.last = Some(cause);
        self.unlearn();
    }

    /// It was good, or at least gained nothing.
    pub(super) fn kept(&mut self, in_vain: bool) {
        self.vain = if in_vain { self.vain.saturating_add(1) } else { 0 };
        self.calm_ns = CALM_NS;
        self.unlearn();
    }

    /// It was not.
    pub(super) fn undone(&mut self, at_ns: u64, cause: Cause) {
        match cause {
            Cause::Gather => self.no_gather = true,
            Cause::Spread | Cause::Undo => self.no_spread = true,
        }
        self.undone_ns = at_ns;
        self.calm_ns = self.calm_ns.saturating_mul(2).clamp(CALM_NS, CALM_NS_MAX);
        self.unlearn();
    }

    fn unlearn(&mut self) {
        self.rings.clear();
        self.workers.clear();
        (self.looks, self.shifted) = (0, 0);
    }

    /// A look while nothing is under way. Whether the load differs from what it was.
    pub(super) fn look(&mut self, at_ns: u64, seen: &Seen) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= USUAL_LOOKS {
            for (ring, it) in &seen.rings {
                *self.rings.entry(*ring).or_default() += it.load / f64::from(USUAL_LOOKS);
            }
            for (worker, it) in &seen.workers {
                *self.workers.entry(*worker).or_default() += it.busy / f64::from(USUAL_LOOKS);
            }
            return false;
        }
        self.shifted = if self.differs(seen) { self.shifted.saturating_add(1) } else { 0 };
        let differs = self.shifted > 0;
        if self.shifted >= SHIFT_LOOKS && at_ns >= self.undone_ns.saturating_add(self.calm_ns) {
            *self = Rest { undone_ns: self.undone_ns, calm_ns: self.calm_ns, ..Rest::default() };
        }
        differs
    }

    fn differs(&self, seen: &Seen) -> bool {
        let was = |ring: u64| self.rings.get(&ring).copied().unwrap_or_default();
        let gone = self.rings.iter().filter(|(ring, _)| !seen.rings.contains_key(ring)).map(|(_, was)| (*was, 0.0));
        let pairs = || seen.rings.iter().map(|(ring, it)| (was(*ring), it.load)).chain(gone.clone());
        let is_other = |(was, is): (f64, f64)| (is - was).abs() > SHIFT + SHIFT_SHARE * was;
        let total: f64 = self.rings.values().sum();
        let apart: f64 = pairs().map(|(was, is)| (is - was).abs()).sum();
        let worker = |(number, was): (&u32, &f64)| {
            seen.workers.get(number).is_some_and(|it| it.shared && (it.busy - was).abs() > SHIFT_WORKER)
        };
        pairs().any(is_other) || is_other((total, total + apart)) || self.workers.iter().any(worker)
    }
}
