//! Looks at every file of a large tree.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};

const THREADS: usize = 4;

/// Looks up and stats each file of each directory in `directory`, and prints how many there were.
/// Every file must hold as many bytes as its name says.
pub(crate) fn run(directory: &Path) -> Result<()> {
    let mut directories: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    directories.sort();
    let share = directories.len().div_ceil(THREADS).max(1);
    let counts: Vec<Result<u64>> = thread::scope(|scope| {
        let walkers: Vec<_> =
            directories.chunks(share).map(|part| scope.spawn(|| part.iter().map(|path| files(path)).sum())).collect();
        walkers.into_iter().map(|walker| walker.join().expect("a walker does not panic")).collect()
    });
    println!("files: {}", counts.into_iter().sum::<Result<u64>>()?);
    Ok(())
}

fn files(directory: &Path) -> Result<u64> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata().with_context(|| format!("{}", entry.path().display()))?;
        let wanted: u64 = entry.file_name().to_string_lossy().parse().context("a file is named by its size")?;
        ensure!(metadata.size() == wanted, "{} has {} bytes", entry.path().display(), metadata.size());
        count += 1;
    }
    Ok(count)
}
