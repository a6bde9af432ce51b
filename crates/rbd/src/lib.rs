//! Disks that are images of a Ceph cluster (RBD).
//!
//! Ceph's own library does the work: it is looked for when the first such disk is asked for, so that a daemon without it starts. A request
//! is handed to it on the worker, which never waits there, and ends on one of its threads, which completes an [`engine::Reply`].
//!
//! | file | concern |
//! |---|---|
//! | `ffi` | librados and librbd: all that is unsafe |
//! | `options`, `spec` | what may be chosen, and how an image is written in one word |
//! | `open` | from a description to an open image |
//! | `files`, `monitors` | what Ceph's library would read without end, or say nothing useful of |
//! | `connection` | an image that is open, or that requests wait for |
//! | `again`, `was` | what the program before this one has had open is opened again |
//! | `busy` | how a program ends while the library has threads of it |
//! | `openings`, `room` | how many openings are under way, and whether another one has room |
//! | `guard`, `owner`, `held` | who may write: the exclusive lock, what its owner has written down, and which this program has |
//! | `live` | what others make of an image that is served: another size, or nothing |
//! | `served`, `budget` | the storage, and how much of requests librbd may keep |
//! | `error` | what can be wrong, in words that name the fix |

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod again;
mod budget;
mod busy;
mod connection;
mod error;
mod ffi;
mod files;
mod guard;
mod held;
mod live;
mod monitors;
mod open;
mod openings;
mod options;
mod owner;
mod room;
mod served;
mod spec;
mod was;

pub use busy::end_process_if_busy;
pub use error::RbdError;
pub use options::RbdOptions;
pub use served::RbdStorage;
pub use spec::{Spec, SpecError};
