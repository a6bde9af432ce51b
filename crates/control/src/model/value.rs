//! Values with a grammar of their own: poll window, execution, placement, sizes, time spans, CPU lists, modes.

use super::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

fn digits<T: FromStr>(text: &str) -> Option<T> {
    // `parse` alone would accept a leading `+`.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// How long a worker looks for work before it arms its wake-ups and sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Poll {
    /// Sleep at once.
    #[default]
    Off,
    /// Always look for this long.
    Fixed {
        /// Length of the window in microseconds, 1 to [`Poll::WINDOW_US_MAX`].
        window_us: u32,
    },
    /// Look for as long as looking has paid off lately, up to this long.
    Adaptive {
        /// Upper bound of the window in microseconds, 1 to [`Poll::WINDOW_US_MAX`].
        window_us_max: u32,
    },
}

impl Poll {
    /// The longest window that is accepted, in microseconds: beyond it a sleep costs nothing by comparison.
    pub const WINDOW_US_MAX: u32 = 1_000_000;
    /// The upper bound that a bare `adaptive` means, in microseconds.
    pub const ADAPTIVE_US_DEFAULT: u32 = 50;
    const EXPECTED: &'static str =
        "a poll window: off, fixed=US, adaptive or adaptive=US with US from 1 to 1000000 microseconds";
}

impl FromStr for Poll {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError::new(text, Self::EXPECTED);
        let window = |us: &str| digits(us).filter(|us| (1..=Self::WINDOW_US_MAX).contains(us)).ok_or_else(refuse);
        match text.split_once('=') {
            None if text == "off" => Ok(Self::Off),
            None if text == "adaptive" => Ok(Self::Adaptive { window_us_max: Self::ADAPTIVE_US_DEFAULT }),
            Some(("fixed", us)) => Ok(Self::Fixed { window_us: window(us)? }),
            Some(("adaptive", us)) => Ok(Self::Adaptive { window_us_max: window(us)? }),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Fixed { window_us } => write!(f, "fixed={window_us}"),
            Self::Adaptive { window_us_max } => write!(f, "adaptive={window_us_max}"),
        }
    }
}

text_value!(
    Poll,
    string,
    "a poll window: off, fixed=US, adaptive or adaptive=US with US from 1 to 1000000 microseconds",
    "^(off|adaptive|(fixed|adaptive)=[0-9]+)$",
    "adaptive=50"
);

/// Where the storage calls of an export run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Execution {
    /// Choose by the kind of storage; the choice is visible in the export.
    #[default]
    Auto,
    /// On the worker's io_uring.
    Uring,
    /// As plain system calls or copies on the worker itself.
    Inline,
    /// On a pool of threads.
    Pool {
        /// Number of threads, 1 to [`Execution::POOL_MAX`].
        threads: u16,
    },
}

impl Execution {
    /// The largest pool that is accepted, in threads.
    pub const POOL_MAX: u16 = 256;
    const EXPECTED: &'static str = "an execution: auto, uring, inline or pool=N with N from 1 to 256 threads";
}

impl FromStr for Execution {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "inline" => Ok(Self::Inline),
            _ => text
                .strip_prefix("pool=")
                .and_then(digits)
                .filter(|threads| (1..=Self::POOL_MAX).contains(threads))
                .map(|threads| Self::Pool { threads })
                .ok_or_else(|| ParseError::new(text, Self::EXPECTED)),
        }
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Uring => f.write_str("uring"),
            Self::Inline => f.write_str("inline"),
            Self::Pool { threads } => write!(f, "pool={threads}"),
        }
    }
}

text_value!(
    Execution,
    string,
    "an execution: auto, uring, inline or pool=N with N from 1 to 256 threads",
    "^(auto|uring|inline|pool=[0-9]+)$",
    "pool=4"
);

/// The rule that gives the rings of an export their workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The daemon's shared workers serve the rings.
    #[default]
    Shared,
    /// One worker of the export's own serves all of its rings.
    One,
    /// Every ring has a worker of its own.
    PerQueue,
    /// The rings are spread over this many workers of the export's own.
    Count {
        /// Number of workers, 1 to [`Placement::COUNT_MAX`].
        workers: u16,
    },
}

impl Placement {
    /// The largest number of workers that is accepted: the largest number of queues.
    pub const COUNT_MAX: u16 = 256;
    const EXPECTED: &'static str = "a placement: shared, one, per-queue or a number of workers from 1 to 256";
}

impl FromStr for Placement {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "shared" => Ok(Self::Shared),
            "one" => Ok(Self::One),
            "per-queue" => Ok(Self::PerQueue),
            _ => digits(text)
                .filter(|workers| (1..=Self::COUNT_MAX).contains(workers))
                .map(|workers| Self::Count { workers })
                .ok_or_else(|| ParseError::new(text, Self::EXPECTED)),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::One => f.write_str("one"),
            Self::PerQueue => f.write_str("per-queue"),
            Self::Count { workers } => write!(f, "{workers}"),
        }
    }
}

text_value!(
    Placement,
    integer,
    "a placement: shared, one, per-queue or a number of workers from 1 to 256 (a bare number is read too)",
    "^(shared|one|per-queue|[0-9]+)$",
    "per-queue"
);

/// A number of bytes. Written with a binary suffix (`10G`, `512MiB`) or as a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

impl ByteSize {
    const EXPECTED: &'static str =
        "a size: a whole number with an optional suffix K, M, G, T or KiB, MiB, GiB, TiB (powers of 1024), as in 10G";
    const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

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
    "a size: a whole number with an optional suffix K, M, G, T or KiB, MiB, GiB, TiB (powers of 1024), as in 10G (a bare number of bytes is read too)",
    "^[0-9]+(B|[KkMmGgTt]([Ii][Bb])?)?$",
    "10G"
);

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

/// A set of CPUs in the kernel's list format, as in `taskset -c` and cpuset files: `0-3,5`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(Vec<u16>);

impl CpuList {
    /// The highest CPU number that is accepted: the largest `CONFIG_NR_CPUS` of the Linux kernel (x86 Kconfig) less one.
    pub const CPU_MAX: u16 = 8191;
    const EXPECTED: &'static str = "a list of CPUs from 0 to 8191, as in 0-3,5";

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
    "a list of CPUs from 0 to 8191, as in 0-3,5 (a bare number is read too)",
    "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$",
    "0-3,5"
);

/// Permission bits of a socket or a file, written in octal: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl FileMode {
    const EXPECTED: &'static str = "a mode: up to four octal digits in quotes, as in \"0660\"";
}

impl FromStr for FileMode {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let octal = (1..=4).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        let mode = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
        // Set-user-id and its kin mean nothing there: refuse them rather than drop them.
        mode.filter(|&mode| mode <= 0o777).map(Self).ok_or_else(|| ParseError::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

text_value!(FileMode, string, "a mode: up to four octal digits in quotes, as in \"0660\"", "^[0-7]{1,4}$", "0660");

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
