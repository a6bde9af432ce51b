//! Replacing the daemon's program while it serves.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// Which program shall go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUpgrade {
    /// Absolute path of the program; when left out, what is now at the path of the running one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub binary: Option<PathBuf>,
}

/// How the running program took over from the one before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Takeover {
    /// Version of the program before.
    pub from: String,
    /// From when the first ring was halted there to when the last one ran again here, in microseconds.
    pub pause_us: u64,
    /// Sessions with frontends that went on.
    pub sessions: usize,
    /// Rings that were running and run again.
    pub rings: usize,
    /// What could not go on, a line each; the log says more. Empty when all went well.
    #[serde(default)]
    pub lost: Vec<String>,
}
