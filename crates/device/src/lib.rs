//! Protocol decode and encode: bytes to typed requests and back.
//!
//! No system call, no thread, no ring: a device takes the bytes of one chain and says what is asked, and takes a result and says
//! which bytes answer it. Everything a guest wrote is checked here, once; what leaves this room is a typed value that lies inside
//! the device. This room depends on no other.

pub mod blk;
pub mod fs;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod nbd;
pub mod p9;
mod wire;
