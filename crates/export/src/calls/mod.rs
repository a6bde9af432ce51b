//! What rings of directories have in common, whatever protocol they speak: their requests are answered by system calls.
//!
//! | file | concern |
//! |---|---|
//! | `protocol` | what differs from one protocol to another |
//! | `making` | the calls of one ring: where each is made, and what comes of it |
//! | `queue` | a virtqueue whose requests are calls |
//! | `request` | one request in flight |
//! | `executor` | where the calls of a ring run |
//! | `executing` | where those of an export do, changed while they do |
//! | `care` | what a call has to do with others that is left to a thread |
//! | `syncs` | how many of those go by io_uring that wait for a disk |
//! | `scene` | what a protocol is given with a request, and how it answers |
//! | `files` | file data from and to the place where the client wants it |
//! | `data` | that, by the call itself |

mod care;
pub(crate) mod data;
mod executing;
mod executor;
pub(crate) mod files;
mod making;
mod protocol;
mod queue;
mod request;
mod scene;
mod syncs;

pub(crate) use care::Care;
pub(crate) use executing::Executing;
pub(crate) use executor::Executor;
pub(crate) use making::{Calls, Way};
pub(crate) use protocol::{Protocol, Transfer};
pub(crate) use queue::{CallQueue, Given};
pub(crate) use request::{CallRequest, Work, lock};
pub(crate) use scene::{Answer, Cancel, LISTING_BYTES_MAX, Moved, Outcome, Scene};
pub(crate) use syncs::{Syncing, Syncs};
