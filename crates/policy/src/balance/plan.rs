//! Plans: moves that bring workers below a load, and moves that empty workers. Greedy, and bounded by the number of moves.

use super::Move;
use std::collections::{BTreeMap, BTreeSet};

/// What a move has to take off the busiest of its two workers: its price, as a share of a worker's time. Tens of microseconds on two
/// workers, many times over if it is paid back within a second...
const MOVE_GAIN: f64 = 0.002;
/// ...and what all moves of a plan have to take off the busiest one that is helped: what is less is noise.
const PLAN_GAIN: f64 = 0.08;
/// By how much a worker on another node than a ring's memory counts as busier.
const REMOTE: f64 = 0.15;

/// A worker that rings may be given to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bin {
    pub(super) node: Option<u32>,
    /// What it does for others than the items.
    pub(super) fixed: f64,
}

/// A ring that may be moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) ring: u64,
    pub(super) export: u64,
    pub(super) worker: u32,
    pub(super) node: Option<u32>,
    pub(super) demand: f64,
}

/// Workers and what is on them, while moves are thought of.
pub(super) struct Plan {
    bins: BTreeMap<u32, Bin>,
    items: Vec<Item>,
    loads: BTreeMap<u32, f64>,
    moves: Vec<Move>,
}

impl Plan {
    /// The present state. Items of other workers than these are none.
    pub(super) fn new(bins: BTreeMap<u32, Bin>, mut items: Vec<Item>) -> Plan {
        items.retain(|item| bins.contains_key(&item.worker));
        let mut loads: BTreeMap<u32, f64> = bins.iter().map(|(number, bin)| (*number, bin.fixed)).collect();
        for item in &items {
            *loads.entry(item.worker).or_default() += item.demand;
        }
        Plan { bins, items, loads, moves: Vec::new() }
    }

    /// How many workers it takes for none to have more than `ceiling`: first fit, the largest first, what cannot move counted where it is.
    pub(super) fn needed(&self, ceiling: f64) -> usize {
        let mut demands: Vec<f64> = self.items.iter().map(|item| item.demand).collect();
        demands.sort_by(|a, b| b.total_cmp(a));
        let mut filled: Vec<f64> = self.bins.values().map(|bin| bin.fixed).filter(|fixed| *fixed > 0.01).collect();
        for demand in demands {
            match filled.iter_mut().find(|load| **load + demand <= ceiling) {
                Some(load) => *load += demand,
                None => filled.push(demand),
            }
        }
        filled.len()
    }

    /// Moves rings off workers with more than `ceiling`, as long as each move pays.
    pub(super) fn spread(mut self, ceiling: f64, moves_max: usize) -> Vec<Move> {
        let before = self.loads.clone();
        let mut stuck: BTreeSet<u32> = BTreeSet::new();
        while self.moves.len() < moves_max {
            let over = self.loads.iter().filter(|(number, load)| **load > ceiling && !stuck.contains(number));
            let Some(source) = over.max_by(|a, b| a.1.total_cmp(b.1)).map(|(source, _)| *source) else { break };
            match self.best_off(source) {
                Some((place, target)) => self.put(place, target),
                None => drop(stuck.insert(source)),
            }
        }
        let helped = before.iter().map(|(number, load)| load - self.loads[number]).fold(0.0, f64::max);
        if helped >= PLAN_GAIN { self.moves } else { Vec::new() }
    }

