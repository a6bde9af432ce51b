//! Who executes what, and when: decisions as functions of what was seen.
//!
//! | file | decision |
//! |---|---|
//! | `execution` | where a call runs: on the worker, by io_uring, or on a thread |
//! | `pace` | whether calls on the worker have been quick lately, which that depends on |
//! | `poll` | how long a worker looks before it sleeps |
//! | `journal` | what was seen and decided, and the same decisions again |
//! | `trial` | which way of waiting does most: tactics take turns |
//! | `placement` | which worker has a new ring |
//! | [`balance`] | which worker has which ring under load, and how many workers there are |
//!
//! Nothing here reads a clock, starts a thread or makes a system call: what was seen comes in, what is to be done goes out. So the
//! same code decides in the daemon and in a test that plays a day in a second.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod balance;
mod execution;
mod journal;
mod pace;
mod placement;
mod poll;
mod trial;

pub use execution::{Call, Chooser, Look, Route};
pub use journal::{Held, Journal, Replayed, Stretch, replay};
pub use pace::Direction;
pub use placement::{Candidate, place, private_workers};
pub use poll::{PollWindow, SleepPrice, Wait};
pub use trial::{Cost, Sample, Tactic, Trial, Verdict};
pub use values::Favour;
