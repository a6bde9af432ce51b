//! The newest version of each sector, out of any number of writes: a map of sector ranges that do not overlap.

use std::collections::BTreeMap;

/// Where a range of sectors has its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// They are zeroes.
    Zeroes,
    /// In a record that was read, from this byte of it on.
    Record {
        /// Which record.
        record: u32,
        /// Which of its bytes comes first.
        at: u32,
    },
}

impl Source {
    /// The source of what begins so many sectors later.
    fn skip(self, sectors: u64) -> Source {
        match self {
            Source::Zeroes => Source::Zeroes,
            // Within one record, a few MiB.
            Source::Record { record, at } => {
                Source::Record { record, at: at.saturating_add((sectors * crate::SECTOR_BYTES as u64) as u32) }
            }
        }
    }
}

/// A range of sectors, by its first one in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// The first sector behind it.
    end: u64,
    source: Source,
}

/// The map. An insertion adds two pieces at most.
#[derive(Debug, Default)]
pub(super) struct Index {
    pieces: BTreeMap<u64, Piece>,
}

impl Index {
    /// How many pieces there are.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The sectors from `first` up to `end` are what `source` says, whatever they were.
    pub(super) fn insert(&mut self, first: u64, end: u64, source: Source) {
        if first >= end {
            return;
        }
        if let Some((&start, before)) = self.pieces.range_mut(..first).next_back()
            && before.end > first
        {
            let rest = Piece { end: before.end, source: before.source.skip(end.saturating_sub(start)) };
            before.end = first;
            if rest.end > end {
                self.pieces.insert(end, rest);
            }
        }
        while let Some((&start, &covered)) = self.pieces.range(first..end).next() {
            self.pieces.remove(&start);
            if covered.end > end {
                self.pieces.insert(end, Piece { end: covered.end, source: covered.source.skip(end - start) });
            }
        }
        self.pieces.insert(first, Piece { end, source });
    }

    /// The pieces in the disk's order: first sector, the sector behind, source.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Source)> + '_ {
        self.pieces.iter().map(|(&first, piece)| (first, piece.end, piece.source))
    }

    pub(super) fn clear(&mut self) {
        self.pieces.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTORS: u64 = 64;

    proptest! {
        /// Against an array of sectors.
        #[test]
        fn the_last_write_of_each_sector_counts(
            writes in prop::collection::vec((0..SECTORS, 0..16u64, any::<bool>()), 0..80)
        ) {
            let mut index = Index::default();
            let mut model = vec![None; SECTORS as usize + 16];
            for (number, (first, count, zeroes)) in (0u32..).zip(writes) {
                let source = if zeroes { Source::Zeroes } else { Source::Record { record: number, at: 8192 } };
                let before = index.len();
                index.insert(first, first + count, source);
                prop_assert!(index.len() <= before + 2);
                for sector in 0..count {
                    model[(first + sector) as usize] = Some(source.skip(sector));
                }
            }
            let mut found = vec![None; model.len()];
            let mut last_end = 0;
            for (first, end, source) in index.iter() {
                prop_assert!(first >= last_end && first < end, "overlap or empty");
                last_end = end;
                for sector in first..end {
                    found[sector as usize] = Some(source.skip(sector - first));
                }
            }
            prop_assert_eq!(found, model);
        }
    }
}
