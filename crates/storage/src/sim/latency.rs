//! How latencies spread around their mean.

use super::random::Random;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Longest draw, as a multiple of the mean: a tail is a tail, not an outage.
const FACTOR_MAX: f64 = 1000.0;

/// How simulated latencies are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Always the mean.
    #[default]
    Constant,
    /// Evenly between mean × (1 − spread) and mean × (1 + spread).
    Uniform,
    /// Normal with standard deviation mean × spread, cut at 0.
    Normal,
    /// A long tail above the mean, as of flash behind a queue; the spread is the standard deviation of the logarithm.
    LogNormal,
    /// The longest tail: waiting times without memory; the spread is not used.
    Exponential,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distribution::Constant => "constant",
            Distribution::Uniform => "uniform",
            Distribution::Normal => "normal",
            Distribution::LogNormal => "log-normal",
            Distribution::Exponential => "exponential",
        })
    }
}

/// Latencies of one kind of operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    mean_ns: u64,
    distribution: Distribution,
    /// Relative to the mean, 0 to 1.
    spread: f64,
}

impl Latency {
    pub(super) fn new(mean_ns: u64, distribution: Distribution, spread: f64) -> Latency {
        Latency { mean_ns, distribution, spread }
    }

    /// One latency, in nanoseconds.
    pub(super) fn draw(&self, mut random: Random) -> u64 {
        let spread = self.spread;
        let factor = match self.distribution {
            Distribution::Constant => return self.mean_ns,
            Distribution::Uniform => 1.0 + spread * (2.0 * random.unit() - 1.0),
            Distribution::Normal => 1.0 + spread * bell(&mut random),
            // The correction keeps the mean where it was asked for.
            Distribution::LogNormal => (spread * bell(&mut random) - spread * spread / 2.0).exp(),
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

    fn draws((distribution, spread): (Distribution, f64)) -> Vec<u64> {
        let mut random = Random::new(1);
        let latency = Latency::new(1_000_000, distribution, spread);
        (0..50_000).map(|_| latency.draw(random.fork())).collect()
    }

    #[test]
    fn means_are_what_was_asked_for() {
        for distribution in [
            (Distribution::Constant, 0.0),
            (Distribution::Uniform, 0.5),
            (Distribution::Normal, 0.2),
            (Distribution::LogNormal, 0.5),
            (Distribution::Exponential, 0.0),
        ] {
            let draws = draws(distribution);
            let mean = draws.iter().sum::<u64>() / draws.len() as u64;
            assert!((980_000..=1_020_000).contains(&mean), "{distribution:?}: {mean}");
        }
    }

    #[test]
    fn shapes_differ() {
        let uniform = draws((Distribution::Uniform, 0.5));
        assert!(uniform.iter().all(|ns| (500_000..=1_500_000).contains(ns)));
        let share_over = |draws: &[u64], ns| draws.iter().filter(|d| **d > ns).count() as f64 / draws.len() as f64;
        // 1 - Phi(1) = 0.159; exp(-2) = 0.135.
        let normal = share_over(&draws((Distribution::Normal, 0.2)), 1_200_000);
        assert!((0.15..0.17).contains(&normal), "{normal}");
        let exponential = share_over(&draws((Distribution::Exponential, 0.0)), 2_000_000);
        assert!((0.125..0.145).contains(&exponential), "{exponential}");
    }
}
