//! Where a disk has data, and where it reads as zeroes because nothing is there.

use crate::{Storage, StorageError};
use std::collections::VecDeque;
use std::ops::Range;

/// Part of a disk, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length, in bytes.
    pub bytes: u64,
    /// Anything may be there. Otherwise it reads as zeroes.
    pub data: bool,
}

/// A list of extents while it is made: those that are side by side and of one kind are one.
#[derive(Debug)]
pub struct Extents {
    list: Vec<Extent>,
    most: usize,
    at: u64,
    end: u64,
}

impl Extents {
    /// None yet, of at most so many that cover `range` from its start on.
    pub fn of(range: Range<u64>, most: usize) -> Extents {
        Extents { list: Vec::new(), most, at: range.start, end: range.end.max(range.start) }
    }

    /// What is not covered yet; `None`: nothing.
    pub fn rest(&self) -> Option<Range<u64>> {
        (self.at < self.end).then_some(self.at..self.end)
    }

    /// Covers so many bytes more, of which those behind the end do not count. False where there is room for no more extents: nothing has
    /// changed then.
    pub fn add(&mut self, bytes: u64, data: bool) -> bool {
        let bytes = bytes.min(self.end - self.at);
        let is_full = self.list.len() >= self.most;
        match self.list.last_mut() {
            _ if bytes == 0 => return true,
            Some(last) if last.data == data => last.bytes += bytes,
            _ if is_full => return false,
            _ => self.list.push(Extent { bytes, data }),
        }
        self.at += bytes;
        true
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The list.
    pub fn into_list(self) -> Vec<Extent> {
        self.list
    }
}

/// Asks `storage` for extents; of what it says nothing of, it has data everywhere. Blocks.
///
/// # Errors
/// The storage's.
pub fn ask(storage: &dyn Storage, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
    let bytes = range.end.saturating_sub(range.start);
    let mut list = storage.extents(range, most)?;
    list.retain(|extent| extent.bytes > 0);
    if list.is_empty() && bytes > 0 {
        list.push(Extent { bytes, data: true });
    }
    Ok(list)
}

/// The same in blocks of `block_bytes`, from the beginning of one on: a block with some data is data. A block that the list does not
/// cover is left out, and is data if it is the first.
pub fn in_blocks(list: &[Extent], block_bytes: u64) -> Vec<Extent> {
    let total = list.iter().map(|extent| extent.bytes).sum::<u64>() / block_bytes * block_bytes;
    if total == 0 {
        return vec![Extent { bytes: block_bytes, data: true }];
    }
    let mut out = Extents::of(0..total, usize::MAX);
    let mut end = 0;
    for extent in list {
        end += extent.bytes;
        let done = out.rest().map_or(total, |rest| rest.start);
        // Data ends at the end of its last block, a hole at the beginning of it.
        let stop = if extent.data { end.next_multiple_of(block_bytes) } else { end / block_bytes * block_bytes };
        out.add(stop.saturating_sub(done), extent.data);
    }
    out.into_list()
}

/// Shorter gaps between data are read with it: to leave them out costs more.
const GAP_BYTES: u64 = 1 << 20;
/// Longer ranges end: whoever copies begins before all is known.
const RANGE_BYTES: u64 = 64 << 20;
/// Extents that are asked for at once.
const BATCH: usize = 1024;

/// Ranges of a storage in their order, outside of which it reads as zeroes; some follow each other without a gap. Blocks.
pub struct DataRanges<'a> {
    storage: &'a dyn Storage,
    at: u64,
    end: u64,
    /// Gaps that are shorter than this are included.
    gap_bytes: u64,
    batch: VecDeque<Extent>,
}

