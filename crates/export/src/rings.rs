//! The rings of one export as its threads see them: which run, where they are to run, what they did before.

use crate::figures::RingFigures;
use crate::page::RingPage;
use engine::{RingId, RingStay, StayPage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A ring that a frontend has started.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) id: RingId,
    pub(crate) size: u16,
    pub(crate) page: RingPage,
    /// What the engine counts of it.
    pub(crate) stay: Arc<StayPage>,
}

/// What is known of a ring apart from its present life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) running: Option<Running>,
    /// The worker that an operator attached it to, also for its next life.
    pub(crate) attached_to: Option<u32>,
    /// The worker of its last life, if it is to have the same one in the next.
    home: Option<u32>,
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
    /// Rings that are to start where they were attached, or where they ran before: ring, worker.
    pub(crate) fn again(attached: &[(u16, u32)], homes: &[(u16, u32)]) -> Rings {
        let mut rings = Rings::default();
        for (index, worker) in attached {
            rings.attach(*index, *worker);
        }
        for (index, worker) in homes {
            rings.remember(*index, *worker);
        }
        rings
    }

    pub(crate) fn record(&self, index: u16) -> Option<&Record> {
        self.records.get(&index)
    }

    pub(crate) fn running(&self, index: u16) -> Option<Running> {
        self.records.get(&index)?.running.clone()
    }

    pub(crate) fn all_running(&self) -> Vec<(u16, Running)> {
        self.records.iter().filter_map(|(index, record)| Some((*index, record.running.clone()?))).collect()
    }

    /// Requests answered, in all lives of all rings.
    pub(crate) fn requests(&self) -> u64 {
        let of = |record: &Record| {
            let past: u64 = record.past.requests.iter().map(|(_, count)| count).sum();
            past + record.running.as_ref().map_or(0, |running| running.page.requests())
        };
        self.records.values().map(of).sum()
    }

    /// The worker on which a ring is to start, where that is not the placement's to say.
    pub(crate) fn wanted(&self, index: u16) -> Option<u32> {
        let record = self.records.get(&index)?;
        record.attached_to.or(record.home)
    }

    /// Whether an operator attached it to a worker.
    pub(crate) fn is_attached(&self, index: u16) -> bool {
        self.records.get(&index).is_some_and(|record| record.attached_to.is_some())
    }

    /// Whether it runs, and no operator has attached it to a worker.
    pub(crate) fn is_free(&self, ring: RingId) -> bool {
        let is_it = |record: &&Record| record.running.as_ref().is_some_and(|running| running.id == ring);
        self.records.values().find(is_it).is_some_and(|record| record.attached_to.is_none())
    }

    /// Rings that an operator attached to a worker.
    pub(crate) fn attached(&self) -> Vec<(u16, u32)> {
        self.records.iter().filter_map(|(index, record)| Some((*index, record.attached_to?))).collect()
    }

    /// Has a ring start on this worker the next time, unless it is attached to another.
    pub(crate) fn remember(&mut self, index: u16, worker: u32) {
        self.records.entry(index).or_default().home = Some(worker);
    }

    /// What was remembered.
    pub(crate) fn homes(&self) -> Vec<(u16, u32)> {
        self.records.iter().filter_map(|(index, record)| Some((*index, record.home?))).collect()
    }

    pub(crate) fn attach(&mut self, index: u16, worker: u32) {
        self.records.entry(index).or_default().attached_to = Some(worker);
    }

    /// Forgets what operators attached by hand: a new placement decides for all.
    pub(crate) fn release(&mut self) {
        for record in self.records.values_mut() {
            (record.attached_to, record.home) = (None, None);
        }
    }

    /// As above, of one.
    pub(crate) fn release_one(&mut self, index: u16) {
        if let Some(record) = self.records.get_mut(&index) {
            (record.attached_to, record.home) = (None, None);
        }
    }

    pub(crate) fn started(&mut self, index: u16, running: Running) {
        let record = self.records.entry(index).or_default();
        record.running = Some(running);
        record.broken = None;
        record.home = None;
    }

    /// Its life is over, or lost: what its pages say goes to the sums.
    pub(crate) fn stopped(&mut self, index: u16, broken: Option<String>) {
        let record = self.records.entry(index).or_default();
        if let Some(running) = record.running.take() {
            record.past.add(&running.page.figures());
            record.past_stay = sum(record.past_stay, running.stay.read());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_starts_where_it_was_attached_or_else_where_it_ran() {
        let mut rings = Rings::again(&[(1, 7)], &[(0, 4), (1, 4)]);
        assert_eq!((rings.wanted(0), rings.wanted(1), rings.wanted(2)), (Some(4), Some(7), None));
        assert_eq!((rings.attached(), rings.homes()), (vec![(1, 7)], vec![(0, 4), (1, 4)]));
        // Once: after that the placement has its say again, but not over what an operator wants.
        for index in 0..2 {
            let (page, stay) = (RingPage::default(), Arc::default());
            rings.started(index, Running { id: RingId(u64::from(index)), size: 8, page, stay });
        }
        assert_eq!((rings.wanted(0), rings.wanted(1)), (None, Some(7)));
        rings.remember(0, 5);
        rings.release();
        assert_eq!((rings.wanted(0), rings.wanted(1)), (None, None));
    }
}
