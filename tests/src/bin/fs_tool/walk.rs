//! Looks at every file of a large tree.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, Dir, statat};

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
    let directory = File::open(directory).with_context(|| format!("{}", directory.display()))?;
    let mut count = 0;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        // Not the standard library's metadata, which asks for the time of birth too: that is never
        // known from a listing.
        let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).with_context(|| format!("{name:?}"))?;
        let wanted: i64 = name.to_str()?.parse().context("a file is named by its size")?;
        ensure!(found.st_size == wanted, "{name:?} has {} bytes", found.st_size);
        count += 1;
    }
    Ok(count)
}
