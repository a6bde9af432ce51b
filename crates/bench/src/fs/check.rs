//! What is compared with the host's files before a run, untimed.

use anyhow::{Result, ensure};

use super::lane::Order;
use super::scratch::{Key, entry_name, fill, first_wrong};
use crate::frontend::rng::Rng;

/// Blocks that are looked at.
const BLOCKS_CHECKED: u64 = 256;

/// A file as its server hands it out.
pub(crate) trait Data {
    /// Reads `len` bytes at `offset`, or fewer where the file ends.
    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>>;

    /// Writes all of `data`.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;
}

/// Checks that what is read is what was laid out, or that what is written is in the host's file, in blocks all over the
/// `blocks` of the file.
pub(crate) fn check_file(file: &mut impl Data, order: &Order<'_>, blocks: u64) -> Result<()> {
    let mut rng = Rng::new(blocks, 7);
    let mut data = vec![0; order.block_bytes];
    for index in 0..BLOCKS_CHECKED.min(blocks) {
        // The first, the last, and some between.
        let block = match index {
            0 => 0,
            1 => blocks - 1,
            _ => rng.below(blocks),
        };
        let offset = block * order.block_bytes as u64;
        if order.job.reads_data() {
            let seen = file.read(offset, order.block_bytes)?;
            let (len, wrong) = (seen.len(), first_wrong(&seen, offset, Key::LaidOut));
            ensure!(len == order.block_bytes, "a read at {offset}: {len} bytes of {}", order.block_bytes);
            ensure!(wrong.is_none(), "a read at {offset}: wrong data at {wrong:?}");
        } else {
            fill(&mut data, offset, Key::Written);
            file.write(offset, &data)?;
            order.scratch.check_written(offset, order.block_bytes)?;
            // So that the next check does not see what this one wrote.
            fill(&mut data, offset, Key::LaidOut);
            file.write(offset, &data)?;
        }
    }
    Ok(())
}

/// Checks that `names`, which may have `.` and `..` among them, are those of the large directory.
pub(crate) fn check_listing(mut names: Vec<Vec<u8>>, entries: u32) -> Result<()> {
    names.retain(|name| name != b"." && name != b"..");
    names.sort_unstable();
    let is_same = names.iter().cloned().eq((0..entries).map(|n| entry_name(n).into_bytes()));
    ensure!(is_same, "a listing has {} names, not the {entries} that are there", names.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;
    use crate::fs::job::Job;
    use crate::fs::scratch::{Amounts, READ_FILE, Scratch, WRITE_FILE};

    /// A server that may be wrong about one byte.
    struct Served {
        file: File,
        wrong_at: Option<u64>,
    }

    impl Data for Served {
        fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>> {
            let mut data = vec![0; len];
            self.file.read_exact_at(&mut data, offset)?;
            if let Some(at) = self.wrong_at.and_then(|at| at.checked_sub(offset))
                && let Some(byte) = data.get_mut(at as usize)
            {
                *byte ^= 1;
            }
            Ok(data)
        }

        fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
            let mut data = data.to_vec();
            if let Some(at) = self.wrong_at.and_then(|at| at.checked_sub(offset))
                && let Some(byte) = data.get_mut(at as usize)
            {
                *byte ^= 1;
            }
            Ok(self.file.write_all_at(&data, offset)?)
        }
    }

    #[test]
    fn wrong_data_is_seen_in_either_direction() {
        let parent = tempfile::tempdir().unwrap();
        let jobs = [Job::ReadSeq, Job::WriteSeq];
        let scratch = Scratch::make(parent.path(), &Amounts { jobs: &jobs, file_bytes: 32768, entries: 0 }).unwrap();
        for (job, name) in jobs.into_iter().zip([READ_FILE, WRITE_FILE]) {
            let order = Order {
                job,
                run: 1,
                block_bytes: 4096,
                direct: false,
                entries: 0,
                scratch: &scratch,
                base: Path::new(""),
            };
            let file = File::options().read(true).write(true).open(scratch.path().join(name)).unwrap();
            let mut served = Served { file, wrong_at: None };
            check_file(&mut served, &order, 8).unwrap();
            // In the last block, which is always looked at.
            served.wrong_at = Some(32767);
            let error = check_file(&mut served, &order, 8).unwrap_err().to_string();
            assert!(error.contains("28672"), "{job:?}: {error}");
        }
    }

    #[test]
    fn a_listing_has_each_name_once() {
        let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let both = ["entry-0000001", "..", "entry-0000000", "."];
        check_listing(names(&both), 2).unwrap();
        assert!(check_listing(names(&both), 3).is_err());
        assert!(check_listing(names(&both[..2]), 2).is_err());
        assert!(check_listing(names(&["entry-0000000", "entry-0000000"]), 2).is_err());
    }
}
