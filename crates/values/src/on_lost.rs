//! What becomes of requests to storage that is lost.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What becomes of requests to storage on other machines that is lost to its guest, until an operator reopens it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// They fail
    #[default]
    Error,
    /// They wait, and stopping the guest or resetting its device blocks
    Wait,
}

impl OnLost {
    /// Whether it is what holds when nobody says otherwise.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
