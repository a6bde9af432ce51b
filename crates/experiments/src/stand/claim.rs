//! One run at a time lays data out in a directory: another would find it laid out, write to images that are being served,
//! and remove them at its end.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use guest::interrupt;

use super::{Site, data};
use crate::experiment::Experiment;

/// A run's hold on the directories of its data. They go with it, unless something lies there.
#[derive(Debug)]
pub struct Claim(Vec<(PathBuf, File)>);

impl Claim {
    /// Waits until no other run lays data out where `experiments` do. Says on standard error if it must wait.
    ///
    /// # Errors
    /// A directory cannot be made or locked, or a person wishes to stop.
    pub fn of(site: &Site, experiments: &[Experiment]) -> Result<Self> {
        let media = experiments.iter().flat_map(|experiment| &experiment.configurations).map(|it| it.data.medium);
        let mut roots = BTreeSet::new();
        for root in media.filter_map(|medium| data::root(site, medium)) {
            // Of two names of one directory, the second would wait for the first for ever. In an order, so that two runs do not
            // wait for each other.
            roots.insert(make(&root).with_context(|| format!("cannot make {}", root.display()))?);
        }
        let mut held = Self(Vec::new());
        for root in roots {
            let file = hold(&root)?;
            held.0.push((root, file));
        }
        Ok(held)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for (root, _held) in &self.0 {
            // What another run is to find may lie there. The lock is given up afterwards: who has waited for it sees that the
            // directory has gone.
            let _kept = fs::remove_dir(root);
        }
    }
}

/// Makes the directory if it is not there, and returns its one name.
fn make(root: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(root)?;
    fs::canonicalize(root)
}

fn hold(root: &Path) -> Result<File> {
    let mut said = false;
    loop {
        let attempt =
            make(root).and_then(|_| File::open(root)).with_context(|| format!("cannot open {}", root.display()))?;
        match attempt.try_lock() {
            Ok(()) if is(root, &attempt) => return Ok(attempt),
            // Another run has removed it since.
            Ok(()) => continue,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock {}", root.display())),
        }
        if !said {
            eprintln!(
                "waiting for another run to end, whose data lies in {}: --data and --memory name other directories",
                root.display()
            );
            said = true;
        }
        interrupt::check()?;
        thread::sleep(interrupt::LOOK_EVERY);
    }
}

/// Whether `root` is what is open as `directory`.
fn is(root: &Path, directory: &File) -> bool {
    let identity = |about: &fs::Metadata| (about.dev(), about.ino());
    matches!((fs::metadata(root), directory.metadata()), (Ok(there), Ok(ours)) if identity(&there) == identity(&ours))
}
