//! A directory: 9P on one side, a tree on the other.
//!
//! | file | concern |
//! |---|---|
//! | `device` | config space, sessions, where calls run |
//! | `ring` | one virtqueue: from the chain to the answer, here, by io_uring or on a pool |
//! | `deferred` | requests that are answered later: those that flush others, wait for locks, or are held up by limits |
//! | `service` | one request on the tree, in the terms of the protocol |
//! | `reply` | the answer, where the driver looks for it |
//! | `kind` | names of requests, for figures |
//! | `stream` | the same over sockets: a connection is a ring |

mod deferred;
mod device;
mod kind;
mod protocol;
mod reply;
mod ring;
mod service;
mod siblings;
mod stream;

pub(crate) use device::P9;
pub use device::{P9Options, P9Status};
pub(crate) use ring::P9Ring;
pub use service::P9Policy;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use {
    service::{Service, Session},
    siblings::Siblings,
};
