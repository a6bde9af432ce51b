//! What the tests of several rooms need: storages driven on the calling thread, and compared with a plain vector; certificates.
//!
//! For tests alone: it panics where a test would.

#[cfg(feature = "tls")]
pub mod certificates;
pub mod probe;
mod rng;
pub mod storage;

pub use rng::Rng;
