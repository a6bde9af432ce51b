//! How many bytes a new qcow2 image needs.
//!
//! QEMU's figures are those of an image in which every table has its largest size, whatever is in it. Ours are these,
//! or what a conversion takes by the way in which it allocates, if that is more: its refcount table is made anew when
//! it is full, and it writes more than the data of a source that has little of it in many places.

use super::CreateOptions;
use super::convert::From;
use super::create::{new, size_for};
use super::file::ToolError;
use crate::geometry::Geometry;
use crate::header::Header;
use crate::refcount::{self, Growth};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use storage::copy::{CHUNK_BYTES, GRAIN_BYTES};
use storage::extent::DataRanges;

/// What an image is called that there is not yet.
const NEW: &str = "the new image";

/// What an image needs. Its JSON is that of `vringd image measure --json`, with names of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Bytes up to the end of what is in it when the source was converted, or when it was made.
    pub required: u64,
    /// The same when everything of its disk was written.
    #[serde(rename = "fully-allocated")]
    pub fully_allocated: u64,
}

/// How many bytes the image has that [`to_qcow2`](super::to_qcow2) makes of a source, or [`create`](super::create()) of
/// nothing.
///
/// # Errors
/// What cannot be made, with the reason; the source is being written, or cannot be read.
pub fn measure(
    from: Option<&From>,
    options: &CreateOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Measured, ToolError> {
    let from = from.map(From::open).transpose()?;
    let there = from.as_ref().map(|from| from.storage.capacity_bytes());
    let size_bytes = match (&from, there) {
        (Some(from), Some(there)) => Some(size_for(options, &from.path, there)?),
        _ => options.size_bytes,
    };
    let new = new(Path::new(NEW), &CreateOptions { size_bytes, ..options.clone() })?;
    let image = new.image().map_err(|reason| ToolError::refused(Path::new(NEW), reason))?;
    let header = Header::parse(&image);
    let header = header.map_err(|source| ToolError::Format { path: NEW.into(), source })?;
    let layout = Layout::of(&header, image.len() as u64);
    let cluster = header.cluster_bytes();
    let mut needs = Needs::of(&header);
    if let (Some(from), Some(there)) = (from, there) {
        for range in DataRanges::of(&*from.storage, 0..there) {
            let range = range.map_err(ToolError::storage(&from.path))?;
            progress(range.start, there);
            for data in DataRanges::exactly(&*from.storage, range.clone()) {
                needs.add(&range, data.map_err(ToolError::storage(&from.path))?);
            }
        }
        progress(there, there);
    }
    let (tables, all) = (header.size_bytes.div_ceil(header.l2_covers_bytes()), header.size_bytes.div_ceil(cluster));
    let end = |clusters| layout.end(clusters).map(|end| end * cluster);
    let too_long = || {
        let reason = "its refcount table would be too long: use larger clusters, or narrower refcounts";
        ToolError::refused(Path::new(NEW), reason)
    };
    let fully_allocated = layout.at_most(tables, all) * cluster;
    let required = fully_allocated - (all - needs.data.count) * cluster;
    Ok(Measured {
        required: required.max(end(needs.tables.count + needs.written.count).ok_or_else(too_long)?),
        // Not all of it can be written where the refcount table would be too long: then it is what QEMU says.
        fully_allocated: fully_allocated.max(end(tables + all).unwrap_or(0)),
    })
}

/// What a new image begins with, in clusters.
struct Layout {
    geometry: Geometry,
    l1_clusters: u64,
    table_clusters: u64,
    blocks: u64,
    /// All together, with the header.
    used: u64,
}

impl Layout {
    fn of(header: &Header, image_bytes: u64) -> Layout {
        let bits = header.cluster_bits;
        let (used, before_l1) = (image_bytes >> bits, header.l1_offset >> bits);
        let table_clusters = header.refcount_table_clusters.into();
        let (l1_clusters, blocks) = (used - before_l1, before_l1 - 1 - table_clusters);
        Layout { geometry: Geometry::new(header), l1_clusters, table_clusters, blocks, used }
    }

    /// Clusters of an image with so many L2 tables and clusters of data, whose refcount table had its length from the
    /// beginning.
    fn at_most(&self, l2_tables: u64, data: u64) -> u64 {
        let counted = 1 + self.l1_clusters + l2_tables + data;
        let (table_clusters, blocks) =
            refcount::tables(self.geometry.cluster_bits, self.geometry.refcount_order, counted);
        counted + table_clusters + blocks
    }

    /// Clusters up to the end of the last one, when so many were allocated one behind the other. `None`: no refcount
    /// table reaches so far.
    fn end(&self, mut clusters: u64) -> Option<u64> {
        let (per_block, per_cluster) = (self.geometry.refcounts_in_block(), self.geometry.cluster_bytes() / 8);
        let (mut table_clusters, mut blocks, mut at) = (self.table_clusters, self.blocks, self.used);
        loop {
            let room = blocks * per_block - at;
            if clusters <= room {
                return Some(at + clusters);
            }
            clusters -= room;
            at += room;
            if blocks < table_clusters * per_cluster {
                (at, blocks) = (at + 1, blocks + 1);
            } else {
                let Growth { blocks: more, table_clusters: longer } =
                    refcount::growth(&self.geometry, table_clusters, blocks, 0)?;
                (at, blocks, table_clusters) = (at + more + longer, blocks + more, longer);
            }
        }
    }
}

/// What data of a source takes.
struct Needs {
    /// Clusters with data.
    data: Units,
    /// Clusters that are written.
    written: Units,
    /// L2 tables for these.
    tables: Units,
}

impl Needs {
    fn of(header: &Header) -> Needs {
        let cluster = header.cluster_bytes();
        Needs { data: Units::of(cluster), written: Units::of(cluster), tables: Units::of(header.l2_covers_bytes()) }
    }

    /// Adds data that lies in a range as the copy sees it, behind what was added before.
    fn add(&mut self, range: &Range<u64>, data: Range<u64>) {
        let written = written(range, &data);
        self.tables.add(&written);
        self.written.add(&written);
        self.data.add(&data);
    }
}

/// What a copy writes for data at most: it tells zeroes from data in pieces, the first of which begins with the range
/// or a chunk.
fn written(range: &Range<u64>, data: &Range<u64>) -> Range<u64> {
    let grain = GRAIN_BYTES as u64;
    let begin = |at: u64| {
        let chunk = (at / CHUNK_BYTES * CHUNK_BYTES).max(range.start);
        chunk + (at - chunk) / grain * grain
    };
    let last = data.end - 1;
    let end = (begin(last) + grain).min((last / CHUNK_BYTES + 1) * CHUNK_BYTES).min(range.end);
    begin(data.start)..end
}

/// Counts units of which a part is used.
struct Units {
    unit_bytes: u64,
    /// Behind the last one that was counted.
    end: u64,
    count: u64,
}

impl Units {
    fn of(unit_bytes: u64) -> Units {
        Units { unit_bytes, end: 0, count: 0 }
    }

    fn add(&mut self, range: &Range<u64>) {
        let (first, end) = ((range.start / self.unit_bytes).max(self.end), range.end.div_ceil(self.unit_bytes));
        if first < end {
            (self.count, self.end) = (self.count + (end - first), end);
        }
    }
}
