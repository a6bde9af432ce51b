//! A frontend of vhost-user disks that looks at every request, and outlives its server.
//!
//! Memory, rings and the inflight region (vhost-user, "Inflight I/O tracking") are the frontend's; a server comes and
//! goes. After a server was killed the next one is given the same memory, the same rings and the same region, and must
//! complete what was in flight, each request once.
//!
//! - [`Load`] is what to use: it connects, keeps requests in flight, checks each one, and sums up.
//! - [`connection::Driver`] is the guest's side without an opinion about contents: connection, memory, rings.
//! - [`language::Language`] is what they speak, virtio-blk or virtio-scsi: how requests look, and what answers mean.
//! - [`contents::Contents`] is what the disk must hold.
//!
//! All of it runs on the caller's thread: [`Load::run`] drives the rings until it is told to stop. What else a test does
//! (to kill, to upgrade, to attack) it does on another thread meanwhile, or between two runs.

mod blk;
mod connection;
mod contents;
mod language;
mod load;
mod pattern;
mod request;
mod ring;
mod scsi;

pub(crate) use connection::{Farewell, Shape};
pub(crate) use language::{Durability, Protocol};
pub(crate) use load::{Checks, Load, Tally};
pub(crate) use ring::{RING_SIZE_MAX, RingShape};
pub(crate) use scsi::{DISK, OTHER};
