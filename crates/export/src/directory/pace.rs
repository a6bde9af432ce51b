//! Whether calls on the spot have been quick lately: what `auto` knows of the storage under a directory.

/// A call that took longer waited for something else than memory: a copy of 128 KiB takes 30 microseconds on slow machines.
const SLOW_NS: u64 = 150_000;
/// After a slow call, so many go by io_uring before one is tried on the spot again: a worker that waits serves nobody.
const PENANCE: u32 = 256;

/// Learns from the calls of one ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
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
        if ns > SLOW_NS + bytes as u64 / 4 {
            self.penance = PENANCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_call_keeps_the_next_ones_off_the_worker() {
        let mut pace = Pace::default();
        assert!(pace.quick());
        pace.took(SLOW_NS, 0);
        assert!(pace.quick(), "quick enough");
        pace.took(SLOW_NS + 2000, 4096);
        let mut held_off = 0;
        while !pace.quick() {
            held_off += 1;
        }
        assert_eq!(held_off, PENANCE - 1);
    }

    #[test]
    fn a_large_copy_is_not_slow() {
        let mut pace = Pace::default();
        pace.took(SLOW_NS + 200_000, 1 << 20);
        assert!(pace.quick());
    }
}
