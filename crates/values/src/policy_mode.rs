//! Whether anything is chosen by itself.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Whether the daemon goes on choosing by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum PolicyMode {
    /// What nobody has set is chosen by itself, again and again
    #[default]
    Auto,
    /// All stays as it is: nothing is tried, learned or moved
    Fixed,
}

impl fmt::Display for PolicyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Fixed => "fixed",
        })
    }
}
