//! Images for tests: made, and examined, from nothing but the pure parts. An image is the bytes of its file.

use crate::entry::{self, Cluster};
use crate::extension::Extensions;
use crate::geometry::Geometry;
use crate::header::{Compression, Header};
use crate::{features, refcount};
use std::collections::BTreeMap;

/// What an image is to be.
#[derive(Clone, Debug)]
pub(crate) struct New {
    pub(crate) version: u32,
    pub(crate) cluster_bits: u32,
    pub(crate) refcount_order: u32,
    pub(crate) size_bytes: u64,
    pub(crate) incompatible: u64,
    pub(crate) autoclear: u64,
    /// Name and format.
    pub(crate) backing: Option<(Vec<u8>, &'static str)>,
    /// Name of the file that has the guest's clusters.
    pub(crate) data_file: Option<Vec<u8>>,
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
        }
    }
}

impl New {
    /// The bytes of an image in which nothing is allocated.
    pub(crate) fn image(&self) -> Vec<u8> {
        let cluster = 1u64 << self.cluster_bits;
        let mut header = Header {
            version: self.version,
            backing_file: self.backing.as_ref().map(|(name, _)| name.clone()),
            cluster_bits: self.cluster_bits,
            size_bytes: self.size_bytes,
            l1_entries: 0,
            l1_offset: 0,
            refcount_table_offset: cluster,
            refcount_table_clusters: 1,
            snapshots: 0,
            snapshots_offset: 0,
            incompatible: self.incompatible | self.data_file.as_ref().map_or(0, |_| features::DATA_FILE),
            compatible: 0,
            autoclear: self.autoclear,
            refcount_order: self.refcount_order,
            header_bytes: if self.version < 3 { 72 } else { 112 },
            compression: Compression::Zlib,
            extensions: Extensions {
                backing_format: self.backing.as_ref().map(|(_, format)| (*format).to_owned()),
                data_file: self.data_file.clone(),
                ..Extensions::default()
            },
        };
        header.l1_entries = self.size_bytes.div_ceil(header.l2_covers_bytes()) as u32;
        let l1_clusters = (u64::from(header.l1_entries) * 8).div_ceil(cluster);
        let per_block = (cluster * 8) >> self.refcount_order;
        let mut blocks = 1;
        while blocks * per_block < 2 + blocks + l1_clusters {
            blocks += 1;
        }
        assert!(blocks * 8 <= cluster, "one cluster of refcount table is enough for a test");
        header.l1_offset = (2 + blocks) * cluster;
        let used = 2 + blocks + l1_clusters;
        let mut out = vec![0; (used * cluster) as usize];
        let first = header.encode();
        out[..first.len()].copy_from_slice(&first);
        for block in 0..blocks {
            let (at, place) = ((cluster + block * 8) as usize, (2 + block) * cluster);
            out[at..at + 8].copy_from_slice(&place.to_be_bytes());
            let bytes = &mut out[place as usize..][..cluster as usize];
            for index in 0..used.saturating_sub(block * per_block).min(per_block) {
                refcount::set(bytes, self.refcount_order, index, 1);
            }
        }
        out
    }
}

/// What an examination found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// What would lose data.
    pub(crate) corruptions: Vec<String>,
    /// Clusters that are counted and not used.
    pub(crate) leaks: u64,
}

fn word(image: &[u8], at: u64) -> u64 {
    let field = image.get(at as usize..at as usize + 8);
    field.map_or(0, |field| u64::from_be_bytes(field.try_into().unwrap()))
}

/// Compares what is named with what is counted. Of an image without snapshots.
pub(crate) fn examine(image: &[u8]) -> Findings {
    let header = Header::parse(image).unwrap();
    let geometry = Geometry::new(&header);
    let (bits, cluster) = (geometry.cluster_bits, geometry.cluster_bytes());
    let mut findings = Findings::default();
    let mut named: BTreeMap<u64, u64> = BTreeMap::new();
    let mut name = |from: u64, len: u64| {
        (from >> bits..=(from + len - 1) >> bits).for_each(|at| *named.entry(at).or_default() += 1);
    };
    name(0, cluster);
    let table_bytes = u64::from(header.refcount_table_clusters) << bits;
    name(header.refcount_table_offset, table_bytes);
    name(header.l1_offset, u64::from(header.l1_entries) * 8);
    let mut wrong = |what: String| findings.corruptions.push(what);
    for l1 in 0..geometry.l1_entries {
        let table = match entry::l1(&geometry, l1, word(image, header.l1_offset + l1 * 8)) {
            Ok(None) => continue,
            Ok(Some(table)) => table,
            Err(error) => {
                wrong(error.to_string());
                continue;
            }
        };
        name(table.offset, cluster);
        if table.offset + cluster > image.len() as u64 {
            wrong(format!("the table of L1 entry {l1} lies behind the end"));
        }
        for index in 0..geometry.l2_entries() {
            let at = table.offset + index * geometry.entry_words() * 8;
            let bitmap = if geometry.extended { word(image, at + 8) } else { 0 };
            match entry::l2(&geometry, geometry.guest(l1, index), word(image, at), bitmap) {
                Ok(Cluster::Compressed(at)) => name(at.host, at.len),
                Ok(Cluster::Plain { host: Some(host), .. }) if !geometry.data_file => {
                    name(host, cluster);
                    if host + cluster > image.len() as u64 {
                        wrong(format!("a cluster at {host:#x} lies behind the end"));
                    }
                }
                Ok(Cluster::Plain { .. }) => {}
                Err(error) => wrong(error.to_string()),
            }
        }
    }
    let blocks: Vec<(u64, u64)> = (0..table_bytes / 8)
        .map(|number| (number, word(image, header.refcount_table_offset + number * 8)))
        .filter(|(_, block)| *block != 0)
        .collect();
    blocks.iter().for_each(|(_, block)| name(*block, cluster));
    for (number, block) in blocks {
        let Some(bytes) = image.get(block as usize..(block + cluster) as usize) else {
            wrong(format!("refcount block {number} lies behind the end"));
            continue;
        };
        for index in 0..geometry.refcounts_in_block() {
            let at = number * geometry.refcounts_in_block() + index;
            let (counted, used) = (refcount::get(bytes, header.refcount_order, index), named.remove(&at).unwrap_or(0));
            if counted < used {
                wrong(format!("cluster {at:#x} is used {used} times and counted {counted} times"));
            }
            findings.leaks += counted.saturating_sub(used);
        }
    }
    for at in named.keys() {
        findings.corruptions.push(format!("cluster {at:#x} is used and has no refcount block"));
    }
    findings
}

#[test]
fn what_is_made_is_sound() {
    for cluster_bits in [9, 12, 16, 21] {
        for refcount_order in 0..7 {
            let new = New { cluster_bits, refcount_order, ..New::default() };
            assert_eq!(examine(&new.image()), Findings::default(), "{new:?}");
        }
    }
}
