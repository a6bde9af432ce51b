//! What a volume looks like on disk, and how that is made and changed.
//!
//! `docs/formats/volume.md` is the layout's description. A volume's storage begins with two slots for a [`Superblock`], written in
//! turn, so that one is whole whenever power goes; then comes room for a log, then the disk's blocks. A log on a storage of its
//! own has a [`LogHeader`] in front.
//!
//! Changes of the layout ([`log_add`], [`log_remove`], [`resize`], [`close`]) each come true with one superblock: a cut in their
//! middle leaves the volume as it was.

mod change;
mod create;
mod error;
pub(crate) mod field;
mod header;
mod slots;
mod superblock;
#[cfg(test)]
mod tests;

pub use change::{close, log_add, log_remove, resize};
pub use create::{CreateOptions, create};
pub use error::{FormatError, Loss};
pub use header::LogHeader;
pub use slots::{Slot, read_slots, read_superblock, write_superblock};
pub use superblock::{LogPlace, MemoryAt, Region, Superblock, Tail};
pub use uuid::Uuid;

/// Offset of the internal log's room in a volume, in bytes. What lies before it holds the superblocks, and spare room.
pub const INTERNAL_LOG_OFFSET: u64 = 64 << 10;
/// What the offset of the disk's blocks is a multiple of.
pub const DATA_ALIGN_BYTES: u64 = 1 << 20;
/// Offset of the records in a log that has a storage of its own: behind its header.
pub const EXTERNAL_LOG_OFFSET: u64 = 4096;
/// Smallest log in bytes. A record takes at most a quarter of its log.
pub const LOG_BYTES_MIN: u64 = 64 << 10;
/// Largest log in bytes.
pub const LOG_BYTES_MAX: u64 = 1 << 40;
/// Largest disk in bytes.
pub const CAPACITY_BYTES_MAX: u64 = 1 << 60;

/// Counters of a superblock (positions, sequences, epochs, generations) stay below this, and those of a record below twice this,
/// so that counting on from any of them cannot overflow. A log that is written at 10 GB/s gets there in fourteen years.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;

/// Features that a reader must know, or leave the volume alone.
pub(crate) mod incompatible {
    /// The log is on a storage of its own.
    pub(crate) const EXTERNAL_LOG: u64 = 1;
    /// The disk is another storage: this one has superblocks and the log alone.
    pub(crate) const DISK_APART: u64 = 2;
    /// What this program knows.
    pub(crate) const KNOWN: u64 = EXTERNAL_LOG | DISK_APART;
}

/// Features that a reader may pass over; a writer that does not know one clears it.
pub(crate) mod compatible {
    /// The superblock says in which boot and where the volume has a memory file.
    pub(crate) const MEMORY: u64 = 1;
    /// What this program knows.
    pub(crate) const KNOWN: u64 = MEMORY;
}

/// The seed of all checksums in a log: records of another log are wrong by that alone.
pub(crate) fn log_seed(log: &Uuid) -> u64 {
    let (high, low) = log.as_u64_pair();
    high ^ low
}

/// `value` rounded up to a multiple of `grain`, a power of two; saturating.
pub(crate) const fn round_up(value: u64, grain: u64) -> u64 {
    match value.checked_next_multiple_of(grain) {
        Some(rounded) => rounded,
        None => u64::MAX,
    }
}
