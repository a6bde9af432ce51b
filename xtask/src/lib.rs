//! What the tasks and the guest tests both know: where the lab is and what lies in it, and how to
//! run child processes that end when they must.
//!
//! The tests depend on this and not the other way round: `cargo xtask lab` has to be there, and
//! quickly, when nothing else builds.

pub mod lab;
pub mod process;
