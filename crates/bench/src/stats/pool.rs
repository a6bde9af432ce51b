//! What the noise of many workloads says about that of one.
//!
//! Three rounds know little about their own noise: now and then they lie close together by chance, and Student's interval has
//! to be very wide to allow for that. The other workloads between the same two configurations know more. How much more is in
//! the data: where all variances look like draws around one, a workload's own is weighed with the typical one; where they do
//! not, it stands alone. This is the empirical Bayes estimate of Smyth, "Linear models and empirical Bayes methods for
//! assessing differential expression" (2004), section 6.2, with two bounds of ours (see [`Pool::of`] and
//! [`Contrast::interval`]).

use statrs::function::gamma::digamma;

use super::contrast::{Contrast, Pool, mean_and_squares};

/// Fewer workloads than this say nothing about each other.
const WORKLOADS_MIN: usize = 8;

/// With less freedom than this (two rounds), variances are too wild for their distribution to be told.
const FREEDOM_MIN: f64 = 2.0;

impl Pool {
    /// What `contrasts`, one for each workload between two configurations, have in common; nothing where they are fewer than
    /// 8 or have less than three rounds.
    ///
    /// It is never worth more than a workload's own rounds: workloads differ in kind, and a few that are far noisier than the
    /// rest must not be judged by the others.
    pub fn of<'a>(contrasts: impl IntoIterator<Item = &'a Contrast>) -> Self {
        let usable: Vec<&Contrast> = contrasts
            .into_iter()
            .filter(|contrast| contrast.variance > 0.0 && contrast.freedom >= FREEDOM_MIN)
            .collect();
        if usable.len() < WORKLOADS_MIN {
            return Self::default();
        }
        let centred = |contrast: &&Contrast| contrast.variance.ln() - log_bias(contrast.freedom);
        let logs: Vec<f64> = usable.iter().map(centred).collect();
        let Some((mean, squares)) = mean_and_squares(&logs) else {
            return Self::default();
        };
        // What is left of the variances' own variance when chance has been taken off.
        let chance: f64 = usable.iter().map(|c| trigamma(c.freedom / 2.0)).sum::<f64>() / usable.len() as f64;
        let excess = squares / (usable.len() as f64 - 1.0) - chance;
        let freedom_max = usable.iter().map(|contrast| contrast.freedom).fold(f64::INFINITY, f64::min);
        let freedom = (2.0 * inverse_trigamma(excess)).min(freedom_max);
        Self { variance: (mean + log_bias(freedom)).exp(), freedom }
    }
}

/// How far the mean of the logarithm of a variance lies from that of the true one.
fn log_bias(freedom: f64) -> f64 {
    digamma(freedom / 2.0) - (freedom / 2.0).ln()
}

/// The second derivative of the logarithm of the gamma function, for positive `x`: Abramowitz and Stegun, 6.4.6 to climb and
/// 6.4.12 from there.
fn trigamma(x: f64) -> f64 {
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    sum + 1.0 / x + square / 2.0 + square / x * (1.0 / 6.0 - square * (1.0 / 30.0 - square / 42.0))
}

/// Where [`trigamma`] is `value`; infinite where `value` is not positive.
fn inverse_trigamma(value: f64) -> f64 {
    // Beyond these the two ends of the function are 1/x and 1/x² to all digits that matter.
    if value <= 1e-7 {
        return if value <= 0.0 { f64::INFINITY } else { 1.0 / value };
    }
    if value >= 1e7 {
        return 1.0 / value.sqrt();
    }
    let (mut low, mut high) = (1e-4, 1e8_f64);
    // By halving, as the function falls all the way: 100 halvings are more than a double has digits.
    for _ in 0..100 {
        let middle = (low * high).sqrt();
        if trigamma(middle) > value {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    fn contrast(variance: f64) -> Contrast {
        Contrast { log_ratio: 0.0, variance, freedom: 2.0, scale: 1.0 / 3.0 }
    }

    #[test]
    fn trigamma_has_its_known_values() {
        // Abramowitz and Stegun, 6.4.2 to 6.4.5: π²/6 at 1, π²/2 at 1/2, and one step up from each.
        for (x, expected) in
            [(1.0, PI * PI / 6.0), (0.5, PI * PI / 2.0), (2.0, PI * PI / 6.0 - 1.0), (1.5, PI * PI / 2.0 - 4.0)]
        {
            assert!((trigamma(x) - expected).abs() < 1e-9, "{x}: {} is not {expected}", trigamma(x));
            assert!((inverse_trigamma(expected) - x).abs() < 1e-9, "{expected}");
        }
        assert_eq!(inverse_trigamma(0.0), f64::INFINITY);
        assert!((trigamma(inverse_trigamma(1e-6)) / 1e-6 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn like_variances_are_worth_as_much_as_a_workloads_own_rounds() {
        let pool = Pool::of(&vec![contrast(0.01); 20]);
        assert_eq!(pool.freedom, 2.0);
        // Equal draws of two degrees of freedom each: the mean of their logarithms is that of exp(-γ) of the variance, and the
        // estimate for two degrees takes just that off again.
        assert!((pool.variance - 0.01).abs() < 1e-9, "{pool:?}");
    }

    #[test]
    fn unlike_variances_are_worth_little() {
        let wild: Vec<Contrast> = (0..20).map(|exponent| contrast(10f64.powi(-exponent))).collect();
        assert!(Pool::of(&wild).freedom < 0.2, "{:?}", Pool::of(&wild));
    }

    #[test]
    fn few_workloads_or_two_rounds_say_nothing() {
        assert_eq!(Pool::of(&vec![contrast(0.01); 7]), Pool::default());
        let of_two_rounds = Contrast { freedom: 1.0, ..contrast(0.01) };
        assert_eq!(Pool::of(&vec![of_two_rounds; 30]), Pool::default());
    }
}
