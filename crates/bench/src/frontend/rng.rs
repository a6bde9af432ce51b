//! A generator of offsets that costs a nanosecond.

/// `xorshift64*` (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled").
///
/// Not for secrets: it only has to be fast, well spread and repeatable from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator that repeats itself for the same `seed` and `stream`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mixed = mix(seed ^ mix(stream.wrapping_add(1)));
        // The state must not be zero: zero is a fixed point.
        Self(mixed | 1)
    }

    /// Fills whole words of `bytes`.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.as_chunks_mut::<8>().0 {
            *word = self.next().to_le_bytes();
        }
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // A multiplication instead of a division; its bias is below bound / 2^64.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Spreads a number over 64 bits (the finalizer of `SplitMix64`).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_below_its_bound_and_reaches_all_of_it() {
        let mut rng = Rng::new(1, 0);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn repeats_for_a_seed_and_differs_between_streams() {
        let draw = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }
}
