//! Which request comes next.

use super::rng::Rng;
use super::spec::{Part, Spec};

/// A request before it has a buffer. Blocks count from the start of the queue's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read this block.
    Read(u64),
    /// Write this block.
    Write(u64),
    /// Make what was written durable.
    Flush,
}

/// An endless sequence of requests for one queue.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: Rng,
    random: bool,
    /// A draw of 32 bits below this is a read.
    reads_below: u64,
    blocks: u64,
    next_block: u64,
    flush_every: u32,
    writes_until_flush: u32,
}

impl Plan {
    /// The plan of `queue`, which works on `part`.
    pub(crate) fn new(spec: &Spec, part: Part, queue: u16) -> Self {
        let read_percent = u64::from(spec.rw.read_percent(spec.mix));
        Self {
            rng: Rng::new(spec.seed, u64::from(queue)),
            random: spec.rw.is_random(),
            reads_below: (read_percent << 32) / 100,
            blocks: part.blocks,
            next_block: 0,
            flush_every: spec.flush_every,
            writes_until_flush: spec.flush_every,
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Step {
        if self.flush_every != 0 && self.writes_until_flush == 0 {
            self.writes_until_flush = self.flush_every;
            return Step::Flush;
        }
        let block = if self.random { self.rng.below(self.blocks) } else { self.advance() };
        if self.draws_read() {
            return Step::Read(block);
        }
        self.writes_until_flush = self.writes_until_flush.saturating_sub(1);
        Step::Write(block)
    }

    fn advance(&mut self) -> u64 {
        let block = self.next_block;
        self.next_block = if block + 1 == self.blocks { 0 } else { block + 1 };
        block
    }

    fn draws_read(&mut self) -> bool {
        match self.reads_below {
            0 => false,
            all if all > u64::from(u32::MAX) => true,
            some => self.rng.next() >> 32 < some,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Rw;
    use super::*;

    const PART: Part = Part { offset_bytes: 0, blocks: 3 };

    fn steps(spec: &Spec, count: usize) -> Vec<Step> {
        let mut plan = Plan::new(spec, PART, 0);
        (0..count).map(|_| plan.next()).collect()
    }

    #[test]
    fn sequential_plans_go_round() {
        let spec = Spec { rw: Rw::Read, ..Spec::default() };
        assert_eq!(steps(&spec, 4), [Step::Read(0), Step::Read(1), Step::Read(2), Step::Read(0)]);
    }

    #[test]
    fn a_flush_follows_every_so_many_writes() {
        let spec = Spec { rw: Rw::Write, flush_every: 2, ..Spec::default() };
        let expected = [Step::Write(0), Step::Write(1), Step::Flush, Step::Write(2), Step::Write(0), Step::Flush];
        assert_eq!(steps(&spec, 6), expected);
    }

    #[test]
    fn a_mix_keeps_its_share_and_the_extremes_are_exact() {
        let reads = |mix| {
            let spec = Spec { rw: Rw::RandRw, mix, ..Spec::default() };
            steps(&spec, 10_000).iter().filter(|step| matches!(step, Step::Read(_))).count()
        };
        assert_eq!((reads(0), reads(100)), (0, 10_000));
        let seventy = reads(70);
        assert!((6_800..7_200).contains(&seventy), "{seventy}");
    }

    #[test]
    fn random_plans_stay_in_their_part() {
        let blocks = steps(&Spec::default(), 1000).into_iter().map(|step| match step {
            Step::Read(block) => block,
            other => panic!("{other:?} in a plan of reads"),
        });
        assert_eq!(blocks.max(), Some(2));
    }
}
