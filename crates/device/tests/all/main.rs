//! The integration tests of this crate: one program, so that one is linked.

mod blk_request;
mod fs;
mod nbd;
mod p9;
mod scsi;
#[cfg(feature = "fuzzing")]
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;
