//! The integration tests of this crate: one program, so that one is linked.

mod disk;
mod p9;
mod p9_stream;
