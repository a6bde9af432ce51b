//! Protocol decode and encode: bytes to typed requests and back.
//!
//! No system call, no thread, no ring: a device takes the bytes of one chain and says what is asked, and takes a result and says
//! which bytes answer it. Everything a guest wrote is checked here, once; what leaves this room is a typed value that lies inside
//! the device. This room depends on no other.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod blk;
pub mod fs;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod nbd;
pub mod p9;
pub mod scsi;
mod wire;
