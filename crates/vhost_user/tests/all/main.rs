//! The integration tests of this crate: one program, so that one is linked.

mod channel;
mod common;
mod config;
mod device_state;
mod endpoint;
mod handover;
mod inflight;
mod log;
mod memory;
mod protocol;
mod rings;
