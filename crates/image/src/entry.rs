//! L1 and L2 entries (specification: "Cluster mapping", "Extended L2 Entries").

use crate::FormatError;
use crate::geometry::{Geometry, SUBCLUSTERS};

/// Bit 63 of an L1 or L2 entry: the refcount of what it names is exactly one, so it may be written in place.
pub const COPIED: u64 = 1 << 63;
/// Bit 62 of an L2 entry: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// Bit 0 of a standard L2 entry of version 3: the cluster reads as zeroes.
const ZERO: u64 = 1;
/// Bits 9 to 55: an offset in the image.
pub(crate) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Offsets end here.
const OFFSET_END: u64 = 1 << 56;

/// Where an L2 table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Place {
    /// First byte in the image.
    pub offset: u64,
    /// Nothing else uses it: it may be written in place.
    pub copied: bool,
}

/// Reads an L1 entry; `None`: there is no L2 table.
///
/// # Errors
/// Reserved bits, or a place where no table can be.
pub fn l1(geometry: &Geometry, index: u64, value: u64) -> Result<Option<L2Place>, FormatError> {
    let wrong = |rule| FormatError::L1 { index, value, rule };
    if value & !(OFFSET | COPIED) != 0 {
        return Err(wrong("bits 0 to 8 and 56 to 62 are reserved"));
    }
    let offset = value & OFFSET;
    if offset == 0 {
        return Ok(None);
    }
    if !offset.is_multiple_of(geometry.cluster_bytes()) {
        return Err(wrong("the table begins at a cluster"));
    }
    if geometry.is_metadata(offset) {
        return Err(wrong("the table does not overlap the header, the L1 table or the refcount table"));
    }
    Ok(Some(L2Place { offset, copied: value & COPIED != 0 }))
}

/// The data of a compressed cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// First byte in the image.
    pub host: u64,
    /// Bytes there, of which the last may not be used.
    pub len: u64,
}

/// What a range inside a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It reads as the backing file does.
    Unallocated,
    /// It reads as zeroes.
    Zero,
    /// It lies at this offset.
    Data(u64),
}

/// What an L2 entry says. A cluster without subclusters is one whose subclusters are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// Its data is compressed.
    Compressed(Compressed),
    /// All others.
    Plain {
        /// Where it lies, or where there is room for it.
        host: Option<u64>,
        /// Nothing else uses that: it may be written in place.
        copied: bool,
        /// One bit for each subcluster that lies there.
        allocated: u32,
        /// One bit for each subcluster that reads as zeroes.
        zero: u32,
    },
}

/// Nothing is there.
pub const NOTHING: Cluster = Cluster::Plain { host: None, copied: false, allocated: 0, zero: 0 };

/// Reads the L2 entry of the cluster at guest offset `guest`; `bitmap` is its second word, if entries have one.
///
/// # Errors
/// Reserved bits, a place where no cluster can be, or subclusters that contradict themselves.
#[inline]
pub fn l2(geometry: &Geometry, guest: u64, value: u64, bitmap: u64) -> Result<Cluster, FormatError> {
    let wrong = |rule| FormatError::L2 { guest, value, rule };
    if value & COMPRESSED != 0 {
        return compressed(geometry, value, wrong).map(Cluster::Compressed);
    }
    let flag = if geometry.extended { 0 } else { ZERO };
    if value & !(OFFSET | COPIED | flag) != 0 {
        return Err(wrong("bits 1 to 8 and 56 to 61 are reserved, and bit 0 with extended L2 entries"));
    }
    let (offset, copied) = (value & OFFSET, value & COPIED != 0);
    if offset & (geometry.cluster_bytes() - 1) != 0 {
        return Err(wrong("the cluster begins at a multiple of the cluster size"));
    }
    let host = if geometry.data_file {
        let there = offset != 0 || copied;
        if there && offset != guest {
            return Err(wrong("in an external data file a cluster lies at its guest offset"));
        }
        there.then_some(offset)
    } else if offset == 0 {
        None
    } else if geometry.is_metadata(offset) {
        return Err(wrong("the cluster does not overlap the header, the L1 table or the refcount table"));
    } else {
        Some(offset)
    };
    let (allocated, zero) = if geometry.extended {
        (bitmap as u32, (bitmap >> 32) as u32)
    } else if value & ZERO != 0 {
        if geometry.version < 3 {
            return Err(wrong("version 2 has no zero clusters"));
        }
        (0, !0)
    } else {
        (if host.is_some() { !0 } else { 0 }, 0)
    };
    if allocated & zero != 0 {
        return Err(wrong("a subcluster is allocated or reads as zeroes, not both"));
    }
    if allocated != 0 && host.is_none() {
        return Err(wrong("subclusters are allocated, and there is no cluster"));
    }
    Ok(Cluster::Plain { host, copied, allocated, zero })
}

