//! What makes a volume: a write-back cache in memory, an intent log on disk, and the rule when writers share a commit.
//!
//! A volume is a lower storage (its data) and an intent log, in the same storage or in a second one. The parts can
//! be thought through alone: the [`cache`] that a guest's writes land in, the bytes on disk ([`mod@format`], [`log`]), their
//! recovery after a power cut ([`recover`]) and their examination ([`check`]), the policy of commits ([`commit`]), and the
//! pace of write-back ([`pace`]).
//!
//! None of these starts a thread, holds a descriptor or knows an io_uring. What touches a disk does so through the blocking
//! trait [`Blocks`], so that a test can put a recording, lying or failing one in its place. Layouts on disk are written down in
//! `docs/formats/volume.md`; that document is the truth and the code follows it.
//!
//! The storage made of these parts, with workers and a write-back thread, is in `served`: of it the parts know nothing.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod blocks;
pub mod cache;
pub mod check;
pub mod commit;
pub mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod log;
pub mod pace;
#[cfg(any(test, feature = "fuzzing"))]
mod pages;
mod ram;
pub mod recover;
mod served;
#[cfg(any(test, feature = "fuzzing"))]
mod testing;
mod units;

pub use blocks::{Blocks, Progress};
pub use ram::Ram;
pub use served::{
    Barriers, Foreseen, LoggedOptions, LoggedStorage, MEMORY_DIRECTORY, MEMORY_DIRECTORY_OF_OTHERS, PairError,
    VolumeError, VolumeOptions, adopt_apart, adopt_made, default_memory_path, foresee_log, needs_of_log, open_apart,
    open_made, tools,
};
pub use units::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK, SectorMask};
