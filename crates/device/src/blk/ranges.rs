//! The payload of discard and write-zeroes requests.

use super::spec::{RANGE_BYTES, RANGE_FLAG_UNMAP, SECTOR_BYTES};

/// One segment of a discard or write-zeroes request: it lies inside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes, never 0.
    pub len: u64,
    /// The space may be given back (write zeroes only).
    pub unmap: bool,
}

/// The checked segments of one request. They are read from the caller's copy of the payload, so nothing is allocated and a guest
/// that changes its own copy changes nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges<'a> {
    payload: &'a [u8],
}

impl<'a> Ranges<'a> {
    /// `payload` was checked by `decode_request`: whole segments whose bytes do not overflow.
    pub(super) fn checked(payload: &'a [u8]) -> Ranges<'a> {
        Ranges { payload }
    }

    /// Number of segments, 1 or more.
    pub fn len(&self) -> usize {
        self.payload.len() / RANGE_BYTES
    }

    /// Never true for a request that was accepted.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// The `index`th segment.
    pub fn get(&self, index: usize) -> Option<Range> {
        let start = index.checked_mul(RANGE_BYTES)?;
        let bytes = self.payload.get(start..)?.first_chunk()?;
        Some(RawRange::decode(bytes).range())
    }

    /// The segments, in the request's order.
    pub fn iter(&self) -> impl Iterator<Item = Range> + 'a {
        raw_ranges(self.payload).map(RawRange::range)
    }
}

/// A segment as the guest wrote it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawRange {
    pub(super) sector: u64,
    pub(super) sectors: u32,
    pub(super) flags: u32,
}

impl RawRange {
    fn decode(bytes: &[u8; RANGE_BYTES]) -> RawRange {
        let word = u128::from_le_bytes(*bytes);
        // Truncation picks the fields out of the little-endian word: le64, le32, le32.
        RawRange { sector: word as u64, sectors: (word >> 64) as u32, flags: (word >> 96) as u32 }
    }

    /// Meaningful once the segment is known to lie inside the disk.
    fn range(self) -> Range {
        Range {
            offset: self.sector.wrapping_mul(SECTOR_BYTES),
            len: u64::from(self.sectors) * SECTOR_BYTES,
            unmap: self.flags & RANGE_FLAG_UNMAP != 0,
        }
    }
}

/// The segments of a payload; an incomplete one at its end is left out.
pub(super) fn raw_ranges(payload: &[u8]) -> impl Iterator<Item = RawRange> + '_ {
    payload.as_chunks::<RANGE_BYTES>().0.iter().map(RawRange::decode)
}
