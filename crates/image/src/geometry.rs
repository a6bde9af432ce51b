//! Where things lie in an image: clusters, tables and their entries (specification: "Host cluster management", "Cluster mapping").

use crate::features;
use crate::header::Header;
use std::ops::Range;

/// Subclusters of a cluster (specification: "Extended L2 Entries").
pub const SUBCLUSTERS: u64 = 32;

/// The arithmetic of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// A cluster has two to the power of this many bytes.
    pub cluster_bits: u32,
    /// L2 entries have a second word, with subclusters.
    pub extended: bool,
    /// 2 or 3.
    pub version: u32,
    /// Guest clusters lie in another file, at their own offsets.
    pub data_file: bool,
    /// Entries of the L1 table.
    pub l1_entries: u64,
    /// Where that is.
    pub l1_offset: u64,
    /// A refcount has two to the power of this many bits.
    pub refcount_order: u32,
    /// What nothing else may overlap: the header's cluster, the L1 table and the refcount table.
    pub(crate) metadata: [Range<u64>; 3],
}

impl Geometry {
    /// Of the image with this header.
    pub fn new(header: &Header) -> Geometry {
        let cluster = header.cluster_bytes();
        let l1_bytes = (u64::from(header.l1_entries) * 8).next_multiple_of(cluster);
        let table_bytes = u64::from(header.refcount_table_clusters) << header.cluster_bits;
        let range = |from: u64, len: u64| from..from.saturating_add(len);
        Geometry {
            cluster_bits: header.cluster_bits,
            extended: header.has(features::EXTENDED_L2),
            version: header.version,
            data_file: header.has(features::DATA_FILE),
            l1_entries: header.l1_entries.into(),
            l1_offset: header.l1_offset,
            refcount_order: header.refcount_order,
            metadata: [
                range(0, cluster),
                range(header.l1_offset, l1_bytes),
                range(header.refcount_table_offset, table_bytes),
            ],
        }
    }

    /// Bytes of a cluster.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes that share one state: a subcluster, or a cluster where there are none.
    pub fn unit_bytes(&self) -> u64 {
        if self.extended { self.cluster_bytes() / SUBCLUSTERS } else { self.cluster_bytes() }
    }

    /// Words of an L2 entry.
    pub fn entry_words(&self) -> u64 {
        if self.extended { 2 } else { 1 }
    }

    /// Entries of an L2 table.
    pub fn l2_entries(&self) -> u64 {
        self.cluster_bytes() / 8 / self.entry_words()
    }

    /// Which L1 entry, and which entry of its L2 table, describe a guest offset.
    #[inline]
    pub fn place(&self, guest: u64) -> (u64, u64) {
        let cluster = guest >> self.cluster_bits;
        let bits = self.cluster_bits - if self.extended { 4 } else { 3 };
        (cluster >> bits, cluster & ((1 << bits) - 1))
    }

    /// The guest offset that an L1 entry and an entry of its table describe.
    pub fn guest(&self, l1: u64, index: u64) -> u64 {
        let bits = self.cluster_bits - if self.extended { 4 } else { 3 };
        ((l1 << bits) + index) << self.cluster_bits
    }

    /// Whether a cluster at this offset of the image would overlap the header, the L1 table or the refcount table.
    #[inline]
    pub fn is_metadata(&self, host: u64) -> bool {
        self.metadata.iter().any(|range| range.start < host + self.cluster_bytes() && host < range.end)
    }

    /// Refcounts in a refcount block.
    pub fn refcounts_in_block(&self) -> u64 {
        (self.cluster_bytes() * 8) >> self.refcount_order
    }
}
