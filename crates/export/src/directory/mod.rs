//! A directory: FUSE over virtio on one side, a tree on the other.
//!
//! | file | concern |
//! |---|---|
//! | `device` | config space, sessions, where calls run |
//! | `ring` | one virtqueue: from the chain to the answer, here, by io_uring or on a pool |
//! | `slot` | one request in flight |
//! | `service` | one request on the tree, in the terms of the protocol |
//! | `data` | file data straight from and to guest memory |
//! | `reply` | the answer, where the driver looks for it |
//! | `pace` | whether calls on the spot have been quick lately |
//! | `policy` | what the guest may cache |

mod data;
mod device;
mod kind;
mod pace;
mod policy;
mod reply;
mod ring;
mod service;
mod slot;

pub(crate) use device::Directory;
pub use device::{DirectoryOptions, DirectoryStatus, REQUEST_QUEUES_MAX};
pub use policy::{Cache, Grant, Policy, ReadDirPlus};
pub use ring::DirectoryRing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use {ring::Executor, service::Service};
