//! The integration tests of this crate: one program, so that one is linked.

mod dax;
mod disk;
mod nbd;
mod p9;
mod p9_stream;
mod scsi;
