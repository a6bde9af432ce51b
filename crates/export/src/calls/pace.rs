//! Whether calls on the spot have been quick lately: what `auto` knows of the storage under a directory.

/// A call that took longer waited for something else than memory: a copy of 128 KiB takes 30 microseconds on slow machines.
const SLOW_NS: u64 = 150_000;
/// One slow call may have met a busy processor. Another within so many calls has met a disk.
const SUSPICION: u32 = 16;
/// So many calls then go by io_uring before one is tried on the spot again: a worker that waits serves nobody.
const PENANCE: u32 = 128;

/// Learns from the calls of one ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    suspicion: u32,
    penance: u32,
}

impl Pace {
    /// Whether the next call may run on the spot.
    #[inline]
    pub(crate) fn quick(&mut self) -> bool {
        self.penance = self.penance.saturating_sub(1);
        self.penance == 0
    }

    /// A call on the spot took this long, in nanoseconds, for this many bytes.
    #[inline]
    pub(crate) fn took(&mut self, ns: u64, bytes: usize) {
        // Large transfers take their time in memory too: 4 GB/s is slow for that.
        if ns <= SLOW_NS + bytes as u64 / 4 {
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
    use super::*;

    const QUICK: u64 = SLOW_NS;
    const SLOW: u64 = SLOW_NS + 2000;

    #[test]
    fn two_slow_calls_keep_the_next_ones_off_the_worker() {
        let mut pace = Pace::default();
        assert!(pace.quick());
        pace.took(SLOW, 4096);
        assert!(pace.quick(), "one may be an accident");
        pace.took(QUICK, 4096);
        pace.took(SLOW, 4096);
        let mut held_off = 0;
        while !pace.quick() {
            held_off += 1;
        }
        assert_eq!(held_off, PENANCE - 1);
        pace.took(SLOW, 4096);
        assert!(!pace.quick(), "the disk is still slow");
    }

    #[test]
    fn slow_calls_far_apart_are_accidents() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.took(SLOW, 4096);
            for _ in 0..SUSPICION {
                pace.took(QUICK, 4096);
            }
            assert!(pace.quick());
        }
    }

    #[test]
    fn a_large_copy_is_not_slow() {
        let mut pace = Pace::default();
        for _ in 0..10 {
            pace.took(SLOW_NS + 200_000, 1 << 20);
        }
        assert!(pace.quick());
    }
}
