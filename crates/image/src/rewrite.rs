//! How a header changes to another one, so that a power cut leaves either.

use crate::extension::{BITMAPS, Bitmaps};
use crate::field::{u32_at, u64_at};
use crate::header::{Header, at};
use std::ops::Range;

/// What is written at once, or not at all.
const SECTOR_BYTES: usize = 512;

/// Places in the first cluster, and what is written there, in this order.
pub(crate) type Steps = Vec<(usize, Vec<u8>)>;

/// Bytes of the header whose meaning is known.
const KNOWN_HEADER_BYTES: usize = 105;

/// What is written where, and flushed each time, so that the first sector switches from the header that there was
/// before to this one. What does not fit in there is written where nothing is, or when nothing refers to it.
pub(crate) fn steps(old: &Header, header: &Header, before: &[u8]) -> Steps {
    let name = header.backing_file.clone().unwrap_or_default();
    let end_before = before.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).next_multiple_of(8);
    let with_name_at = |header: &Header, at: usize| {
        let mut bytes = header.encode_named_at(at as u64);
        // Fields that a later program has added stay.
        let known = KNOWN_HEADER_BYTES.min(header.header_bytes as usize)..header.header_bytes as usize;
        bytes[known.clone()].copy_from_slice(&before[known]);
        bytes.resize(at, 0);
        bytes.extend(&name);
        // What there was behind that goes.
        bytes.resize(bytes.len().max(end_before).max(SECTOR_BYTES), 0);
        bytes
    };
    let mut short = header.clone();
    short.extensions.feature_names.clear();
    let name_at = match room(old, header, before, end_before) {
        Some(at) if short.encode_named_at(0).len() <= SECTOR_BYTES => at,
        // There is no room for both.
        _ => return vec![(0, with_name_at(header, header.encode_named_at(0).len()))],
    };
    let mut steps = Vec::new();
    if name_at + name.len() > SECTOR_BYTES {
        let start = name_at.max(SECTOR_BYTES);
        steps.push((start, name[start - name_at..].to_vec()));
    }
    // Names of features may wait: who reads the header until then does not see them.
    let short = with_name_at(&short, name_at)[..SECTOR_BYTES].to_vec();
    let mut first = with_name_at(header, name_at);
    let rest = first.split_off(SECTOR_BYTES);
    let is_short = first == short;
    steps.push((0, short));
    if !rest.is_empty() {
        steps.push((SECTOR_BYTES, rest));
    }
    if !is_short {
        steps.push((0, first));
    }
    steps
}

/// Where the new name is behind the headers, and beside the old name; what is in the first sector changes at once.
fn room(old: &Header, header: &Header, before: &[u8], end_before: usize) -> Option<usize> {
    let [old_headers, headers] = [old, header].map(|header| header.encode_named_at(0).len());
    let headers = if old_headers > SECTOR_BYTES { old_headers.max(headers) } else { headers };
    let [old_len, len] = [old, header].map(|header| header.backing_file.as_ref().map_or(0, Vec::len));
    let old_at = u64_at(before, at::BACKING_FILE).map_or(0, |at| at as usize);
    let is_free = |at: usize| at + len <= SECTOR_BYTES.max(old_at) || at.max(SECTOR_BYTES) >= old_at + old_len;
    [headers, end_before.max(headers)].into_iter().find(|at| is_free(*at) && at + len <= before.len())
}

/// Whether the first cluster, which has these bytes now, has room for the steps, and whether a power cut during them leaves one header or
/// the other.
pub(crate) fn fits(before: &[u8], steps: &[(usize, Vec<u8>)]) -> bool {
    let is_inside = |(at, bytes): &(usize, Vec<u8>)| at + bytes.len() <= before.len();
    steps.iter().all(is_inside) && (steps.len() != 1 || is_one_sector(before, steps[0].0, &steps[0].1))
}

/// Where in the first cluster the extension says where the bitmaps are, and what it says of these; `None`: there is no such
/// extension, or it does not lie in one sector.
pub(crate) fn bitmaps(header: &Header, before: &[u8], bitmaps: Bitmaps) -> Option<(usize, Vec<u8>)> {
    header.extensions.bitmaps?;
    let mut at = header.header_bytes as usize;
    while u32_at(before, at)? != BITMAPS {
        at += 8 + (u32_at(before, at + 4)? as usize).next_multiple_of(8);
    }
    let data = at + 8..at + 8 + Bitmaps::BYTES;
    (data.start / SECTOR_BYTES == (data.end - 1) / SECTOR_BYTES).then(|| (data.start, bitmaps.encode()))
}

/// Whether these bytes take the place of others with one sector.
fn is_one_sector(before: &[u8], at: usize, bytes: &[u8]) -> bool {
    let changed: Vec<usize> =
        (at..).zip(bytes).filter(|(at, byte)| before.get(*at) != Some(byte)).map(|(at, _)| at).collect();
    let sectors = |changed: Range<usize>| changed.start / SECTOR_BYTES == changed.end / SECTOR_BYTES;
    changed.first().zip(changed.last()).is_none_or(|(first, last)| sectors(*first..*last))
}
