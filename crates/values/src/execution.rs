//! Where calls that can block run.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::str::FromStr;

/// Where the system calls of a storage or a directory run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Execution {
    /// The export chooses, by what it knows of the request and of what stands behind it.
    #[default]
    Auto,
    /// Through the worker's io_uring, as far as it has the operation.
    Uring,
    /// On the spot, on the worker: best for calls that never wait.
    Inline,
    /// On this many threads of the export's own, 1 to [`Execution::POOL_MAX`].
    Pool(usize),
}

impl Execution {
    /// The largest pool that is accepted, in threads.
    pub const POOL_MAX: usize = 256;
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
                .map(Self::Pool)
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
            Self::Pool(threads) => write!(f, "pool={threads}"),
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
