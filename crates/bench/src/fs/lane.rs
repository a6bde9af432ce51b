//! What a run asks of a queue or a connection, whatever protocol it speaks.

use std::path::Path;

use anyhow::Result;

use super::job::Job;
use super::scratch::Scratch;
use crate::frontend::rng::Rng;

/// Linux asks for so much of a directory at once over FUSE, at most (32 pages). Over 9P it takes a whole message; here
/// both ask for the same.
pub(crate) const LISTING_BYTES: usize = 32 * 4096;
/// Names that are looked up and do not exist: not one that the host's kernel would have at hand each time.
const MISSING_NAMES: u64 = 1 << 16;

/// What a job is prepared for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) job: Job,
    /// Differs from run to run.
    pub(crate) run: u32,
    pub(crate) block_bytes: usize,
    pub(crate) direct: bool,
    /// Entries of the large directory.
    pub(crate) entries: u32,
    pub(crate) scratch: &'a Scratch,
    /// Where the scratch directory is in what the server shares.
    pub(crate) base: &'a Path,
}

/// What a request that has been answered adds to the figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Yield {
    /// Entries that were listed.
    pub(crate) entries: u64,
    /// Whether a listing has reached its end.
    pub(crate) is_end: bool,
    /// Whether the same step is to be sent again before the next: the data of one operation takes several requests.
    pub(crate) again: bool,
}

/// A queue or a connection with a job, in the words of one protocol.
///
/// An operation is a row of steps; a step is one request and its reply. Operations are numbered by their slots, of which
/// each has at most one request in flight.
pub(crate) trait Lane: Sized + Send + 'static {
    /// One request of an operation.
    type Step: Copy + 'static;
    /// The state of one operation.
    type Operation;
    /// A reply that fits its request.
    type Reply: Copy;

    /// The job.
    fn job(&self) -> Job;

    /// The requests of one operation, in order.
    fn steps(&self) -> &'static [Self::Step];

    /// Name of the request in its protocol, with what tells it from others of its kind.
    fn step_name(step: Self::Step) -> &'static str;

    /// Slots.
    fn depth(&self) -> u16;

    /// Bytes of a read or write.
    fn block_bytes(&self) -> usize;

    /// Operation `n` of this lane, ready for its first step.
    fn operation(&self, n: usize) -> Self::Operation;

    /// Makes what an operation needs before its first step.
    fn prepare(&mut self, operation: &mut Self::Operation) -> Result<()>;

    /// Removes what [`Lane::prepare`] made.
    fn clean_up(&mut self, operation: &mut Self::Operation) -> Result<()>;

    /// Fills the data that the writes of every slot send.
    fn fill_data(&mut self);

    /// Enters the request of `step` on `slot`, which is free.
    fn submit(&mut self, slot: u16, operation: &mut Self::Operation, step: Self::Step);

    /// Shows the server what was entered.
    fn publish(&mut self) -> Result<()>;

    /// Requests in flight.
    fn in_flight(&self) -> usize;

    /// Whether there is a reply, without sleeping for one.
    fn has_reply(&mut self) -> Result<bool>;

    /// Sleeps until there is a reply.
    ///
    /// # Errors
    /// The server died, or takes longer than a server may.
    fn wait(&mut self) -> Result<()>;

    /// The next reply that is there, and its slot, which is free again.
    ///
    /// # Errors
    /// The server answered what was not asked, or with something that is no reply to it.
    fn take(&mut self) -> Result<Option<(u16, Self::Reply)>>;

    /// Judges the reply to the request of `step`.
    ///
    /// # Errors
    /// The request failed, or the reply is wrong: figures of such a server say nothing.
    fn settle(&mut self, reply: Self::Reply, operation: &mut Self::Operation, step: Self::Step) -> Result<Yield>;

    /// Whether the server does not answer `step`, so that it takes no slot and is not waited for.
    fn is_mute(_step: Self::Step) -> bool {
        false
    }

    /// Does the mute step of an operation, now or with others at the next [`Lane::tidy`].
    fn tell(&mut self, _operation: &Self::Operation) {}

    /// Sends what mute steps have gathered when that is enough, or all of it, and then waits until the server has
    /// taken it.
    fn tidy(&mut self, _all: bool) -> Result<()> {
        Ok(())
    }

    /// Operations under way at a time. A listing goes on where its last reply ended, so there is one on each lane.
    fn width(&self) -> usize {
        if self.job().lists() { 1 } else { usize::from(self.depth()) }
    }
}

/// What stands behind `missing-` in a name that does not exist, of the many that are drawn from.
pub(crate) fn missing_digits(rng: &mut Rng) -> [u8; 8] {
    rng.below(MISSING_NAMES).to_le_bytes().map(|byte| b'a' + byte % 16)
}

/// Where a lane reads or writes next.
#[derive(Debug)]
pub(crate) struct Offsets {
    rng: Rng,
    is_random: bool,
    block_bytes: u64,
    /// Blocks of the whole file.
    blocks: u64,
    /// The blocks that this lane goes through in order: the first, how many, and how often it took one.
    first: u64,
    share: u64,
    taken: u64,
}

impl Offsets {
    /// Of lane `index` of `lanes`, in a file of `blocks` blocks.
    pub(crate) fn new(job: Job, (index, lanes): (usize, usize), blocks: u64, block_bytes: usize) -> Self {
        let share = (blocks / lanes.max(1) as u64).max(1);
        Self {
            rng: Rng::new(1, index as u64),
            is_random: job.is_random(),
            block_bytes: block_bytes as u64,
            blocks,
            first: share * index as u64 % blocks.max(1),
            share,
            taken: 0,
        }
    }

    /// The next offset.
    pub(crate) fn next(&mut self) -> u64 {
        let block = if self.is_random {
            self.rng.below(self.blocks)
        } else {
            let block = self.first + self.taken % self.share;
            self.taken += 1;
            block
        };
        block * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_through_shares_of_their_own_and_begin_again() {
        let offsets = |index| {
            let mut offsets = Offsets::new(Job::ReadSeq, (index, 2), 6, 512);
            (0..4).map(|_| offsets.next() / 512).collect::<Vec<_>>()
        };
        assert_eq!(offsets(0), [0, 1, 2, 0]);
        assert_eq!(offsets(1), [3, 4, 5, 3]);
    }

    #[test]
    fn random_offsets_are_blocks_of_the_file() {
        let mut offsets = Offsets::new(Job::WriteRand, (0, 1), 7, 4096);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            let offset = offsets.next();
            assert_eq!(offset % 4096, 0);
            seen[(offset / 4096) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
    }
}
