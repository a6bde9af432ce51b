//! What the rings of directories have in common, whatever protocol they speak: their requests are answered by system calls.
//!
//! | file | concern |
//! |---|---|
//! | `executor` | where the calls run, changed while they do |
//! | `care` | what a call has to do with others that is left to a thread |
//! | `turns` | a virtqueue's turns: batches, limits, publication, figures |
//! | `slot` | one request in flight |
//! | `syncs` | how many of those go by io_uring that wait for a disk |
//! | `scene` | what a service is given with a request, and how it answers |
//! | `files` | file data from and to the place where the client wants it |
//! | `data` | that, by the call itself |
//! | `pace` | whether calls on the spot have been quick lately |

mod care;
pub(crate) mod data;
mod executor;
pub(crate) mod files;
mod pace;
mod scene;
mod slot;
mod syncs;
pub(crate) mod turns;

pub(crate) use care::Care;
pub(crate) use executor::{Executing, Executor};
pub(crate) use pace::{Direction, Pace};
pub(crate) use scene::{Answer, LISTING_BYTES_MAX, Moved, Outcome, Scene};
pub(crate) use slot::{Job, Slot, Work, lock};
pub(crate) use syncs::{Syncing, Syncs};
pub(crate) use turns::{Requests, Turns};
