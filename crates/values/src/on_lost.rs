//! What becomes of requests to storage that is lost.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What becomes of requests to storage on other machines that is lost to its guest, until a person has it opened as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    /// They fail, and the guest hears of it
    #[default]
    Error,
    /// They wait, and so does whoever stops the guest or its device
    Wait,
}

impl OnLost {
    /// Whether it is what holds when nobody says otherwise.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
