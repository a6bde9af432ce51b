//! One SCSI command in flight.

use super::work::Work;
use device::scsi::{Buffers, Sizes};
use storage::Task;
use vring::Segment;

/// A device's part of a request.
pub(crate) struct ScsiRequest {
    pub(crate) task: Task,
    /// Where the response goes.
    response: Vec<Segment>,
    /// How long header and response are, which a driver may change while it is under way.
    pub(crate) sizes: Sizes,
    /// The data of its chain.
    pub(crate) buffers: Buffers,
    /// The unit that it is for, by its place in the ring.
    pub(crate) unit: Option<u16>,
    /// Its place among all that the ring has taken.
    pub(crate) number: u64,
    /// What task management names it by.
    pub(crate) tag: u64,
    pub(crate) work: Work,
    /// The next completion is ours, not the storage's: others have had their turns.
    pub(crate) between: bool,
}

impl ScsiRequest {
    pub(crate) fn new(sizes: Sizes) -> ScsiRequest {
        ScsiRequest {
            task: Task::new(),
            response: Vec::new(),
            sizes,
            buffers: Buffers { out_bytes: 0, in_bytes: 0 },
            unit: None,
            number: 0,
            tag: 0,
            work: Work::Answer { moved: 0 },
            between: false,
        }
    }

    /// A chain whose first writable bytes are for the response.
    #[inline]
    pub(crate) fn begin(&mut self, writable: &[Segment], sizes: Sizes, number: u64) {
        self.response.clear();
        self.sizes = sizes;
        let (response_bytes, mut found) = (sizes.response_bytes(), 0);
        for segment in writable.iter().take_while(|segment| {
            let more = found < response_bytes;
            found += segment.len();
            more
        }) {
            self.response.push(*segment);
        }
        self.buffers = Buffers { out_bytes: 0, in_bytes: 0 };
        (self.unit, self.number) = (None, number);
        self.rest();
        self.task.buffers.clear();
    }

    /// Writes the response where the driver looks for it, and says how many bytes that are.
    #[inline]
    pub(crate) fn answer(&mut self, response: &[u8]) -> u64 {
        self.task.rest();
        self.rest();
        let written = vring::copy::write_at(&self.response, 0, response);
        self.response.clear();
        written as u64
    }

    /// Nothing is left to be done of it.
    #[inline]
    fn rest(&mut self) {
        self.set_work(Work::Answer { moved: 0 });
    }

    /// What is to be done next. Of two answers one has nothing to drop, which the compiler does not see.
    #[inline]
    pub(crate) fn set_work(&mut self, work: Work) {
        match (&mut self.work, work) {
            (Work::Answer { moved }, Work::Answer { moved: next }) => *moved = next,
            (now, next) => *now = next,
        }
    }

    /// It will never end: others do not wait for it.
    pub(crate) fn pass_turn(&mut self) {
        match &mut self.work {
            Work::Swap(swap) => swap.turn = None,
            Work::Reserve(reserve) => reserve.lost(),
            _ => {}
        }
    }
}