fn compressed(
    geometry: &Geometry,
    value: u64,
    wrong: impl Fn(&'static str) -> FormatError,
) -> Result<Compressed, FormatError> {
    if geometry.data_file {
        return Err(wrong("with an external data file no cluster is compressed"));
    }
    if value & COPIED != 0 {
        return Err(wrong("bit 63 of a compressed cluster is 0"));
    }
    let offset_bits = 62 - (geometry.cluster_bits - 8);
    let host = value & ((1 << offset_bits) - 1);
    let sectors = (value & !COMPRESSED) >> offset_bits;
    if host >= OFFSET_END {
        return Err(wrong("bits 56 and above of the offset of compressed data are 0"));
    }
    if host < geometry.cluster_bytes() {
        return Err(wrong("compressed data does not overlap the header"));
    }
    Ok(Compressed { host, len: (sectors + 1) * 512 - host % 512 })
}

impl Cluster {
    /// What is at a byte of a plain cluster, and for how many bytes from there on; never beyond the cluster.
    #[inline]
    pub fn state(&self, geometry: &Geometry, inside: u64) -> Option<(State, u64)> {
        let Cluster::Plain { host, allocated, zero, .. } = *self else { return None };
        let unit_bits = geometry.cluster_bits - SUBCLUSTERS.ilog2();
        let first = (inside >> unit_bits) as u32;
        let (allocated, zero) = (allocated >> first, zero >> first);
        let (state, others) = if allocated & 1 != 0 {
            (State::Data(host? + inside), !allocated)
        } else if zero & 1 != 0 {
            (State::Zero, !zero)
        } else {
            (State::Unallocated, allocated | zero)
        };
        // Shifted in are zeroes, so that a run of set bits ends at the last subcluster by itself.
        let units = others.trailing_zeros().min(SUBCLUSTERS as u32 - first);
        Some((state, (u64::from(first + units) << unit_bits) - inside))
    }

    /// The words of a cluster's entry. `None`: compressed data lies too far behind.
    pub fn encode(&self, geometry: &Geometry) -> Option<(u64, u64)> {
        let (host, copied, allocated, zero) = match *self {
            Cluster::Plain { host, copied, allocated, zero } => (host, copied, allocated, zero),
            Cluster::Compressed(Compressed { host, len }) => {
                let offset_bits = 62 - (geometry.cluster_bits - 8);
                let more_sectors = (host % 512 + len).div_ceil(512).checked_sub(1)?;
                let fits = host < OFFSET_END && host >> offset_bits == 0;
                return fits.then_some((COMPRESSED | more_sectors << offset_bits | host, 0));
            }
        };
        let word = host.unwrap_or(0) | if copied { COPIED } else { 0 };
        if geometry.extended {
            return Some((word, u64::from(zero) << 32 | u64::from(allocated)));
        }
        Some((word | if zero != 0 { ZERO } else { 0 }, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features;
    use crate::header::Header;
    use proptest::prelude::*;

    fn geometry(cluster_bits: u32, incompatible: u64) -> Geometry {
        Geometry::new(&Header {
            cluster_bits,
            incompatible,
            l1_offset: 3 << cluster_bits,
            refcount_table_offset: 1 << cluster_bits,
            ..crate::header::tests_header()
        })
    }

    #[test]
    fn standard_entries() {
        let g = geometry(16, 0);
        let plain = |host, copied, allocated, zero| Ok(Cluster::Plain { host, copied, allocated, zero });
        assert_eq!(l2(&g, 0, 0, 0), Ok(NOTHING));
        assert_eq!(l2(&g, 0, COPIED | 0x5_0000, 0), plain(Some(0x5_0000), true, !0, 0));
        assert_eq!(l2(&g, 0, 0x5_0000, 0), plain(Some(0x5_0000), false, !0, 0));
        assert_eq!(l2(&g, 0, 1, 0), plain(None, false, 0, !0));
        assert_eq!(l2(&g, 0, COPIED | 0x5_0001, 0), plain(Some(0x5_0000), true, 0, !0));
        for value in [2, 1 << 56, 1 << 61, 0x5_0200, 0x1_0000, 0x3_0000] {
            l2(&g, 0, value, 0).unwrap_err();
        }
        assert!(l2(&Geometry { version: 2, ..g.clone() }, 0, 1, 0).is_err());
        let error = l2(&g, 0x70_0000, 0x5_0200, 0).unwrap_err().to_string();
        assert!(error.starts_with("the L2 entry of guest offset 0x700000 is 0x50200: the cluster begins"), "{error}");
    }

    #[test]
    fn compressed_entries() {
        // 64 KiB: 54 bits of offset, 8 of sectors.
        let g = geometry(16, 0);
        let value = COMPRESSED | 3 << 54 | 0x5_0123;
        assert_eq!(l2(&g, 0, value, 0), Ok(Cluster::Compressed(Compressed { host: 0x5_0123, len: 4 * 512 - 0x123 })));
        assert_eq!(l2(&g, 0, value, 0).unwrap().encode(&g), Some((value, 0)));
        assert!(l2(&g, 0, value | COPIED, 0).is_err());
        assert!(l2(&geometry(16, features::DATA_FILE), 0, value, 0).is_err());
        // 512 bytes: 61 bits of offset, of which the upper ones must be 0; no more than one sector more.
        let g = geometry(9, 0);
        assert!(l2(&g, 0, COMPRESSED | 1 << 56, 0).is_err());
        assert_eq!(
            l2(&g, 0, COMPRESSED | 1 << 61 | 0x5_0001, 0),
            Ok(Cluster::Compressed(Compressed { host: 0x5_0001, len: 1023 }))
        );
    }

    #[test]
    fn in_a_data_file_clusters_lie_where_they_are() {
        let g = geometry(16, features::DATA_FILE);
        assert!(matches!(l2(&g, 0, COPIED, 0), Ok(Cluster::Plain { host: Some(0), copied: true, .. })));
        assert!(matches!(l2(&g, 0x1_0000, COPIED | 0x1_0000, 0), Ok(Cluster::Plain { host: Some(0x1_0000), .. })));
        assert!(l2(&g, 0x1_0000, COPIED | 0x2_0000, 0).is_err());
        assert_eq!(l2(&g, 0, 0, 0), Ok(NOTHING));
    }

    #[test]
    fn subclusters_contradict_neither_themselves_nor_the_entry() {
        let g = geometry(16, features::EXTENDED_L2);
        assert!(l2(&g, 0, COPIED | 0x5_0000, 1 << 32 | 1).is_err());
        assert!(l2(&g, 0, 0, 1).is_err());
        assert!(l2(&g, 0, 1, 0).is_err());
        assert!(l2(&g, 0, 0x5_0000, 0).is_ok());
    }

    #[test]
    fn tables_lie_at_clusters() {
        let g = geometry(16, 0);
        assert_eq!(l1(&g, 0, 0), Ok(None));
        assert_eq!(l1(&g, 0, COPIED | 0x5_0000), Ok(Some(L2Place { offset: 0x5_0000, copied: true })));
        for value in [1, 1 << 62, 0x5_0200, 0x3_0000] {
            l1(&g, 7, value).unwrap_err();
        }
    }

    proptest! {
        /// What states say of a cluster is what its bits say, byte by byte; and an entry is read as it is written.
        #[test]
        fn states_are_those_of_the_bits(bits in any::<u32>(), zeroes in any::<u32>(), inside in 0u64..65_536) {
            let g = geometry(16, features::EXTENDED_L2);
            let (allocated, zero) = (bits & !zeroes, zeroes);
            let cluster = Cluster::Plain { host: Some(0x5_0000), copied: true, allocated, zero };
            let (word, bitmap) = cluster.encode(&g).unwrap();
            prop_assert_eq!(l2(&g, 0, word, bitmap), Ok(cluster));
            let of = |at: u64| match (allocated >> (at / 2048) & 1, zero >> (at / 2048) & 1) {
                (1, _) => 2,
                (_, 1) => 1,
                _ => 0,
            };
            let (state, len) = cluster.state(&g, inside).unwrap();
            prop_assert!(len > 0 && inside + len <= 65_536);
            let kind = match state { State::Unallocated => 0, State::Zero => 1, State::Data(host) => { prop_assert_eq!(host, 0x5_0000 + inside); 2 } };
            prop_assert!((inside..inside + len).all(|at| of(at) == kind));
            prop_assert!(inside + len == 65_536 || of(inside + len) != kind);
        }

        /// Any word is an entry or an error.
        #[test]
        fn any_entry_is_read_or_refused(value in any::<u64>(), bitmap in any::<u64>(), bits in 14u32..22, features in 0u64..32) {
            let g = geometry(bits, features & (features::EXTENDED_L2 | features::DATA_FILE));
            if let Ok(cluster) = l2(&g, 0x1234 << bits, value, bitmap)
                && let Some((_, len)) = cluster.state(&g, (1 << bits) - 1) {
                prop_assert_eq!(len, 1);
            }
            let _ = l1(&g, 3, value);
        }
    }
}
