//! The rings of one export as its threads see them: which run, where they are to run, what they did before.

use crate::figures::RingFigures;
use engine::{RingId, RingStay};
use std::collections::BTreeMap;

/// A ring that a frontend has started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) id: RingId,
    pub(crate) size: u16,
}

/// What is known of a ring apart from its present life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) running: Option<Running>,
    /// The worker that an operator attached it to, also for its next life.
    pub(crate) attached_to: Option<u32>,
    /// Sums over the lives that ended.
    pub(crate) past: RingFigures,
    pub(crate) past_stay: RingStay,
    /// Why its last life broke.
    pub(crate) broken: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Rings {
    records: BTreeMap<u16, Record>,
}

impl Rings {
    pub(crate) fn record(&self, index: u16) -> Option<&Record> {
        self.records.get(&index)
    }

    pub(crate) fn running(&self, index: u16) -> Option<Running> {
        self.records.get(&index)?.running
    }

    pub(crate) fn all_running(&self) -> Vec<(u16, Running)> {
        self.records.iter().filter_map(|(index, record)| Some((*index, record.running?))).collect()
    }

    pub(crate) fn attached_to(&self, index: u16) -> Option<u32> {
        self.records.get(&index)?.attached_to
    }

    pub(crate) fn attach(&mut self, index: u16, worker: u32) {
        self.records.entry(index).or_default().attached_to = Some(worker);
    }

    /// Forgets what operators attached by hand: a new placement decides for all.
    pub(crate) fn release(&mut self) {
        for record in self.records.values_mut() {
            record.attached_to = None;
        }
    }

    pub(crate) fn started(&mut self, index: u16, running: Running) {
        let record = self.records.entry(index).or_default();
        record.running = Some(running);
        record.broken = None;
    }

    pub(crate) fn stopped(&mut self, index: u16, figures: &RingFigures, stay: RingStay, broken: Option<String>) {
        let record = self.records.entry(index).or_default();
        record.running = None;
        record.past.add(figures);
        record.past_stay = sum(record.past_stay, stay);
        record.broken = broken;
    }
}

/// Both stays together.
pub(crate) fn sum(a: RingStay, b: RingStay) -> RingStay {
    RingStay {
        kicks: a.kicks + b.kicks,
        polls_hit: a.polls_hit + b.polls_hit,
        polls_missed: a.polls_missed + b.polls_missed,
        moves: a.moves + b.moves,
    }
}
