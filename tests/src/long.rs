//! How much of what can be done over and over is done.

use std::env;

/// Says by how much `cargo xtask test --long` multiplies what a test does over and over.
pub const MORE_VARIABLE: &str = "VRINGD_MORE";

/// The factor: 1 by day.
pub fn more() -> u32 {
    env::var(MORE_VARIABLE).ok().and_then(|more| more.parse().ok()).unwrap_or(1)
}

/// Whether there is a night for it.
pub fn is_night() -> bool {
    more() > 1
}
