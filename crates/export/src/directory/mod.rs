//! A directory: FUSE over virtio on one side, a tree on the other.
//!
//! | file | concern |
//! |---|---|
//! | `device` | config space, sessions, where calls run |
//! | `ring` | one virtqueue: from the chain to the answer, here, by io_uring or on a pool |
//! | `service` | one request on the tree, in the terms of the protocol |
//! | `reply` | the answer, where the driver looks for it |
//! | `policy` | what the guest may cache |
//! | `dax` | files in the guest's own memory |
//! | `migration` | its state on the way to another host |

mod dax;
mod device;
mod kind;
mod migration;
mod policy;
mod protocol;
mod reply;
mod ring;
mod service;

pub use dax::{DaxOptions, WINDOW_BYTES_MAX};
pub(crate) use device::Directory;
pub use device::{DirectoryOptions, DirectoryStatus, REQUEST_QUEUES_MAX};
pub use policy::Policy;
pub(crate) use ring::DirectoryRing;
pub use service::FuseSession;
pub(crate) use service::Service;