impl<'a> DataRanges<'a> {
    /// Those inside `range`, with the short gaps between them.
    pub fn of(storage: &'a dyn Storage, range: Range<u64>) -> DataRanges<'a> {
        DataRanges { storage, at: range.start, end: range.end, gap_bytes: GAP_BYTES, batch: VecDeque::new() }
    }

    /// As above, and nothing between them.
    pub fn exactly(storage: &'a dyn Storage, range: Range<u64>) -> DataRanges<'a> {
        DataRanges { gap_bytes: 0, ..DataRanges::of(storage, range) }
    }

    /// The next extent, of what is left.
    fn extent(&mut self) -> Result<Option<Extent>, StorageError> {
        if self.batch.is_empty() && self.at < self.end {
            self.batch = ask(self.storage, self.at..self.end, BATCH)?.into();
        }
        Ok(self.batch.front().copied())
    }

    fn skip(&mut self, extent: Extent) {
        self.batch.pop_front();
        self.at = self.at.saturating_add(extent.bytes).min(self.end);
        if self.at == self.end {
            self.batch.clear();
        }
    }

    fn find(&mut self) -> Result<Option<Range<u64>>, StorageError> {
        while let Some(extent) = self.extent()?
            && !extent.data
        {
            self.skip(extent);
        }
        let start = self.at;
        let mut end = start;
        while end - start < RANGE_BYTES
            && let Some(extent) = self.extent()?
        {
            if extent.data {
                self.skip(extent);
                end = self.at;
            } else if end > start && extent.bytes < self.gap_bytes {
                self.skip(extent);
            } else {
                break;
            }
        }
        Ok((end > start).then_some(start..end))
    }
}

impl Iterator for DataRanges<'_> {
    type Item = Result<Range<u64>, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find();
        if found.is_err() {
            self.at = self.end;
        }
        found.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let extent = (1u64..20, any::<bool>()).prop_map(|(sectors, data)| Extent { bytes: sectors * 512, data });
        proptest::collection::vec(extent, 0..30)
    }

    /// Whether the byte has data.
    fn has_data(list: &[Extent], at: u64) -> Option<bool> {
        let mut end = 0;
        list.iter()
            .find(|extent| {
                end += extent.bytes;
                at < end
            })
            .map(|extent| extent.data)
    }

    proptest! {
        #[test]
        fn extents_of_one_kind_are_one(all in extents(), end in 0u64..64, most in 0usize..8) {
            let mut made = Extents::of(1024..1024 + end * 512, most);
            let all_added = all.iter().all(|extent| made.add(extent.bytes, extent.data));
            let covered = made.rest().map_or(end * 512, |rest| rest.start - 1024);
            let list = made.into_list();
            prop_assert!(list.len() <= most && list.iter().all(|extent| extent.bytes > 0));
            prop_assert!(list.windows(2).all(|pair| pair[0].data != pair[1].data));
            let total: u64 = list.iter().map(|extent| extent.bytes).sum();
            prop_assert_eq!(total, covered);
            if all_added {
                prop_assert_eq!(total, all.iter().map(|extent| extent.bytes).sum::<u64>().min(end * 512));
            }
            for at in (0..total).step_by(512) {
                prop_assert_eq!(has_data(&list, at), has_data(&all, at));
            }
        }

        #[test]
        fn a_block_with_some_data_is_data(list in extents(), shift in 9u32..14) {
            let block = 1u64 << shift;
            let total: u64 = list.iter().map(|extent| extent.bytes).sum();
            let blocks = in_blocks(&list, block);
            let covered: u64 = blocks.iter().map(|extent| extent.bytes).sum();
            if total < block {
                prop_assert_eq!(blocks, [Extent { bytes: block, data: true }]);
                return Ok(());
            }
            prop_assert_eq!(covered, total / block * block);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].data != pair[1].data));
            for at in (0..covered).step_by(512) {
                let own = at / block * block..(at / block + 1) * block;
                let any = own.step_by(512).any(|at| has_data(&list, at) == Some(true));
                prop_assert_eq!(has_data(&blocks, at), Some(any), "at {}", at);
            }
        }
    }
}
