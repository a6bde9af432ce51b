//! The two grains of a volume: the block, which is cached, logged and written back, and the sector, which a guest writes.

use std::fmt;

/// Bytes of a block: what the cache keeps versions of and what a log record carries.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes of a sector: the smallest write of a guest.
pub const SECTOR_BYTES: usize = 512;

/// Sectors of a block.
pub const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// A set of a block's eight sectors: bit n stands for the bytes from n * 512 up to (n + 1) * 512.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SectorMask(pub u8);

impl SectorMask {
    /// No sector.
    pub const NONE: SectorMask = SectorMask(0);
    /// The whole block.
    pub const ALL: SectorMask = SectorMask(0xff);

    /// The `count` sectors from `first` on, as far as they lie in the block.
    pub const fn span(first: usize, count: usize) -> SectorMask {
        if first >= SECTORS_PER_BLOCK || count == 0 {
            return SectorMask::NONE;
        }
        let room = SECTORS_PER_BLOCK - first;
        let count = if count < room { count } else { room };
        // At most 0xff << 7: fits 16 bits, and what leaves the block is cut off.
        SectorMask((((1u16 << count) - 1) << first) as u8)
    }

    /// Whether no sector is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the whole block is in the set.
    pub const fn is_all(self) -> bool {
        self.0 == 0xff
    }

    /// How many sectors are in the set: 0 to 8.
    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether `sector` (0 to 7) is in the set.
    pub const fn contains(self, sector: usize) -> bool {
        sector < SECTORS_PER_BLOCK && self.0 & (1 << sector) != 0
    }

    /// What is in either set.
    #[must_use]
    pub const fn with(self, other: SectorMask) -> SectorMask {
        SectorMask(self.0 | other.0)
    }

    /// What is in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: SectorMask) -> SectorMask {
        SectorMask(self.0 & !other.0)
    }

    /// The set as runs of neighbours, ascending: (first sector, sectors).
    pub fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first).trailing_ones() as usize;
            rest &= !SectorMask::span(first, count).0;
            Some((first, count))
        })
    }
}

impl fmt::Debug for SectorMask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SectorMask({:#010b})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_at_the_end_of_the_block() {
        assert_eq!(SectorMask::span(0, 8), SectorMask::ALL);
        assert_eq!(SectorMask::span(0, 1), SectorMask(1));
        assert_eq!(SectorMask::span(7, 1), SectorMask(0x80));
        assert_eq!(SectorMask::span(6, 9), SectorMask(0xc0));
        assert_eq!(SectorMask::span(2, usize::MAX), SectorMask(0xfc));
        assert_eq!(SectorMask::span(8, 1), SectorMask::NONE);
        assert_eq!(SectorMask::span(3, 0), SectorMask::NONE);
    }

    #[test]
    fn runs_are_the_set() {
        for bits in 0..=u8::MAX {
            let mask = SectorMask(bits);
            let mut together = SectorMask::NONE;
            let mut last_end = None;
            for (first, count) in mask.runs() {
                assert!(count > 0);
                // Neighbours would be one run.
                assert!(last_end.is_none_or(|end| first > end), "{mask:?}");
                last_end = Some(first + count);
                let run = SectorMask::span(first, count);
                assert!(together.without(run) == together, "{mask:?}: listed twice");
                together = together.with(run);
            }
            assert_eq!(together, mask);
            assert_eq!((0..9).filter(|&sector| mask.contains(sector)).count(), mask.count());
        }
    }
}
