//! Who uses which cluster, and leaks given back.

use super::file::{Image, ToolError};
use crate::geometry::Geometry;
use crate::header::Header;
use crate::uses::{Examination, Findings, Source};
use crate::{field, refcount, uses};
use serde::Serialize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use storage::kit::ImageLock;

/// What a check has found. Its JSON is what `vringd image check --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The image.
    pub path: PathBuf,
    /// Nothing is damaged. Leaks cost space, and are no damage.
    pub sound: bool,
    /// Damage, in words: the first hundred.
    pub problems: Vec<String>,
    /// How much of it there is.
    pub problem_count: u64,
    /// Clusters that are counted and not used.
    pub leaked_clusters: u64,
    /// Their bytes.
    pub leaked_bytes: u64,
    /// Leaks that were given back.
    pub repaired_clusters: u64,
    /// Clusters of the disk.
    pub total_clusters: u64,
    /// Of these, those that lie in the image.
    pub allocated_clusters: u64,
    /// Of these, those that are compressed.
    pub compressed_clusters: u64,
    /// Behind the last cluster that is used.
    pub end_bytes: u64,
}

/// Examines an image; with `repair` leaks are given back afterwards, unless something is damaged. `progress` hears of bytes of the disk, and of
/// how many.
///
/// # Errors
/// It cannot be read or written; somebody has it.
pub fn check(path: &Path, repair: bool, lock: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Checked, ToolError> {
    let mut image = Image::open(path, repair)?;
    let _lock = lock.then(|| ImageLock::take(path, &image.file, repair)).transpose()?;
    let header = image.header()?;
    let covers = header.l2_covers_bytes();
    let mut progress = |done: u64, all: u64| progress(done.saturating_mul(covers), all.saturating_mul(covers));
    let found = uses::examine(&mut image, &header, &mut progress).map_err(ToolError::io(path, "read"))?;
    let repaired_clusters = match repair && found.findings.problem_count == 0 {
        true => give_back(&mut image, &header, &found)?,
        false => 0,
    };
    let leaked = found.leaks().count() as u64 - repaired_clusters;
    let Findings { problems, problem_count, allocated_clusters, compressed_clusters, end_bytes, .. } = found.findings;
    Ok(Checked {
        path: path.to_owned(),
        sound: problem_count == 0,
        problems,
        problem_count,
        leaked_clusters: leaked,
        leaked_bytes: leaked << header.cluster_bits,
        repaired_clusters,
        total_clusters: header.size_bytes.div_ceil(header.cluster_bytes()),
        allocated_clusters,
        compressed_clusters,
        end_bytes,
    })
}

/// Counts leaks down to what they are used. Whatever a power cut leaves of that is a leak at worst.
fn give_back(image: &mut Image, header: &Header, found: &Examination) -> Result<u64, ToolError> {
    let (geometry, order) = (Geometry::new(header), header.refcount_order);
    let (cluster, per_block) = (geometry.cluster_bytes(), geometry.refcounts_in_block());
    let path = image.path.clone();
    let mut repaired = 0;
    let mut present: Option<(u64, Vec<u8>)> = None;
    for leak in found.leaks() {
        let number = leak.cluster / per_block;
        let block = match &mut present {
            Some((block, bytes)) if *block == number => (*block, bytes),
            _ => {
                write_back(image, header, present.take())?;
                let mut bytes = vec![0; cluster as usize];
                let place = place(image, header, number)?;
                image.read(place, &mut bytes).map_err(ToolError::io(&path, "read"))?;
                let (block, bytes) = present.insert((number, bytes));
                (*block, bytes)
            }
        };
        refcount::set(block.1, order, leak.cluster % per_block, leak.uses.into());
        repaired += 1;
    }
    write_back(image, header, present)?;
    image.file.sync_all().map_err(ToolError::io(&path, "flush"))?;
    Ok(repaired)
}

fn write_back(image: &mut Image, header: &Header, block: Option<(u64, Vec<u8>)>) -> Result<(), ToolError> {
    let Some((number, bytes)) = block else { return Ok(()) };
    let place = place(image, header, number)?;
    image.file.write_all_at(&bytes, place).map_err(ToolError::io(&image.path, "write"))
}

/// Where a refcount block is, which was read before.
fn place(image: &mut Image, header: &Header, number: u64) -> Result<u64, ToolError> {
    let mut word = [0; 8];
    image.read(header.refcount_table_offset + number * 8, &mut word).map_err(ToolError::io(&image.path, "read"))?;
    Ok(field::u64_at(&word, 0).unwrap_or(0))
}
