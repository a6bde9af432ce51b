//! Whether calls on the spot have been quick lately: what `auto` knows of the storage under a directory.

/// A call that took longer waited for something else than memory: a copy of 128 KiB takes 30 microseconds on slow machines.
const SLOW_NS: u64 = 150_000;
/// One slow call may have met a busy processor. Another within so many calls has met a disk.
const SUSPICION: u32 = 16;
/// So many calls then go by io_uring before one is tried on the spot again: a worker that waits serves nobody.
const PENANCE: u32 = 128;

/// Which way file data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file to the client.
    Read,
    /// From the client to the file.
    Write,
}

/// Learns from the calls of one ring, from either direction apart: while reads wait for a disk, writes to the page cache do
/// not, and most file systems would have them wait for a thread of io_uring's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    reads: Learned,
    writes: Learned,
}

impl Pace {
    /// Whether the next call may run on the spot.
    #[inline]
    pub(crate) fn quick(&mut self, direction: Direction) -> bool {
        self.of(direction).quick()
    }

    /// A call on the spot took this long, in nanoseconds, for this many bytes.
    #[inline]
    pub(crate) fn took(&mut self, direction: Direction, ns: u64, bytes: u64) {
        self.of(direction).took(ns, bytes);
    }

    fn of(&mut self, direction: Direction) -> &mut Learned {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }
}

/// What the calls of one direction have taught.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    suspicion: u32,
    penance: u32,
}

impl Learned {
    #[inline]
    fn quick(&mut self) -> bool {
        self.penance = self.penance.saturating_sub(1);
        self.penance == 0
    }

    #[inline]
    fn took(&mut self, ns: u64, bytes: u64) {
        // Large transfers take their time in memory too: 4 GB/s is slow for that.
        if ns <= SLOW_NS + bytes / 4 {
            self.suspicion = self.suspicion.saturating_sub(1);
        } else if self.suspicion == 0 {
            self.suspicion = SUSPICION;
        } else {
            self.suspicion = SUSPICION;
            self.penance = PENANCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::{Read, Write};
    use super::*;

    const QUICK: u64 = SLOW_NS;
    const SLOW: u64 = SLOW_NS + 2000;

    #[test]
    fn two_slow_calls_keep_the_next_ones_off_the_worker() {
        for direction in [Read, Write] {
            let mut pace = Pace::default();
            assert!(pace.quick(direction));
            pace.took(direction, SLOW, 4096);
            assert!(pace.quick(direction), "one may be an accident");
            pace.took(direction, QUICK, 4096);
            pace.took(direction, SLOW, 4096);
            let mut held_off = 0;
            while !pace.quick(direction) {
                held_off += 1;
            }
            assert_eq!(held_off, PENANCE - 1);
            pace.took(direction, SLOW, 4096);
            assert!(!pace.quick(direction), "the disk is still slow");
        }
    }

    #[test]
    fn what_one_direction_has_met_says_nothing_about_the_other() {
        for (slow, other) in [(Read, Write), (Write, Read)] {
            let mut pace = Pace::default();
            for _ in 0..2 {
                pace.took(slow, SLOW, 4096);
            }
            for _ in 0..PENANCE / 2 {
                assert!(pace.quick(other));
                pace.took(other, QUICK, 4096);
            }
            assert!(!pace.quick(slow), "quick calls of the other direction end nothing");
        }
    }

    #[test]
    fn slow_calls_far_apart_are_accidents() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.took(Read, SLOW, 4096);
            for _ in 0..SUSPICION {
                pace.took(Read, QUICK, 4096);
            }
            assert!(pace.quick(Read));
        }
    }

    #[test]
    fn a_large_copy_is_not_slow() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.took(Write, SLOW_NS + 200_000, 1 << 20);
        }
        assert!(pace.quick(Write));
    }
}
