//! `bench fs`: a load on a vhost-user-fs socket, ours or a peer's.
//!
//! From below: `memory` and `queue` are the driver's side of virtio, `device` the vhost-user connection, `port`
//! puts FUSE requests (`wire`) on a queue, `client` mounts, `fixture` prepares a `job` in a `scratch`
//! directory, `lane` does its operations, `run` for how long, `session` ties them together, and `contest`
//! lets servers do so in turn.

mod args;
mod client;
mod contest;
mod device;
mod fixture;
mod job;
mod lane;
mod memory;
mod port;
mod process;
mod queue;
mod run;
mod scratch;
mod session;
mod syscalls;
mod table;
mod wire;

pub use args::{Args, run};
pub use job::Job;
pub use syscalls::Tool;
