//! The integration tests of this crate: one program, so that one is linked.

mod common;
mod logged;
mod logged_commits;
mod logged_large;
mod pace;
mod page_cache;
mod volume_life;
mod volume_tools;
