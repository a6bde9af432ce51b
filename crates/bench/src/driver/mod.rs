//! A driver of our own for any vhost-user device.
//!
//! | module | |
//! |---|---|
//! | `device` | the connection: features, configuration, memory, queues |
//! | `queue` | one queue under load, and how it and its device tell each other |
//! | `slots` | a queue that is divided into slots, each with its descriptors and its buffers |
//!
//! What a request says is known to those who put it there: [`crate::frontend`] for disks, [`crate::fs`] for directories.

mod device;
mod queue;
mod slots;

pub use device::ConnectError;
pub(crate) use device::{Device, QueuePlan};
pub(crate) use queue::{Bell, Queue};
pub(crate) use slots::{Layout, SlotQueue};
