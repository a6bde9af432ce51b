//! The integration tests of this crate: one program, so that one is linked.

mod page;
mod stand;
mod stand_ssh;
mod stand_support;
mod stand_trouble;
