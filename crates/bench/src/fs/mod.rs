//! `bench fs`: a load on a server of directories, ours or a peer's, over FUSE or 9P.
//!
//! From below: `driver` beside it has queues and the vhost-user connection, and `qemu` a virtual machine without a guest, for a
//! server that is a part of one. `fuse` and `p9` each put requests of their protocol on a queue or a socket, mount, prepare a
//! `job` in a `scratch` directory, and do its operations as a `lane`. `run` does so for how long, `session` ties them
//! together, and `contest` lets `servers` do so in turn.

mod args;
mod check;
mod contest;
mod fuse;
mod job;
mod lane;
mod load;
mod p9;
mod patience;
mod protocol;
mod qemu;
mod run;
mod scratch;
mod servers;
mod session;
mod shape;
mod syscalls;
mod table;

pub use args::{Args, run};
pub use job::Job;
pub use protocol::Protocol;
pub use syscalls::Tool;
