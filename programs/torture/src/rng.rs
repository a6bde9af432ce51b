//! Repeatable random numbers: a run is its seed.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator that repeats itself for the same `seed` and `stream`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(1))))
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number in `range`; its start if the range is empty.
    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let choices = u128::from(range.end().saturating_sub(*range.start())) + 1;
        // A multiplication instead of a division: its bias is beyond what any run can see.
        range.start() + ((u128::from(self.next()) * choices) >> 64) as u64
    }

    /// True once in `times` on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.within(1..=times) == 1
    }

    /// One of `choices`, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..=choices.len() as u64 - 1) as usize]
    }

    /// A time in `range`, to the microsecond.
    pub(crate) fn time(&mut self, range: RangeInclusive<Duration>) -> Duration {
        Duration::from_micros(self.within(range.start().as_micros() as u64..=range.end().as_micros() as u64))
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Spreads a number over 64 bits.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A seed for a run that was not given one.
pub(crate) fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed again.
    mix(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_streams_differ() {
        let draw = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }

    #[test]
    fn ranges_are_reached_and_kept() {
        let mut rng = Rng::new(1, 0);
        let mut seen = [false; 5];
        for _ in 0..500 {
            seen[rng.within(10..=14) as usize - 10] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.within(9..=9), 9);
        assert!(rng.within(0..=u64::MAX) != rng.within(0..=u64::MAX));
    }
}
