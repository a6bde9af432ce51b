//! The intent log: a circle of records, one a commit.
//!
//! A record is its header blocks and then a block for each data entry. It says which record came before it (that one's checksum),
//! so that what a reader follows is the sequence in which commits were sealed, and nothing that an earlier lap or an earlier
//! opening left behind. Positions count bytes ever written; a record never wraps around the end of its region.
//!
//! [`RecordBuilder`] makes a record's header without touching the payload's place; [`LogSpace`] says where it goes;
//! `Scan` reads records back.

mod builder;
mod record;
mod scan;
mod space;

pub use builder::{RecordBuilder, Sealed};
pub(crate) use record::Entry;
pub use record::MalformedRecord;
#[cfg(test)]
pub(crate) use record::at;
pub use scan::{End, ScanError};
pub(crate) use scan::{Record, Scan};
pub use space::LogSpace;

#[cfg(test)]
mod tests;

/// Longest record in bytes, header included.
pub const RECORD_BYTES_MAX: u64 = 4 << 20;
/// Most data entries of a record: with its header they fit the 1024 buffers of one write (IOV_MAX of Linux).
pub const DATA_ENTRIES_MAX: usize = 1000;
/// Most entries of a record, runs of zeroes included: what four blocks of header hold.
pub const ENTRIES_MAX: usize = (HEADER_BYTES_MAX - FIXED_BYTES) / ENTRY_BYTES;
/// Most records that are written at the same time.
pub const IN_FLIGHT_MAX: usize = 4;

// What a cut leaves is told from damage by their number.
const _: () = assert!(crate::commit::COMMITS_MAX <= IN_FLIGHT_MAX);

/// Bytes of the header before its entries.
const FIXED_BYTES: usize = 128;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 16;
/// Longest header in bytes, a multiple of the block.
const HEADER_BYTES_MAX: usize = 4 * crate::units::BLOCK_BYTES;

/// Longest record in a log of `log_bytes`, in bytes: a quarter of it at most, so that any record fits an empty log wherever that
/// begins.
pub fn record_bytes_max(log_bytes: u64) -> u64 {
    RECORD_BYTES_MAX.min(log_bytes / 4 / crate::units::BLOCK_BYTES as u64 * crate::units::BLOCK_BYTES as u64)
}
