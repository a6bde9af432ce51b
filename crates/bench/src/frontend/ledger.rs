//! The book of what a queue has written, which makes its reads checkable.
//!
//! A queue owns a range of blocks. At most one request is in flight on a block, so that what a read must deliver is
//! known when it is submitted: virtio-blk orders nothing between requests in flight (virtio 1.3, 5.2.6).

use super::pattern::{self, Fault};

const IN_FLIGHT: u32 = 1 << 31;
const GENERATION: u32 = IN_FLIGHT - 1;

/// One word a block: the generation written last (0: unknown) and whether a request is in flight.
#[derive(Debug)]
pub(crate) struct Ledger {
    run: u64,
    blocks: Box<[u32]>,
}

/// What a request in flight has to come back with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    generation: u32,
}

impl Claim {
    /// The claim of a request that is not verified.
    pub(crate) const NONE: Self = Self { generation: 0 };
}

impl Ledger {
    /// A book of `blocks` blocks of which nothing is known yet.
    pub(crate) fn new(run: u64, blocks: usize) -> Self {
        Self { run, blocks: vec![0; blocks].into_boxed_slice() }
    }

    /// The first block from `wanted` on that has no request in flight.
    ///
    /// `None` when every block has one.
    pub(crate) fn free_from(&self, wanted: usize) -> Option<usize> {
        let (before, after) = self.blocks.split_at(wanted);
        let free = |block: &u32| *block & IN_FLIGHT == 0;
        match after.iter().position(free) {
            Some(step) => Some(wanted + step),
            None => before.iter().position(free),
        }
    }

    /// Notes that a write of the free `block` starts and fills `data` with what it carries.
    pub(crate) fn start_write(&mut self, block: usize, offset: u64, data: &mut [u8]) -> Claim {
        let entry = &mut self.blocks[block];
        debug_assert_eq!(*entry & IN_FLIGHT, 0, "two requests on one block");
        let generation = (*entry & GENERATION) % GENERATION + 1;
        *entry = generation | IN_FLIGHT;
        pattern::fill(data, offset, self.run, u64::from(generation));
        Claim { generation }
    }

    /// Notes that a read of the free `block` into `data` starts.
    pub(crate) fn start_read(&mut self, block: usize, data: &mut [u8]) -> Claim {
        let entry = &mut self.blocks[block];
        debug_assert_eq!(*entry & IN_FLIGHT, 0, "two requests on one block");
        let generation = *entry;
        *entry |= IN_FLIGHT;
        pattern::poison(data);
        Claim { generation }
    }

    /// Notes that a write ended. Nothing is known of the content of a block whose write failed.
    pub(crate) fn end_write(&mut self, block: usize, claim: Claim, succeeded: bool) {
        self.blocks[block] = if succeeded { claim.generation } else { 0 };
    }

    /// Notes that a read ended; judges `data` when it `succeeded`.
    pub(crate) fn end_read(
        &mut self,
        block: usize,
        claim: Claim,
        offset: u64,
        data: &[u8],
        succeeded: bool,
    ) -> Result<(), Fault> {
        self.blocks[block] = claim.generation;
        if !succeeded {
            return Ok(());
        }
        match claim.generation {
            0 => pattern::check_unknown(data, offset),
            generation => pattern::check(data, offset, self.run, u64::from(generation)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 1024;

    #[test]
    fn a_block_in_flight_is_passed_over() {
        let mut ledger = Ledger::new(1, 3);
        let mut data = [0; BLOCK];
        assert_eq!(ledger.free_from(2), Some(2));
        let last = ledger.start_write(2, 0, &mut data);
        assert_eq!(ledger.free_from(2), Some(0), "wraps around");
        ledger.start_read(0, &mut data);
        ledger.start_read(1, &mut data);
        assert_eq!(ledger.free_from(1), None);
        ledger.end_write(2, last, true);
        assert_eq!(ledger.free_from(0), Some(2));
    }

    #[test]
    fn a_read_is_judged_by_the_last_write() {
        let mut ledger = Ledger::new(1, 1);
        let (mut first, mut second) = ([0; BLOCK], [0; BLOCK]);
        let claim = ledger.start_write(0, 512, &mut first);
        ledger.end_write(0, claim, true);
        let claim = ledger.start_write(0, 512, &mut second);
        ledger.end_write(0, claim, true);

        let claim = ledger.start_read(0, &mut [0; BLOCK]);
        assert_eq!(ledger.end_read(0, claim, 512, &second, true), Ok(()));
        let claim = ledger.start_read(0, &mut [0; BLOCK]);
        let fault = ledger.end_read(0, claim, 512, &first, true).unwrap_err();
        assert_eq!(fault, Fault::Generation { offset: 512, expected: 2, found: 1 });
        assert_eq!(ledger.free_from(0), Some(0), "a fault frees the block too");
    }

    #[test]
    fn nothing_is_known_after_a_failed_write_and_before_the_first() {
        let mut ledger = Ledger::new(1, 1);
        let zeroes = [0; BLOCK];
        let claim = ledger.start_read(0, &mut [0; BLOCK]);
        assert_eq!(ledger.end_read(0, claim, 0, &zeroes, true), Ok(()));

        let claim = ledger.start_write(0, 0, &mut [0; BLOCK]);
        ledger.end_write(0, claim, false);
        let claim = ledger.start_read(0, &mut [0; BLOCK]);
        assert_eq!(ledger.end_read(0, claim, 0, &zeroes, true), Ok(()));
    }

    #[test]
    fn a_failed_read_is_not_judged_and_forgets_nothing() {
        let mut ledger = Ledger::new(1, 1);
        let claim = ledger.start_write(0, 0, &mut [0; BLOCK]);
        ledger.end_write(0, claim, true);
        let claim = ledger.start_read(0, &mut [0; BLOCK]);
        assert_eq!(ledger.end_read(0, claim, 0, &[0; BLOCK], false), Ok(()));
        let claim = ledger.start_read(0, &mut [0; BLOCK]);
        assert!(ledger.end_read(0, claim, 0, &[0; BLOCK], true).is_err());
    }

    #[test]
    fn generations_start_again_at_one() {
        let mut ledger = Ledger::new(1, 1);
        ledger.blocks[0] = GENERATION;
        let claim = ledger.start_write(0, 0, &mut [0; BLOCK]);
        assert_eq!(claim.generation, 1);
        ledger.blocks[0] = GENERATION - 1;
        assert_eq!(ledger.start_write(0, 0, &mut [0; BLOCK]).generation, GENERATION);
    }
}
