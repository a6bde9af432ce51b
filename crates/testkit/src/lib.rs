//! What the tests of several rooms need: storages driven on the calling thread, and compared with a plain vector; certificates; a
//! process for a test that changes its own.
//!
//! For tests alone: it panics where a test would.

#[cfg(feature = "tls")]
pub mod certificates;
pub mod child;
pub mod probe;
mod rng;
pub mod storage;

pub use rng::Rng;
