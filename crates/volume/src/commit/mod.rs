//! When a commit begins: at once, after a short wait for company, or behind the one in flight.
//!
//! Pure: time is an argument, and nobody is waited for here. `served` asks and does.

mod policy;
#[cfg(test)]
mod simulation;

pub use policy::{COMMITS_MAX, Decision, Here, Policy};
