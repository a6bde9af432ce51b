//! Block jobs: copies of a disk that goes on changing while guests write to it.
//!
//! One walk over marks of what is left to do is used in four ways. A [`Backup`] is the disk as it was at one moment: a write
//! waits until the old contents of its clusters are read. A [`Mirror`] follows the disk: what was written is copied again, until the
//! copy is the disk. A [`Fill`] writes what is behind an image into it, and needs no tracking: what guests have written stays. A [`Pull`] is the
//! disk as it was at one moment, too, for others to read: only what guests write over is copied.
//!
//! Each has a *filter*, a storage that takes the disk's place for as long as the job lasts, and `run`, which copies on the thread that
//! calls it. The filter never lets a guest's request fail or hang for the job's sake: what fails is the job.
//!
//! This room knows no virtqueue, no API and no path. It starts no thread.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod after;
mod backup;
mod before;
mod control;
mod copying;
mod error;
mod fill;
mod lanes;
mod limit;
mod marks;
mod mirror;
#[cfg(test)]
mod models;
mod pull;
mod sync;

pub use backup::Backup;
pub use control::{Find, Progress};
pub use error::JobError;
pub use fill::Fill;
pub use mirror::Mirror;
pub use pull::Pull;
pub use storage::copy::Copied;
