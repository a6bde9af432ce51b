//! Many threads that rename the same files at once.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

const THREADS: u64 = 4;
const DIRECTORIES: u64 = 3;
const FILES: u64 = 24;

/// Threads move files between directories, exchange them, and move the directories, `rounds` times
/// each. At the end every file is there once, with the content it had.
pub(crate) fn storm(directory: &Path, rounds: u64) -> Result<()> {
    for number in 0..DIRECTORIES {
        fs::create_dir(directory.join(format!("d{number}")))?;
    }
    for number in 0..FILES {
        fs::write(place(directory, number % DIRECTORIES, number), format!("file {number}"))?;
    }
    let moved: Vec<Result<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || mover(directory, seed, rounds))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a mover does not panic")).collect()
    });
    let moved: u64 = moved.into_iter().sum::<Result<u64>>()?;
    ensure!(moved > rounds, "only {moved} of {} renames found what they wanted", rounds * THREADS);

    let mut contents = BTreeSet::new();
    for number in 0..DIRECTORIES {
        for entry in fs::read_dir(directory.join(format!("d{number}"))).context("a directory is lost")? {
            let path = entry?.path();
            let content = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
            ensure!(contents.insert(content.clone()), "`{content}` is there twice");
        }
    }
    let wanted: BTreeSet<String> = (0..FILES).map(|number| format!("file {number}")).collect();
    ensure!(contents == wanted, "the files left are {contents:?}");
    println!("moved: {moved}");
    Ok(())
}

fn place(directory: &Path, parent: u64, file: u64) -> PathBuf {
    directory.join(format!("d{parent}/f{file}"))
}

fn mover(directory: &Path, seed: u64, rounds: u64) -> Result<u64> {
    let mut random = Random(seed.wrapping_add(1));
    let mut moved = 0;
    for _ in 0..rounds {
        let (from, to, flags) = if random.below(8) == 0 {
            let directories = (random.below(DIRECTORIES), random.below(DIRECTORIES));
            (
                directory.join(format!("d{}", directories.0)),
                directory.join(format!("d{}", directories.1)),
                RenameFlags::EXCHANGE,
            )
        } else {
            let flags = if random.below(2) == 0 { RenameFlags::NOREPLACE } else { RenameFlags::EXCHANGE };
            (
                place(directory, random.below(DIRECTORIES), random.below(FILES)),
                place(directory, random.below(DIRECTORIES), random.below(FILES)),
                flags,
            )
        };
        match renameat_with(CWD, &from, CWD, &to, flags) {
            Ok(()) => moved += 1,
            // Another thread was faster.
            Err(Errno::NOENT | Errno::EXIST) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{} to {}", from.display(), to.display()));
            }
        }
    }
    Ok(moved)
}

/// Xorshift: the same storm each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}
