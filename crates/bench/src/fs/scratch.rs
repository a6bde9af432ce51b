//! The directory that is served: laid out once, with content that can be checked, and deleted afterwards.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::job::Job;
use crate::frontend::rng::mix;

/// Names in the directory.
pub(crate) const READ_FILE: &str = "read.dat";
pub(crate) const WRITE_FILE: &str = "write.dat";
pub(crate) const FILES: &str = "files";
pub(crate) const TREE: &str = "tree";
pub(crate) const BIG: &str = "big";
pub(crate) const WORK: &str = "work";
/// Files in [`FILES`]; number `n` has `n + 1` bytes, so that a wrong one shows.
pub(crate) const FILE_COUNT: u32 = 1024;
/// Directories in the tree and in each of these, and files in each of those.
pub(crate) const TREE_DIRS: u32 = 16;
pub(crate) const TREE_FILES: u32 = 32;

const CHUNK_BYTES: usize = 1 << 20;

/// What the words of a file's data are computed from, besides their offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// As laid out.
    LaidOut = 1,
    /// As the check of writes leaves it.
    Written = 2,
}

/// The 64-bit word at `offset`, a multiple of 8.
pub(crate) fn word(offset: u64, key: Key) -> [u8; 8] {
    mix(offset ^ (key as u64) << 60).to_le_bytes()
}

/// Fills `data` with what lies at `offset`.
pub(crate) fn fill(data: &mut [u8], offset: u64, key: Key) {
    for (index, word_bytes) in data.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word_bytes = word(offset + 8 * index as u64, key);
    }
}

/// The offset of the first wrong word in `data`, which was read at `offset`.
pub(crate) fn first_wrong(data: &[u8], offset: u64, key: Key) -> Option<u64> {
    let offsets = (offset..).step_by(8);
    data.as_chunks::<8>().0.iter().zip(offsets).find(|(bytes, at)| **bytes != word(*at, key)).map(|(_, at)| at)
}

/// Name of file `n` of [`FILES`].
pub(crate) fn file_name(n: u32) -> String {
    format!("f{n:04}")
}

/// Name of a directory or a file of the tree.
pub(crate) fn tree_name(kind: char, n: u32) -> String {
    format!("{kind}{n:02}")
}

/// All names in the tree, by level.
pub(crate) fn tree_names() -> [Vec<Box<[u8]>>; 3] {
    let names = |kind, count| (0..count).map(|n| tree_name(kind, n).into_bytes().into()).collect();
    [names('a', TREE_DIRS), names('b', TREE_DIRS), names('f', TREE_FILES)]
}

/// Name of entry `n` of [`BIG`].
pub(crate) fn entry_name(n: u32) -> String {
    format!("entry-{n:07}")
}

/// How much is laid out.
#[derive(Debug, Clone)]
pub(crate) struct Amounts<'a> {
    pub(crate) jobs: &'a [Job],
    pub(crate) file_bytes: u64,
    pub(crate) entries: u32,
}

