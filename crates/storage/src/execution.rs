//! Where work that can block runs.

use std::fmt;
use std::str::FromStr;

/// Where a storage's system calls run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The storage chooses: inline for what lives in memory, io_uring for the rest.
    #[default]
    Auto,
    /// On the spot, on the worker: for calls that never wait.
    Inline,
    /// Through the worker's io_uring.
    Uring,
    /// On this many threads of the export's own, 1 to 256.
    Pool(usize),
}

/// `{0}` is no execution: use `auto`, `inline`, `uring` or `pool=N` with N from 1 to 256
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct ExecutionError(pub String);

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Execution::Auto => f.write_str("auto"),
            Execution::Inline => f.write_str("inline"),
            Execution::Uring => f.write_str("uring"),
            Execution::Pool(threads) => write!(f, "pool={threads}"),
        }
    }
}

impl FromStr for Execution {
    type Err = ExecutionError;

    fn from_str(text: &str) -> Result<Execution, ExecutionError> {
        match text {
            "auto" => Ok(Execution::Auto),
            "inline" => Ok(Execution::Inline),
            "uring" => Ok(Execution::Uring),
            _ => text
                .strip_prefix("pool=")
                .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .filter(|threads| (1..=engine::POOL_THREADS_MAX).contains(threads))
                .map(Execution::Pool)
                .ok_or_else(|| ExecutionError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for text in ["auto", "inline", "uring", "pool=1", "pool=256"] {
            assert_eq!(text.parse::<Execution>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_words_are_refused() {
        for text in
            ["", "Auto", "pool", "pool=", "pool=0", "pool=257", "pool=+4", "pool=4 ", "pool=99999999999999999999"]
        {
            assert_eq!(text.parse::<Execution>(), Err(ExecutionError(text.to_owned())));
        }
        let message = ExecutionError("fast".to_owned()).to_string();
        assert!(message.contains("`fast`") && message.contains("pool=N"), "{message}");
    }
}
