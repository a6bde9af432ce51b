//! Where work that can block runs.

use std::fmt;

/// Where the system calls of a storage or a directory run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The export chooses, by what it knows of the request and of what stands behind it.
    #[default]
    Auto,
    /// On the spot, on the worker: best for calls that never wait.
    Inline,
    /// Through the worker's io_uring, as far as it has the operation.
    Uring,
    /// On this many threads of the export's own, 1 to 256.
    Pool(usize),
}

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
