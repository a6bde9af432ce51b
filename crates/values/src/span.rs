//! Spans of time.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time with its unit: `100us`, `2ms`. Whole nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

impl Span {
    const EXPECTED: &'static str = "a span of time: a whole number with its unit ns, us, ms or s, as in 100us";
    const UNITS: [(&'static str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
}

impl FromStr for Span {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError::new(text, Self::EXPECTED);
        let end = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
        let (number, unit) = text.split_at(end);
        let number: u64 = digits(number).ok_or_else(refuse)?;
        let (_, factor) = Self::UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
        number.checked_mul(*factor).map(|ns| Self(Duration::from_nanos(ns))).ok_or_else(refuse)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let exact = |&&(_, factor): &&(&str, u64)| ns.is_multiple_of(u128::from(factor));
        match Self::UNITS.iter().rev().find(exact) {
            Some((unit, factor)) if ns != 0 => write!(f, "{}{unit}", ns / u128::from(*factor)),
            _ => write!(f, "{ns}ns"),
        }
    }
}

text_value!(
    Span,
    string,
    "a span of time: a whole number with its unit ns, us, ms or s, as in 100us",
    "^[0-9]+(ns|us|ms|s)$",
    "100us"
);
