//! Rates as an operator gives them.

/// What a burst is worth when none is given: a tenth of a second at the rate, which QEMU takes too (util/throttle.c).
const BURST_SHARE_DEFAULT: u64 = 10;
/// Least worth of a burst: a hundredth of a second at the rate. A worker that wakes late makes up for it from the burst.
const BURST_SHARE_LEAST: u64 = 100;
/// Least worth of one quantum of a rate: a thousandth of a second, so that a turn costs no more than a wake-up a millisecond.
const QUANTUM_SHARE: u64 = 1000;
/// Least quantum of a rate of bytes. Smaller ones would only mean more turns for one request.
const QUANTUM_BYTES_LEAST: u64 = 4096;
/// Largest rate, so that whatever is computed of it stays far from the ends of 64 bits.
const PER_SECOND_MAX: u64 = 1 << 50;

/// A rate and how far it may be exceeded for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_second: u64,
    burst: Option<u64>,
}

impl Rate {
    /// A rate of `per_second`, cut to 1 to 2^50. In any span of time no more passes than the rate allows and `burst`
    /// besides: a tenth of a second's worth when left out, a hundredth at least.
    pub fn new(per_second: u64, burst: Option<u64>) -> Rate {
        Rate { per_second: per_second.clamp(1, PER_SECOND_MAX), burst }
    }

    /// Requests or bytes a second.
    pub fn per_second(self) -> u64 {
        self.per_second
    }

    /// The burst as it was given, in requests or bytes.
    pub fn burst_given(self) -> Option<u64> {
        self.burst
    }

    /// The burst that holds, in requests or bytes.
    pub fn burst(self) -> u64 {
        let given = self.burst.unwrap_or(self.per_second / BURST_SHARE_DEFAULT);
        given.clamp(Self::burst_least(self.per_second), PER_SECOND_MAX)
    }

    /// The smallest burst that a rate of `per_second` can have, in requests or bytes.
    pub fn burst_least(per_second: u64) -> u64 {
        (per_second / BURST_SHARE_LEAST).max(1)
    }

    /// What a member reserves at once: requests.
    pub(crate) fn quantum_requests(self) -> u64 {
        (self.per_second / QUANTUM_SHARE).max(1)
    }

    /// What a member reserves at once: bytes.
    pub(crate) fn quantum_bytes(self) -> u64 {
        (self.per_second / QUANTUM_SHARE).max(QUANTUM_BYTES_LEAST)
    }

    /// How long the rate takes for `units`, in nanoseconds; never too short.
    pub(crate) fn span_ns(self, units: u64) -> u64 {
        let span = (u128::from(units) * 1_000_000_000).div_ceil(u128::from(self.per_second));
        u64::try_from(span).unwrap_or(u64::MAX)
    }

    /// What the rate allows in `span_ns` nanoseconds; never too much.
    pub(crate) fn units_in(self, span_ns: u64) -> u64 {
        let units = u128::from(span_ns) * u128::from(self.per_second) / 1_000_000_000;
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

/// What may pass. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests a second.
    pub requests: Option<Rate>,
    /// Bytes read and written a second.
    pub bytes: Option<Rate>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.requests.is_none() && self.bytes.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_worth_a_tenth_of_a_second_unless_given() {
        assert_eq!(Rate::new(10_000, None).burst(), 1000);
        assert_eq!(Rate::new(10_000, Some(5000)).burst(), 5000);
        assert_eq!(Rate::new(10_000, Some(1)).burst(), 100);
        assert_eq!(Rate::new(1, None).burst(), 1);
        assert_eq!(Rate::new(1, None).quantum_requests(), 1);
        assert_eq!(Rate::new(10_000, None).quantum_requests(), 10);
        assert_eq!(Rate::new(1, None).quantum_bytes(), 4096);
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        for per_second in [0, 1, 3, 100_000_000, u64::MAX] {
            let rate = Rate::new(per_second, Some(u64::MAX));
            for units in [0, 1, rate.quantum_bytes(), 1 << 40, u64::MAX] {
                let span_ns = rate.span_ns(units);
                assert!(span_ns == u64::MAX || rate.units_in(span_ns) >= units, "{per_second} {units}");
            }
            assert_eq!(rate.units_in(0), 0);
            assert!(rate.burst() >= 1);
        }
    }
}
