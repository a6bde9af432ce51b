//! FUSE over vhost-user: virtio-fs.
//!
//! `device` has the queues, `port` puts requests (`wire`) on one, `client` mounts, `fixture` prepares a job, `lane` does
//! its operations in `step`s, and `mount` hands lanes out and takes them back.

mod client;
mod device;
mod fixture;
mod lane;
mod mount;
mod port;
mod step;
mod wire;

pub(crate) use mount::Mount;
pub(crate) use wire::Granted;
