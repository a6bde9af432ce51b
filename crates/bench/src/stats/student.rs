//! Quantiles of Student's distribution.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The confidence that intervals are computed with.
///
/// They promise 95 %. The one per cent more pays for what pooling costs where the workloads of a pair are noisy in very
/// different degrees: the simulation in this room's tests tells equal sides apart too often without it.
const CONFIDENCE: f64 = 0.96;

/// How many standard errors an interval reaches to each side, with `freedom` degrees of freedom (positive); infinitely many
/// where there are none.
pub(super) fn reach(freedom: f64) -> f64 {
    quantile(f64::midpoint(1.0, CONFIDENCE), freedom)
}

fn quantile(probability: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |student| student.inverse_cdf(probability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_printed_tables() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, columns 0.975 and 0.99.
        let table = [
            (1.0, 12.706, 31.821),
            (2.0, 4.303, 6.965),
            (3.0, 3.182, 4.541),
            (4.0, 2.776, 3.747),
            (6.0, 2.447, 3.143),
            (10.0, 2.228, 2.764),
            (30.0, 2.042, 2.457),
            (100.0, 1.984, 2.364),
        ];
        for (freedom, at_975, at_99) in table {
            for (probability, expected) in [(0.975, at_975), (0.99, at_99)] {
                let found = quantile(probability, freedom);
                assert!((found - expected).abs() < 6e-4, "{freedom}, {probability}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn without_freedom_nothing_is_known() {
        assert_eq!(reach(0.0), f64::INFINITY);
        assert_eq!(reach(f64::NAN), f64::INFINITY);
    }
}
