//! How latencies spread around their mean.

use super::random::Random;

/// Longest draw, as a multiple of the mean: a tail is a tail, not an outage.
const FACTOR_MAX: f64 = 1000.0;

/// Shape of latencies. `spread` is relative to the mean, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Distribution {
    /// Always the mean.
    #[default]
    Constant,
    /// Evenly between `mean * (1 - spread)` and `mean * (1 + spread)`.
    Uniform {
        /// Half the width.
        spread: f64,
    },
    /// The bell curve, cut off at 0.
    Normal {
        /// Standard deviation.
        spread: f64,
    },
    /// A long tail above the mean, as of flash behind a queue.
    LogNormal {
        /// Standard deviation of the logarithm.
        spread: f64,
    },
    /// The longest tail: waiting times without memory.
    Exponential,
}

impl Distribution {
    pub(super) fn spread(self) -> Option<f64> {
        match self {
            Distribution::Constant | Distribution::Exponential => None,
            Distribution::Uniform { spread } | Distribution::Normal { spread } | Distribution::LogNormal { spread } => {
                Some(spread)
            }
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Distribution::Constant => "constant",
            Distribution::Uniform { .. } => "uniform",
            Distribution::Normal { .. } => "normal",
            Distribution::LogNormal { .. } => "log-normal",
            Distribution::Exponential => "exponential",
        }
    }
}

/// Latencies of one kind of operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    mean_ns: u64,
    distribution: Distribution,
}

impl Latency {
    pub(super) fn new(mean_ns: u64, distribution: Distribution) -> Latency {
        Latency { mean_ns, distribution }
    }

    /// One latency, in nanoseconds.
    pub(super) fn draw(&self, mut random: Random) -> u64 {
        let factor = match self.distribution {
            Distribution::Constant => return self.mean_ns,
            Distribution::Uniform { spread } => 1.0 + spread * (2.0 * random.unit() - 1.0),
            Distribution::Normal { spread } => 1.0 + spread * bell(&mut random),
            // The correction keeps the mean where it was asked for.
            Distribution::LogNormal { spread } => (spread * bell(&mut random) - spread * spread / 2.0).exp(),
            Distribution::Exponential => -(1.0 - random.unit()).ln(),
        };
        (self.mean_ns as f64 * factor.clamp(0.0, FACTOR_MAX)) as u64
    }
}

/// A standard normal draw (Box and Muller, 1958).
fn bell(random: &mut Random) -> f64 {
    let (radius, angle) = (1.0 - random.unit(), random.unit());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(distribution: Distribution) -> Vec<u64> {
        let mut random = Random::new(1);
        let latency = Latency::new(1_000_000, distribution);
        (0..50_000).map(|_| latency.draw(random.fork())).collect()
    }

    #[test]
    fn means_are_what_was_asked_for() {
        for distribution in [
            Distribution::Constant,
            Distribution::Uniform { spread: 0.5 },
            Distribution::Normal { spread: 0.2 },
            Distribution::LogNormal { spread: 0.5 },
            Distribution::Exponential,
        ] {
            let draws = draws(distribution);
            let mean = draws.iter().sum::<u64>() / draws.len() as u64;
            assert!((980_000..=1_020_000).contains(&mean), "{distribution:?}: {mean}");
        }
    }

    #[test]
    fn shapes_differ() {
        let uniform = draws(Distribution::Uniform { spread: 0.5 });
        assert!(uniform.iter().all(|ns| (500_000..=1_500_000).contains(ns)));
        let share_over = |draws: &[u64], ns| draws.iter().filter(|d| **d > ns).count() as f64 / draws.len() as f64;
        // 1 - Phi(1) = 0.159; exp(-2) = 0.135.
        let normal = share_over(&draws(Distribution::Normal { spread: 0.2 }), 1_200_000);
        assert!((0.15..0.17).contains(&normal), "{normal}");
        let exponential = share_over(&draws(Distribution::Exponential), 2_000_000);
        assert!((0.125..0.145).contains(&exponential), "{exponential}");
    }
}
