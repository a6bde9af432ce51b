//! Whether what was measured says the same as what was published.
//!
//! Notes give averages without their spread, from other machines: only the direction of a difference can be compared, and
//! small published differences are no differences.

use super::summary::{Agreement, Tally};
use bench::stats::{Interval, Ratio};

/// Published ratios nearer to 1 than this count as no difference: averages of three runs whose spread nobody gave.
const EVEN: f64 = 1.05;

/// Noise that reaches farther than this on either side is too large to say that there is no difference.
const BLIND: f64 = 1.5;

/// Compares the published ratio `theirs` with `ours`.
///
/// - Published as a difference: ours agrees when it is told from noise on the same side, disagrees when it is so on the other
///   side, or when all that noise admits is no difference.
/// - Published as none: ours agrees when noise hides a difference or all that it admits is none, disagrees when all that it
///   admits is a difference.
/// - Else nobody can tell.
pub fn agreement(theirs: f64, ours: &Ratio) -> Agreement {
    let Some(interval) = ours.interval else {
        return Agreement::CannotTell;
    };
    let is_even = lies_within(interval, EVEN);
    if (1.0 / EVEN..=EVEN).contains(&theirs) {
        return if is_even || (ours.is_hidden() && lies_within(interval, BLIND)) {
            Agreement::Agree
        } else if interval.low > EVEN || interval.high < 1.0 / EVEN {
            Agreement::Disagree
        } else {
            Agreement::CannotTell
        };
    }
    if is_even {
        Agreement::Disagree
    } else if ours.is_hidden() {
        Agreement::CannotTell
    } else if (theirs > 1.0) == (interval.low > 1.0) {
        Agreement::Agree
    } else {
        Agreement::Disagree
    }
}

/// Whether nothing in `interval` is farther from 1 than `factor`.
fn lies_within(interval: Interval, factor: f64) -> bool {
    interval.low >= 1.0 / factor && interval.high <= factor
}

impl Tally {
    /// Counts one comparison.
    pub fn add(&mut self, agreement: Agreement) {
        let count = match agreement {
            Agreement::Agree => &mut self.agree,
            Agreement::Disagree => &mut self.disagree,
            Agreement::CannotTell => &mut self.cannot_tell,
        };
        *count += 1;
    }

    /// All comparisons.
    pub fn total(&self) -> u32 {
        self.agree + self.disagree + self.cannot_tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(low: f64, high: f64) -> Ratio {
        Ratio { value: (low * high).sqrt(), interval: Some(Interval { low, high }) }
    }

    #[test]
    fn a_published_difference_is_found_missed_reversed_or_hidden() {
        assert_eq!(agreement(1.5, &ours(1.1, 1.9)), Agreement::Agree);
        assert_eq!(agreement(0.5, &ours(0.2, 0.9)), Agreement::Agree);
        assert_eq!(agreement(1.5, &ours(0.5, 0.9)), Agreement::Disagree);
        assert_eq!(agreement(0.5, &ours(1.1, 1.2)), Agreement::Disagree);
        assert_eq!(agreement(1.5, &ours(0.98, 1.02)), Agreement::Disagree, "no difference, and sure of it");
        assert_eq!(agreement(1.5, &ours(0.9, 1.2)), Agreement::CannotTell);
    }

    #[test]
    fn no_published_difference_agrees_with_none_and_with_noise_of_a_reasonable_size() {
        assert_eq!(agreement(1.0, &ours(0.9, 1.2)), Agreement::Agree);
        assert_eq!(agreement(1.04, &ours(1.01, 1.03)), Agreement::Agree, "told apart, but as even as theirs");
        assert_eq!(agreement(0.96, &ours(1.2, 1.4)), Agreement::Disagree);
        assert_eq!(agreement(1.0, &ours(0.5, 0.8)), Agreement::Disagree);
        assert_eq!(agreement(1.0, &ours(1.02, 1.2)), Agreement::CannotTell);
        assert_eq!(agreement(1.0, &ours(0.3, 3.0)), Agreement::CannotTell, "noise of a factor of three hides anything");
    }

    #[test]
    fn one_round_tells_nothing() {
        assert_eq!(agreement(2.0, &Ratio { value: 2.0, interval: None }), Agreement::CannotTell);
    }
}
