//! Sets of CPUs.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// A set of CPUs in the kernel's list format, as in `taskset -c` and cpuset files: `0-3,5`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(Vec<u16>);

impl CpuList {
    /// The highest CPU number that is accepted: the last that `cpu_set_t` can name (sched.h: `CPU_SETSIZE` less one).
    pub const CPU_MAX: u16 = 1023;
    const EXPECTED: &'static str = "a list of CPUs from 0 to 1023, as in 0-3,5";

    /// The CPUs, ascending and without repetition; never empty.
    pub fn cpus(&self) -> &[u16] {
        &self.0
    }

    /// The set of the given CPUs; `None` when it would be empty or names a CPU above [`Self::CPU_MAX`].
    pub fn new(cpus: impl IntoIterator<Item = u16>) -> Option<Self> {
        let set: std::collections::BTreeSet<u16> = cpus.into_iter().collect();
        let legal = set.last().is_some_and(|&last| last <= Self::CPU_MAX);
        legal.then(|| Self(set.into_iter().collect()))
    }
}

impl FromStr for CpuList {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError::new(text, Self::EXPECTED);
        let mut cpus = std::collections::BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u16 = digits(first).ok_or_else(refuse)?;
            let last: u16 = digits(last).filter(|&last| first <= last && last <= Self::CPU_MAX).ok_or_else(refuse)?;
            cpus.extend(first..=last);
        }
        Self::new(cpus).ok_or_else(refuse)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

text_value!(
    CpuList,
    integer,
    "a list of CPUs from 0 to 1023, as in 0-3,5 (a bare number is read too)",
    "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$",
    "0-3,5"
);
