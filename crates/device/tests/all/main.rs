//! The integration tests of this crate: one program, so that one is linked.

mod blk_request;
mod fs;
mod p9;
