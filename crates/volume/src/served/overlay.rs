//! What pinned versions have of a range, and how it is laid over what was read below.

use super::cursor::Cursor;
use super::shared::Part;
use crate::cache::{Pinned, Pins};
use crate::{BLOCK_BYTES, SECTOR_BYTES};
use libc::iovec;
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks that a range of bytes touches.
pub(super) fn touched(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK..offset.saturating_add(len).div_ceil(BLOCK)
}

/// What a pinned version has of a range: where it begins in the range, its bytes, and where they lie.
fn pieces(version: &Pinned, offset: u64, end: u64) -> impl Iterator<Item = (u64, usize, Option<*const u8>)> + use<> {
    let start = version.block * BLOCK;
    let wanted = Part::first(offset.max(start), end.min(start.saturating_add(BLOCK)));
    let data = version.data;
    let sectors =
        wanted.map_or(crate::SectorMask::NONE, |part| part.sectors.without(part.sectors.without(version.sectors)));
    sectors.runs().map(move |(first, count)| {
        let at = first * SECTOR_BYTES;
        (start + at as u64 - offset, count * SECTOR_BYTES, data.map(|data| data.wrapping_add(at)))
    })
}

/// Bytes of a range that pinned versions have.
pub(super) fn covered(pins: &Pins, offset: u64, end: u64) -> u64 {
    pins.iter().flat_map(|version| pieces(&version, offset, end)).map(|(_, bytes, _)| bytes as u64).sum()
}

/// Copies what pinned versions have of a range over `buffers`, from `cursor` on.
///
/// # Safety
/// The buffers are valid for writes; they may change meanwhile.
pub(super) unsafe fn lay_over(pins: &Pins, buffers: &[iovec], mut cursor: Cursor, offset: u64, end: u64) {
    let mut at = 0;
    for version in pins.iter() {
        for (start, bytes, data) in pieces(&version, offset, end) {
            // Versions were pinned in ascending order.
            cursor = cursor.skip(buffers, (start - at) as usize);
            // SAFETY: a pinned version is a whole block, and the piece lies in it; the buffers are vouched for.
            cursor = unsafe { cursor.scatter(buffers, data, bytes) };
            at = start + bytes as u64;
        }
    }
}
