//! 9P2000.L, over vhost-user or on a stream.
//!
//! Messages (`wire`) go through a `channel`: a queue of a device (`ring`) or a socket (`stream`). `client` mounts,
//! `fixture` prepares a job, `lane` does its operations in `step`s, and `mount` hands lanes out and takes them back.

mod channel;
mod client;
mod fixture;
mod lane;
mod mount;
mod ring;
mod step;
mod stream;
#[cfg(test)]
mod tiny;
mod wire;

pub(crate) use client::Granted;
pub(crate) use mount::Mount;
