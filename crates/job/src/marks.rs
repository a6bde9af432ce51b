//! A bit for each cluster of a disk, which any thread reads and changes.

use crate::sync::AtomicU64;
use std::ops::Range;
use std::sync::atomic::Ordering;
use storage::copy::GRAIN_BYTES;

/// What has a mark, in bytes. That of zeroes, so that a chunk's zero parts are whole clusters.
pub(crate) const CLUSTER_BYTES: u64 = GRAIN_BYTES as u64;
const WORD: u64 = u64::BITS as u64;

/// See the module. Clusters that the disk does not have are never marked.
///
/// A look that finds a cluster unmarked (Acquire) comes after everything that whoever unmarked it (Release) had done before: a guest's
/// write that finds the guard lifted comes after the read that lifted it. Nothing else is ordered here; who needs more has a fence.
pub(crate) struct Marks {
    words: Box<[AtomicU64]>,
    size_bytes: u64,
}

impl Marks {
    /// Those of a disk, all or none of them set.
    pub(crate) fn new(size_bytes: u64, set: bool) -> Marks {
        let words = size_bytes.div_ceil(CLUSTER_BYTES).div_ceil(WORD);
        let marks = Marks { words: (0..words).map(|_| AtomicU64::new(0)).collect(), size_bytes };
        if set {
            marks.set(marks.all());
        }
        marks
    }

    /// Of the disk.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// All clusters.
    pub(crate) fn all(&self) -> Range<u64> {
        0..self.size_bytes.div_ceil(CLUSTER_BYTES)
    }

