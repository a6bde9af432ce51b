//! What makes a volume: a write-back cache in memory, an intent log on disk, and the rule when writers share a commit.
//!
//! A volume is a lower storage (its data) and an intent log, in the same storage or in a second one. This room holds the parts
//! that can be thought through alone. Nothing here starts a thread, holds a descriptor or knows an io_uring.

pub mod cache;
mod units;

pub use units::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK, SectorMask};
