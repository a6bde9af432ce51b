//! Load generators: frontends without a virtual machine.
//!
//! This room drives a vhost-user socket, ours or a peer's, and says what it saw: requests a second, latency, the
//! server's CPU time and wake-ups, errors, and data that came back wrong. Disks are driven by libblkio (the `blkio`
//! crate), by an NBD client or by a driver of our own ([`frontend`]), directories by that driver too ([`fs`]), so that a
//! misunderstanding of virtio, SCSI, NBD or FUSE in our server cannot hide behind the same misunderstanding here.
//!
//! What may not enter: any room of the server, but the words that people type (`values`). A generator that shares code with what it measures proves nothing.

pub mod backup;
pub mod commits;
pub mod contest;
pub mod disk;
pub mod environment;
pub mod fio;
pub mod frontend;
pub mod fs;
pub mod image;
pub mod parse;
pub mod programs;
pub mod progress;
pub mod regret;
pub mod stats;
pub mod table;
pub mod words;

mod args;
mod bytes;
mod driver;
mod http;
mod idle;
mod report;
mod server;

pub use idle::{Idle, idle};
