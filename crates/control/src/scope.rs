//! Whose workers a request is about.

use std::fmt;

/// Whose workers are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The daemon: a new worker is a shared one; all workers, shared and private, are visible.
    Daemon,
    /// The named export: only its private workers are visible.
    Export(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon => f.write_str("the daemon"),
            Self::Export(name) => write!(f, "export `{name}`"),
        }
    }
}
