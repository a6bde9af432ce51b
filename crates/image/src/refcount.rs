//! Refcount table and blocks (specification: "Host cluster management").

use crate::FormatError;
use crate::geometry::Geometry;
use crate::header::REFCOUNT_TABLE_BYTES_MAX;

/// Largest refcount of a width of `1 << order` bits.
pub fn max(order: u32) -> u64 {
    if order >= 6 { u64::MAX } else { (1 << (1 << order)) - 1 }
}

/// Reads the refcount with number `index` of a block; 0 behind its end.
pub fn get(block: &[u8], order: u32, index: u64) -> u64 {
    let bits = 1u64 << order;
    let at = (index * bits / 8) as usize;
    match bits {
        1 | 2 | 4 => {
            // Bit 0 is the least significant one.
            let byte = block.get(at).copied().unwrap_or(0);
            u64::from(byte) >> (index * bits % 8) & max(order)
        }
        _ => {
            let field = block.get(at..at + (bits / 8) as usize).unwrap_or(&[]);
            field.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
        }
    }
}

/// Writes the refcount with number `index` of a block, which must have it; `value` fits its width.
pub fn set(block: &mut [u8], order: u32, index: u64, value: u64) {
    debug_assert!(value <= max(order));
    let bits = 1u64 << order;
    let at = (index * bits / 8) as usize;
    if bits < 8 {
        let shift = index * bits % 8;
        let mask = (max(order) << shift) as u8;
        block[at] = block[at] & !mask | (value << shift) as u8 & mask;
    } else {
        let bytes = (bits / 8) as usize;
        block[at..at + bytes].copy_from_slice(&value.to_be_bytes()[8 - bytes..]);
    }
}

/// The bytes of a block in which refcounts `first..=last` lie, as whole sectors.
pub fn sectors(order: u32, first: u64, last: u64) -> std::ops::Range<usize> {
    let byte = |index: u64| (index << order) / 8;
    let end = byte(last) + (1 << order >> 3).max(1);
    (byte(first) / 512 * 512) as usize..end.next_multiple_of(512) as usize
}

/// Where a refcount block is; `None`: all its refcounts are 0.
///
/// # Errors
/// Reserved bits, or a place where no block can be.
pub fn table_entry(geometry: &Geometry, index: u64, value: u64) -> Result<Option<u64>, FormatError> {
    let wrong = |rule| FormatError::RefcountTable { index, value, rule };
    if value == 0 {
        return Ok(None);
    }
    if value & 511 != 0 {
        return Err(wrong("bits 0 to 8 are reserved"));
    }
    if !value.is_multiple_of(geometry.cluster_bytes()) || value >= 1 << 63 {
        return Err(wrong("the block begins at a cluster, below 2^63"));
    }
    if geometry.is_metadata(value) {
        return Err(wrong("the block does not overlap the header, the L1 table or the refcount table"));
    }
    Ok(Some(value))
}

/// The refcount table and blocks of an image with `clusters` clusters besides them, in clusters: as few as count all of
/// it.
pub fn tables(cluster_bits: u32, order: u32, clusters: u64) -> (u64, u64) {
    let cluster = 1u64 << cluster_bits;
    let (mut table_clusters, mut blocks) = (1, 1);
    loop {
        let more = (clusters + table_clusters + blocks).div_ceil((cluster * 8) >> order);
        let longer = more.div_ceil(cluster / 8);
        if (longer, more) == (table_clusters, blocks) {
            return (table_clusters, blocks);
        }
        (table_clusters, blocks) = (longer, more);
    }
}

/// A refcount table that takes the place of one which is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Blocks in front of it, which describe all that is made.
    pub blocks: u64,
    /// Its clusters.
    pub table_clusters: u64,
}

/// The table that follows one of `table_clusters` clusters and reaches over block `number`, the first that there is
/// not. What is made begins where that block's clusters do, and ends with `beside` clusters for somebody else. `None`:
/// QEMU would not open an image with such a table.
pub fn growth(geometry: &Geometry, table_clusters: u64, number: u64, beside: u64) -> Option<Growth> {
    let (per_block, per_cluster) = (geometry.refcounts_in_block(), geometry.cluster_bytes() / 8);
    let most = REFCOUNT_TABLE_BYTES_MAX >> geometry.cluster_bits;
    let mut table_clusters = (table_clusters * 2).max((number + 1).div_ceil(per_cluster) + 1).min(most);
    let mut blocks = 1;
    loop {
        if blocks * per_block < blocks + table_clusters + beside {
            blocks += 1;
        } else if table_clusters * per_cluster >= number + blocks {
            return Some(Growth { blocks, table_clusters });
        } else if table_clusters < most {
            table_clusters += 1;
        } else {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn narrow_refcounts_begin_at_the_least_significant_bit() {
        let block = [0b1110_0100, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde];
        assert_eq!([0, 1, 2, 3].map(|index| get(&block, 1, index)), [0, 1, 2, 3]);
        assert_eq!([0, 2, 5, 7].map(|index| get(&block, 0, index)), [0, 1, 1, 1]);
        assert_eq!([2, 3].map(|index| get(&block, 2, index)), [2, 1]);
        assert_eq!(get(&block, 3, 1), 0x12);
        assert_eq!(get(&block, 4, 1), 0x3456);
        assert_eq!(get(&block, 5, 1), 0x789a_bcde);
        assert_eq!(get(&block, 6, 0), 0xe412_3456_789a_bcde);
        assert_eq!(get(&block, 6, 1), 0, "behind the end");
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(max)[..4], [1, 3, 15, 255]);
        assert_eq!((max(4), max(5), max(6)), (0xffff, 0xffff_ffff, u64::MAX));
    }

    #[test]
    fn sectors_hold_what_they_are_asked_for() {
        assert_eq!(sectors(4, 0, 255), 0..512);
        assert_eq!(sectors(4, 255, 256), 0..1024);
        assert_eq!(sectors(0, 4095, 4095), 0..512);
        assert_eq!(sectors(0, 4096, 4096), 512..1024);
        assert_eq!(sectors(6, 63, 64), 0..1024);
    }

    proptest! {
        /// Every width keeps what was written, and its neighbours.
        #[test]
        fn a_block_keeps_its_refcounts(order in 0u32..7, writes in prop::collection::vec((0u64..512, any::<u64>()), 1..50)) {
            let count = (512 * 8) >> order;
            let mut block = [0u8; 512];
            let mut oracle = vec![0u64; count];
            for (index, value) in writes {
                let (index, value) = (index % count as u64, value & max(order));
                set(&mut block, order, index, value);
                oracle[index as usize] = value;
            }
            let read: Vec<u64> = (0..count as u64).map(|index| get(&block, order, index)).collect();
            prop_assert_eq!(read, oracle);
        }
    }
}
