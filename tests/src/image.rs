//! Images to serve.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// `st_blocks` counts in units of 512 bytes whatever the file system's block size is (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// Creates a sparse image of `capacity_bytes` in `directory`.
pub fn sparse(directory: &Path, name: &str, capacity_bytes: u64) -> Result<PathBuf> {
    let path = directory.join(name);
    File::create_new(&path)
        .and_then(|file| file.set_len(capacity_bytes))
        .with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// How much of the host's disk an image occupies, in bytes.
pub fn allocated_bytes(image: &Path) -> Result<u64> {
    let metadata = image.metadata().with_context(|| format!("cannot read {}", image.display()))?;
    Ok(metadata.blocks() * STAT_BLOCK_BYTES)
}
