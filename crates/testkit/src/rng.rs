//! Numbers that are as random as a test needs, and the same for the same seed.

/// xorshift64 (Marsaglia, "Xorshift RNGs"); the seed is not 0, which it never leaves.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.word() >> 11) % bound
    }
}
