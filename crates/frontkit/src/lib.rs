//! A frontend without a VM: what a machine and its driver bring to a vhost-user device. The load generator, torture and the
//! tests drive devices with it.
//!
//! It does what it is told and judges nothing: whoever measures, checks or lies does so on top. So each step of a queue is
//! there alone as well, and memory can be written wherever a guest could.

pub mod blk;
mod eventfds;
mod log;
mod memory;
mod queue;
pub mod scsi;
mod session;

pub use eventfds::{Eventfds, borrow, wait_for_any};
pub use log::{DirtyLog, LOG_PAGE_BYTES};
pub use memory::{Area, Memory, USER_BASE};
pub use queue::{
    Areas, Buffer, INDIRECT, NEXT, Queue, Used, WRITE, readable, tear_descriptor, writable, write_descriptor,
};
pub use session::{Session, feature};
