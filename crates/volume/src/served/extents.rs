//! Where a volume has data: in the cache, or below.

use super::overlay::touched;
use super::shared::Shared;
use std::ops::Range;
use storage::extent::{self, Extents};
use storage::{Extent, StorageError};

/// The cache is looked at in pieces of this many bytes: a piece of which it has something is data.
const PIECE_BYTES: u64 = 64 << 10;
/// Bytes that are looked at for one list.
const LOOK_BYTES_MAX: u64 = 1 << 30;

impl Shared {
    /// As [`storage::Storage::extents`].
    pub(super) fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        let range = range.start..range.end.min(range.start.saturating_add(LOOK_BYTES_MAX));
        // Before the lower storage is looked at: what leaves the cache from now on is there by then.
        let cached = self.cached(&range);
        let base = self.layout.data_offset;
        let below = extent::ask(&*self.lower, base + range.start..base + range.end, most)?;
        let mut found = Extents::of(range.clone(), most);
        let mut cached = cached.into_iter().peekable();
        let mut at = range.start;
        for extent in below {
            let end = at + extent.bytes;
            while at < end {
                let next = cached.next_if(|cached| cached.end <= at);
                if next.is_some() {
                    continue;
                }
                let (stop, in_cache) = match cached.peek() {
                    Some(cached) if cached.start <= at => (cached.end.min(end), true),
                    Some(cached) => (cached.start.min(end), false),
                    None => (end, false),
                };
                if !found.add(stop - at, extent.data || in_cache) {
                    return Ok(found.into_list());
                }
                at = stop;
            }
        }
        Ok(found.into_list())
    }

    /// Parts of a range that the cache may have something of.
    fn cached(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        if !self.cache.touches(touched(range.start, range.end - range.start)) {
            return out;
        }
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
            if self.cache.touches(touched(at, end - at)) {
                match out.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => out.push(at..end),
                }
            }
            at = end;
        }
        out
    }
}
