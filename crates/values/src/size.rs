//! Numbers of bytes.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// A number of bytes. Written with a binary suffix (`10G`, `512MiB`) or as a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

impl ByteSize {
    const EXPECTED: &'static str =
        "a size: a whole number with an optional suffix K, M, G, T, P, E or KiB to EiB (powers of 1024), as in 10G";
    const SUFFIXES: [(char, u32); 6] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

    /// To read: the largest suffix that leaves a number of at least 1, exact where that is short.
    pub fn rounded(self) -> String {
        let exact = self.to_string();
        if exact.len() <= 6 {
            return exact;
        }
        let unit = Self::SUFFIXES.iter().rev().find(|(_, shift)| self.0 >= 1 << shift);
        unit.map_or(exact, |(name, shift)| format!("{:.1}{name}", self.0 as f64 / (1u64 << shift) as f64))
    }
}

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError::new(text, Self::EXPECTED);
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let number: u64 = digits(number).ok_or_else(refuse)?;
        let upper = suffix.to_ascii_uppercase();
        let unit = upper.strip_suffix("IB").unwrap_or(&upper);
        let factor = match (unit, suffix.len()) {
            ("", 0) | ("B", 1) => 1,
            _ => {
                let shift = Self::SUFFIXES.iter().find(|(letter, _)| unit.chars().eq([*letter]));
                1u64 << shift.ok_or_else(refuse)?.1
            }
        };
        number.checked_mul(factor).map(Self).ok_or_else(refuse)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |&&(_, shift): &&(char, u32)| self.0 != 0 && self.0.trailing_zeros() >= shift;
        match Self::SUFFIXES.iter().rev().find(exact) {
            Some((letter, shift)) => write!(f, "{}{letter}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

text_value!(
    ByteSize,
    integer,
    "a size: a whole number with an optional suffix K, M, G, T, P, E or KiB to EiB (powers of 1024), as in 10G (a bare number of bytes is read too)",
    "^[0-9]+(B|[KkMmGgTtPpEe]([Ii][Bb])?)?$",
    "10G"
);
