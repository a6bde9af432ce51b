//! A new image, as the bytes of its file: a header, and tables that describe them and nothing else.

use crate::extension::Extensions;
use crate::features::{self, Name, Word};
use crate::header::{Compression, Header, L1_BYTES_MAX, REFCOUNT_TABLE_BYTES_MAX};
use crate::refcount;

/// Smallest clusters with room for the names of features beside everything else.
const NAMES_CLUSTER_BITS: u32 = 12;

/// What an image is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// 2 or 3.
    pub version: u32,
    /// A cluster has two to the power of this many bytes: 9 to 21.
    pub cluster_bits: u32,
    /// A refcount has two to the power of this many bits: 0 to 6.
    pub refcount_order: u32,
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    /// Incompatible features.
    pub incompatible: u64,
    /// Autoclear features.
    pub autoclear: u64,
    /// Name and format of the backing file.
    pub backing: Option<(Vec<u8>, &'static str)>,
    /// Name of the file that has the guest's clusters.
    pub data_file: Option<Vec<u8>>,
    /// Of compressed clusters.
    pub compression: Compression,
}

impl Default for New {
    fn default() -> New {
        New {
            version: 3,
            cluster_bits: 16,
            refcount_order: 4,
            size_bytes: 1 << 20,
            incompatible: 0,
            autoclear: 0,
            backing: None,
            data_file: None,
            compression: Compression::Zlib,
        }
    }
}

impl New {
    /// The bytes of an image in which nothing is allocated.
    ///
    /// # Errors
    /// What cannot be, in words.
    pub fn image(&self) -> Result<Vec<u8>, String> {
        let cluster = 1u64 << self.cluster_bits;
        let mut header = self.header();
        let covers = header.l2_covers_bytes();
        let l1_entries = self.size_bytes.div_ceil(covers);
        if l1_entries * 8 > L1_BYTES_MAX {
            let most = L1_BYTES_MAX / 8 * covers;
            return Err(format!("with clusters of {cluster} bytes a disk has at most {most} bytes: use larger ones"));
        }
        let l1_clusters = (l1_entries * 8).div_ceil(cluster);
        let per_block = (cluster * 8) >> self.refcount_order;
        let (table_clusters, blocks) = refcount::tables(self.cluster_bits, self.refcount_order, 1 + l1_clusters);
        let used = 1 + table_clusters + blocks + l1_clusters;
        if table_clusters > REFCOUNT_TABLE_BYTES_MAX >> self.cluster_bits {
            return Err("its refcount table would be too long: use larger clusters, or narrower refcounts".to_owned());
        }
        header.l1_entries = l1_entries as u32;
        header.refcount_table_offset = cluster;
        header.refcount_table_clusters = table_clusters as u32;
        header.l1_offset = (1 + table_clusters + blocks) * cluster;
        let first = header.encode();
        if first.len() as u64 > cluster {
            return Err(format!("its header has {} bytes, more than a cluster: use larger clusters", first.len()));
        }
        let mut out = vec![0; (used * cluster) as usize];
        out[..first.len()].copy_from_slice(&first);
        for block in 0..blocks {
            let (at, place) = ((cluster + block * 8) as usize, (1 + table_clusters + block) * cluster);
            out[at..at + 8].copy_from_slice(&place.to_be_bytes());
            let bytes = &mut out[place as usize..][..cluster as usize];
            for index in 0..used.saturating_sub(block * per_block).min(per_block) {
                refcount::set(bytes, self.refcount_order, index, 1);
            }
        }
        Ok(out)
    }

    fn header(&self) -> Header {
        let with_names = self.version >= 3 && self.cluster_bits >= NAMES_CLUSTER_BITS;
        Header {
            version: self.version,
            backing_file: self.backing.as_ref().map(|(name, _)| name.clone()),
            cluster_bits: self.cluster_bits,
            size_bytes: self.size_bytes,
            l1_entries: 0,
            l1_offset: 0,
            refcount_table_offset: 0,
            refcount_table_clusters: 0,
            snapshots: 0,
            snapshots_offset: 0,
            incompatible: self.incompatible
                | if self.data_file.is_some() { features::DATA_FILE } else { 0 }
                | if self.compression == Compression::Zstd { features::COMPRESSION } else { 0 },
            compatible: 0,
            autoclear: self.autoclear,
            refcount_order: self.refcount_order,
            header_bytes: if self.version < 3 { 72 } else { 112 },
            compression: self.compression,
            extensions: Extensions {
                backing_format: self.backing.as_ref().map(|(_, format)| (*format).to_owned()),
                data_file: self.data_file.clone(),
                feature_names: if with_names { names() } else { Vec::new() },
                ..Extensions::default()
            },
        }
    }
}

/// Features by which older programs may refuse or change an image, for their messages.
fn names() -> Vec<Name> {
    let all = [
        (Word::Incompatible, 0, "dirty bit"),
        (Word::Incompatible, 1, "corrupt bit"),
        (Word::Incompatible, 2, "external data file"),
        (Word::Incompatible, 3, "compression type"),
        (Word::Incompatible, 4, "extended L2 entries"),
        (Word::Compatible, 0, "lazy refcounts"),
        (Word::Autoclear, 0, "bitmaps"),
        (Word::Autoclear, 1, "raw external data"),
    ];
    all.map(|(word, bit, name)| Name { word, bit, name: name.to_owned() }).into()
}