/// The directory.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// Makes a directory in `parent` and what `amounts.jobs` need in it.
    pub(crate) fn make(parent: &Path, amounts: &Amounts<'_>) -> Result<Self> {
        let failed = || format!("cannot lay out files in {}", parent.display());
        let dir = tempfile::Builder::new().prefix("bench-fs-").tempdir_in(parent).with_context(failed)?;
        let scratch = Self { dir };
        scratch.lay_out(amounts).with_context(failed)?;
        Ok(scratch)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    fn lay_out(&self, amounts: &Amounts<'_>) -> Result<()> {
        let needs = |jobs: &[Job]| amounts.jobs.iter().any(|job| jobs.contains(job));
        let at = |name: &str| self.path().join(name);
        fs::create_dir(at(WORK))?;
        if needs(&[Job::ReadSeq, Job::ReadRand]) {
            lay_out_file(&at(READ_FILE), amounts.file_bytes)?;
        }
        if needs(&[Job::WriteSeq, Job::WriteRand]) {
            lay_out_file(&at(WRITE_FILE), amounts.file_bytes)?;
        }
        if needs(&[Job::Getattr, Job::LookupHit, Job::LookupMiss, Job::OpenRelease]) {
            fs::create_dir(at(FILES))?;
            for n in 0..FILE_COUNT {
                File::create(at(FILES).join(file_name(n)))?.set_len(u64::from(n) + 1)?;
            }
        }
        if needs(&[Job::Tree]) {
            for (outer, inner) in (0..TREE_DIRS).flat_map(|outer| (0..TREE_DIRS).map(move |inner| (outer, inner))) {
                let dir = at(TREE).join(tree_name('a', outer)).join(tree_name('b', inner));
                fs::create_dir_all(&dir)?;
                for n in 0..TREE_FILES {
                    File::create(dir.join(tree_name('f', n)))?;
                }
            }
        }
        if needs(&[Job::Readdir, Job::Readdirplus, Job::ReaddirplusCold]) {
            fs::create_dir(at(BIG))?;
            for n in 0..amounts.entries {
                File::create(at(BIG).join(entry_name(n)))?;
            }
        }
        Ok(())
    }

    /// Whether the host's file has what the check of writes wrote at `offset`.
    pub(crate) fn check_written(&self, offset: u64, len: usize) -> Result<()> {
        let mut data = vec![0; len];
        File::open(self.path().join(WRITE_FILE))?.read_exact_at(&mut data, offset)?;
        let wrong = first_wrong(&data, offset, Key::Written);
        ensure!(wrong.is_none(), "what was written at {offset} is not in the host's file (offset {wrong:?})");
        Ok(())
    }
}

fn lay_out_file(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let len = CHUNK_BYTES.min((bytes - offset) as usize);
        fill(&mut chunk[..len], offset, Key::LaidOut);
        file.write_all(&chunk[..len])?;
        offset += len as u64;
    }
    // Dirty pages would be written behind somebody's measurement.
    Ok(file.sync_all()?)
}

/// Where scratch directories go unless told otherwise.
pub(crate) fn default_parent(tmpfs: bool) -> PathBuf {
    if tmpfs { PathBuf::from("/dev/shm") } else { std::env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_checked_by_its_offset_and_its_key() {
        let mut data = vec![0; 4096];
        fill(&mut data, 8192, Key::LaidOut);
        assert_eq!(first_wrong(&data, 8192, Key::LaidOut), None);
        assert_eq!(first_wrong(&data, 4096, Key::LaidOut), Some(4096));
        assert_eq!(first_wrong(&data, 8192, Key::Written), Some(8192));
        data[100] ^= 1;
        assert_eq!(first_wrong(&data, 8192, Key::LaidOut), Some(8192 + 96));
    }

    #[test]
    fn jobs_get_what_they_need_and_no_more() {
        let parent = tempfile::tempdir().unwrap();
        let make =
            |jobs: &[Job]| Scratch::make(parent.path(), &Amounts { jobs, file_bytes: 3 << 19, entries: 5 }).unwrap();
        let scratch = make(&[Job::ReadSeq, Job::Readdirplus]);
        let data = fs::read(scratch.path().join(READ_FILE)).unwrap();
        assert_eq!((data.len(), first_wrong(&data, 0, Key::LaidOut)), (3 << 19, None));
        assert_eq!(fs::read_dir(scratch.path().join(BIG)).unwrap().count(), 5);
        assert!(!scratch.path().join(FILES).exists() && !scratch.path().join(WRITE_FILE).exists());
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
        let scratch = make(&[Job::Getattr]);
        let last = scratch.path().join(FILES).join(file_name(FILE_COUNT - 1));
        assert_eq!(fs::metadata(last).unwrap().len(), u64::from(FILE_COUNT));
    }

    #[test]
    fn a_write_that_did_not_arrive_is_seen() {
        let parent = tempfile::tempdir().unwrap();
        let amounts = Amounts { jobs: &[Job::WriteRand], file_bytes: 8192, entries: 0 };
        let scratch = Scratch::make(parent.path(), &amounts).unwrap();
        assert!(scratch.check_written(4096, 4096).is_err());
        let mut data = vec![0; 4096];
        fill(&mut data, 4096, Key::Written);
        File::options().write(true).open(scratch.path().join(WRITE_FILE)).unwrap().write_all_at(&data, 4096).unwrap();
        scratch.check_written(4096, 4096).unwrap();
    }
}
