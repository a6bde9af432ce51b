//! Which rings share a worker.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// The rule that gives the rings of an export their workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The daemon's workers serve the rings, each the one with the fewest.
    #[default]
    Shared,
    /// One worker of the export's own serves all of its rings.
    One,
    /// Every ring has a worker of its own.
    PerQueue,
    /// The rings are spread over this many workers of the export's own, 1 to [`Placement::WORKERS_MAX`].
    Workers(usize),
}

impl Placement {
    /// The largest number of workers that is accepted: the largest number of queues.
    pub const WORKERS_MAX: usize = 256;
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
                .filter(|workers| (1..=Self::WORKERS_MAX).contains(workers))
                .map(Self::Workers)
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
            Self::Workers(workers) => write!(f, "{workers}"),
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