    /// The move off a worker that leaves the least to the busier of the two, if it pays. Of equals, the one that brings a ring nearer to
    /// its memory; then that of an export which meets itself there.
    fn best_off(&self, source: u32) -> Option<(usize, u32)> {
        let load = self.loads[&source];
        let here = |item: &&Item| item.worker == source;
        let meets = |item: &Item| self.items.iter().filter(here).filter(|other| other.export == item.export).count();
        let mut best: Option<(f64, f64, usize, u32)> = None;
        for (place, item) in self.items.iter().enumerate().filter(|(_, item)| item.worker == source) {
            let far = |number: u32| if self.is_remote(item, number) { REMOTE } else { 0.0 };
            let farther = |number: u32| far(number) - far(source);
            let others = self.loads.iter().filter(|(number, _)| **number != source);
            let nearest = others.min_by(|a, b| (a.1 + farther(*a.0)).total_cmp(&(b.1 + farther(*b.0))));
            let Some((target, at_target)) = nearest.map(|(target, load)| (*target, *load)) else { continue };
            let far = farther(target);
            let peak = (load - item.demand).max(at_target + item.demand + far.max(0.0));
            let is_better = best.is_none_or(|(least, least_far, other, _)| {
                let order =
                    if (peak - least).abs() < 1e-9 { far.total_cmp(&least_far) } else { peak.total_cmp(&least) };
                order.is_lt() || (order.is_eq() && meets(item) > meets(&self.items[other]))
            });
            if is_better && load - peak >= MOVE_GAIN {
                best = Some((peak, far, place, target));
            }
        }
        best.map(|(_, _, place, target)| (place, target))
    }

    /// Empties workers, the least busy first, as long as all that is on one finds room below `ceiling` elsewhere.
    pub(super) fn gather(mut self, ceiling: f64, moves_max: usize) -> Vec<Move> {
        let mut tried: BTreeSet<u32> = BTreeSet::new();
        loop {
            let full = |number: u32| self.items.iter().any(|item| item.worker == number);
            let left = self.loads.iter().filter(|(number, _)| {
                // What is pinned keeps a worker from being empty.
                full(**number) && !tried.contains(number) && self.bins[*number].fixed < 0.01
            });
            let Some(source) = left.min_by(|a, b| a.1.total_cmp(b.1)).map(|(number, _)| *number) else { break };
            tried.insert(source);
            let before = (self.items.clone(), self.loads.clone(), self.moves.clone());
            if !self.empty(source, ceiling) || self.moves.len() > moves_max {
                (self.items, self.loads, self.moves) = before;
            }
        }
        self.moves
    }

    /// Whether all of a worker's rings found a place: with their export if there is room, else on the busiest with room.
    fn empty(&mut self, source: u32, ceiling: f64) -> bool {
        let mut places: Vec<usize> =
            (0..self.items.len()).filter(|place| self.items[*place].worker == source).collect();
        places.sort_by(|a, b| self.items[*b].demand.total_cmp(&self.items[*a].demand));
        for place in places {
            let item = self.items[place];
            let serves = |number: u32| self.items.iter().any(|other| other.worker == number);
            let kin = |number: u32| self.items.iter().any(|it| it.worker == number && it.export == item.export);
            let room = self.loads.iter().filter(|(number, load)| {
                let far = if self.is_remote(&item, **number) && !self.is_remote(&item, source) { REMOTE } else { 0.0 };
                **number != source && serves(**number) && **load + item.demand + far <= ceiling
            });
            let target =
                room.max_by(|a, b| kin(*a.0).cmp(&kin(*b.0)).then(a.1.total_cmp(b.1))).map(|(number, _)| *number);
            let Some(target) = target else { return false };
            self.put(place, target);
        }
        true
    }

    fn is_remote(&self, item: &Item, number: u32) -> bool {
        let node = self.bins.get(&number).and_then(|bin| bin.node);
        item.node.zip(node).is_some_and(|(ring, worker)| ring != worker)
    }

    fn put(&mut self, place: usize, target: u32) {
        let item = &mut self.items[place];
        let source = std::mem::replace(&mut item.worker, target);
        *self.loads.entry(source).or_default() -= item.demand;
        *self.loads.entry(target).or_default() += item.demand;
        // A ring that is moved on is moved once.
        match self.moves.iter_mut().find(|it| it.ring == item.ring) {
            Some(earlier) => earlier.to = target,
            None => self.moves.push(Move { ring: item.ring, from: source, to: target }),
        }
        self.moves.retain(|it| it.from != it.to);
    }
}
