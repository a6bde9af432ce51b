//! Numbers and verdicts as people read them.

pub use bench::words::*;

use super::summary::{Agreement, Measure};

/// A value of `measure`, as a bandwidth or a count.
pub fn value(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Bandwidth => bandwidth(value),
        Measure::Iops => count(value),
    }
}

/// An agreement in words.
pub fn verdict(agreement: Agreement) -> &'static str {
    match agreement {
        Agreement::Agree => "agree",
        Agreement::Disagree => "disagree",
        Agreement::CannotTell => "cannot tell",
    }
}
