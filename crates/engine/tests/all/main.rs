//! The integration tests of this crate: one program, so that one is linked.

mod busy;
mod common;
mod faults;
mod life;
mod moves;
mod policy;
mod serve;
mod streams;
mod turns;