    /// The clusters of so many bytes from `offset` on; what is behind the end has none.
    pub(crate) fn clusters(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len).min(self.size_bytes);
        if offset >= end { 0..0 } else { offset / CLUSTER_BYTES..end.div_ceil(CLUSTER_BYTES) }
    }

    /// The bytes of some clusters.
    pub(crate) fn bytes(&self, clusters: &Range<u64>) -> Range<u64> {
        let end = (clusters.end * CLUSTER_BYTES).min(self.size_bytes);
        (clusters.start * CLUSTER_BYTES).min(end)..end
    }

    /// The words of a range, each with its number and the range's bits in it.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64, &AtomicU64)> {
        let Range { start, end } = range.start..range.end.min(self.all().end);
        let words = if start < end { start / WORD..end.div_ceil(WORD) } else { 0..0 };
        words.filter_map(move |number| {
            let first = start.saturating_sub(number * WORD);
            let rest = ((number + 1) * WORD).saturating_sub(end);
            let mask = u64::MAX << first & u64::MAX >> rest;
            Some((number, mask, self.words.get(number as usize)?))
        })
    }

    /// The first cluster of `range` that is marked.
    pub(crate) fn first(&self, range: &Range<u64>) -> Option<u64> {
        self.parts(range).find_map(|(number, mask, word)| {
            let bits = word.load(Ordering::Acquire) & mask;
            (bits != 0).then(|| number * WORD + u64::from(bits.trailing_zeros()))
        })
    }

    /// The first clusters of `range` that are marked, as far as there is no gap between them.
    pub(crate) fn run(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let start = self.first(range)?;
        let gap = self.parts(&(start..range.end)).find_map(|(number, mask, word)| {
            let bits = !word.load(Ordering::Acquire) & mask;
            (bits != 0).then(|| number * WORD + u64::from(bits.trailing_zeros()))
        });
        // The cluster that was marked is in the run even if another thread has changed its mind since.
        Some(start..gap.unwrap_or(range.end.min(self.all().end)).max(start + 1))
    }

    /// The same marks, apart from these.
    pub(crate) fn again(&self) -> Marks {
        let words = self.words.iter().map(|word| AtomicU64::new(word.load(Ordering::Acquire))).collect();
        Marks { words, size_bytes: self.size_bytes }
    }

    /// Bytes of those that are marked.
    pub(crate) fn marked_bytes(&self) -> u64 {
        let last = self.all().end.saturating_sub(1)..self.all().end;
        let short = last.end * CLUSTER_BYTES - self.size_bytes.min(last.end * CLUSTER_BYTES);
        (self.count() * CLUSTER_BYTES).saturating_sub(if self.first(&last).is_some() { short } else { 0 })
    }

    /// How many are marked.
    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// Marks a range. True where that changed something. Marks that are there are only looked at: many threads that write to
    /// one place do not fight over its word.
    pub(crate) fn set(&self, range: Range<u64>) -> bool {
        let mut has_changed = false;
        for (_, mask, word) in self.parts(&range) {
            if word.load(Ordering::Relaxed) & mask != mask {
                has_changed |= word.fetch_or(mask, Ordering::AcqRel) & mask != mask;
            }
        }
        has_changed
    }

    /// Takes the marks of a range away.
    pub(crate) fn clear(&self, range: Range<u64>) {
        for (_, mask, word) in self.parts(&range) {
            if word.load(Ordering::Relaxed) & mask != 0 {
                word.fetch_and(!mask, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(clusters: usize) -> impl Strategy<Value = Range<u64>> {
        (0..=clusters as u64 + 70, 0..=200u64).prop_map(|(start, len)| start..start + len)
    }

    proptest! {
        #[test]
        fn marks_are_a_vector_of_bits(
            bytes in 0u64..300 * CLUSTER_BYTES,
            full in any::<bool>(),
            changes in proptest::collection::vec((any::<bool>(), range(300)), 0..20),
            looks in proptest::collection::vec(range(300), 1..20),
        ) {
            let marks = Marks::new(bytes, full);
            let mut model = vec![full; bytes.div_ceil(CLUSTER_BYTES) as usize];
            for (set, range) in changes {
                let mut changed = false;
                for bit in model.iter_mut().enumerate().filter(|(n, _)| range.contains(&(*n as u64))).map(|(_, b)| b) {
                    changed |= *bit != set;
                    *bit = set;
                }
                if set {
                    prop_assert_eq!(marks.set(range), changed);
                } else {
                    marks.clear(range);
                }
            }
            prop_assert_eq!(marks.count(), model.iter().filter(|bit| **bit).count() as u64);
            for look in looks {
                let is_set = |n: &u64| model.get(*n as usize) == Some(&true);
                let first = look.clone().find(is_set);
                prop_assert_eq!(marks.first(&look), first);
                let run = first.map(|first| first..(first..look.end).find(|n| !is_set(n)).unwrap_or(look.end));
                prop_assert_eq!(marks.run(&look), run);
            }
            let bytes = |n: usize| bytes.min((n as u64 + 1) * CLUSTER_BYTES) - n as u64 * CLUSTER_BYTES;
            let marked: u64 = model.iter().enumerate().filter(|(_, bit)| **bit).map(|(n, _)| bytes(n)).sum();
            prop_assert_eq!((marks.marked_bytes(), marks.again().marked_bytes()), (marked, marked));
        }

        #[test]
        fn clusters_have_the_bytes_of_the_disk(sectors in 0u64..1000, offset in 0u64..1100, len in 0u64..1100) {
            let marks = Marks::new(sectors * 512, false);
            let clusters = marks.clusters(offset * 512, len * 512);
            let touched: Vec<u64> = (0..sectors).filter(|at| (offset..offset + len).contains(at)).collect();
            match (touched.first(), touched.last()) {
                (Some(first), Some(last)) => {
                    prop_assert_eq!(&clusters, &(first / 128..last / 128 + 1));
                    let bytes = marks.bytes(&clusters);
                    prop_assert_eq!(bytes.start, first / 128 * CLUSTER_BYTES);
                    prop_assert_eq!(bytes.end, ((last / 128 + 1) * CLUSTER_BYTES).min(sectors * 512));
                }
                _ => prop_assert!(clusters.is_empty()),
            }
        }
    }
}
