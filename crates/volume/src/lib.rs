//! What makes a volume: a write-back cache in memory, an intent log on disk, and the rule when writers share a commit.
//!
//! A volume is a lower storage (its data) and an intent log, in the same storage or in a second one. This room holds the parts
//! that can be thought through alone: the [`cache`] that a guest's writes land in, the bytes on disk ([`mod@format`], [`log`]), their
//! recovery after a power cut ([`recover`]) and their examination ([`check`]), the policy of commits ([`commit`]), and the
//! pace of write-back ([`pace`]).
//!
//! Nothing here starts a thread, holds a descriptor or knows an io_uring. What touches a disk does so through the blocking
//! trait [`Blocks`], so that a test can put a recording, lying or failing one in its place. The machine that drives these
//! parts, with workers and a write-back thread, is `storage::logged`. Layouts on disk are written down in
//! `docs/formats/volume.md`; that document is the truth and the code follows it.

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
#[cfg(any(test, feature = "fuzzing"))]
mod testing;
mod units;

pub use blocks::{Blocks, Progress};
pub use ram::Ram;
pub use units::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK, SectorMask};
