//! Who uses which cluster, and leaks given back.

use super::file::{Image, ToolError, as_text};
use crate::geometry::Geometry;
use crate::header::Header;
use crate::uses::{Examination, Findings, Source};
use crate::{refcount, uses};
use serde::Serialize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use storage::OpenError;
use storage::kit::ImageLock;

/// What a check has found. Its JSON is what `vringd image check --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// The image.
    #[serde(serialize_with = "as_text")]
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
    let in_use = |error| match ToolError::from(error) {
        ToolError::Refused { path, reason } => {
            ToolError::Refused { path, reason: reason + "; --no-lock looks at it all the same" }
        }
        error => error,
    };
    let _lock = lock.then(|| ImageLock::take(path, &image.file, repair)).transpose().map_err(in_use)?;
    // What a killed server has under way belongs to it.
    match storage::kit::settled(path, &image.file, repair) {
        // Who does without locks does so where there are none, too.
        Err(OpenError::Lock { .. }) if !lock => {}
        waited => waited?,
    }
    image.measure()?;
    let header = image.header()?;
    let covers = header.l2_covers_bytes();
    let mut progress = |done: u64, all: u64| progress(done.saturating_mul(covers), all.saturating_mul(covers));
    let found = uses::examine(&mut image, &header, &mut progress).map_err(ToolError::io(path, "read"))?;
    let repaired_clusters = match repair && found.findings.problem_count == 0 {
        true => give_back(&mut image, &header, &found)?,
        false => 0,
    };
    let leaked = found.findings.leaked_clusters - repaired_clusters;
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

/// Counts leaks down to what they are used. Whatever a power cut leaves of that is a leak at worst. A cluster that entries call shared
/// keeps its leak if it would be used once then: the entries would be wrong.
fn give_back(image: &mut Image, header: &Header, found: &Examination) -> Result<u64, ToolError> {
    let (geometry, order) = (Geometry::new(header), header.refcount_order);
    let mut repaired = 0;
    for (number, place) in found.blocks() {
        let mut block = vec![0; geometry.cluster_bytes() as usize];
        image.read(*place, &mut block).map_err(ToolError::io(&image.path, "read"))?;
        let mut is_changed = false;
        for index in 0..geometry.refcounts_in_block() {
            let counted = refcount::get(&block, order, index);
            let Some(uses) = found.repaired(number * geometry.refcounts_in_block() + index, counted) else { continue };
            refcount::set(&mut block, order, index, uses);
            (repaired, is_changed) = (repaired + 1, true);
        }
        if is_changed {
            image.file.write_all_at(&block, *place).map_err(ToolError::io(&image.path, "write"))?;
        }
    }
    image.file.sync_all().map_err(ToolError::io(&image.path, "flush"))?;
    Ok(repaired)
}
