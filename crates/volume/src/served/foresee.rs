//! What opening a volume, or a log in front of a disk, would meet: for whoever only looks.

use super::apart;
use super::error::VolumeError;
use super::memory::{self, Home, Memory};
use super::open::{VolumeOptions, whole_superblock};
use std::path::PathBuf;
use values::LogFile;

/// The memory file that an opening would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// Where; nowhere for memory that ends with the process.
    pub memory_file: Option<PathBuf>,
    /// It is there already, and has its memory.
    pub is_there: bool,
}

impl VolumeOptions {
    /// Looks for the memory file of the volume. Nothing is changed or locked, and somebody may be serving it.
    ///
    /// # Errors
    /// Of those of opening it: it is no volume, or its memory file is missed, of another volume, or out of sight.
    pub fn foresee(&self) -> Result<Foreseen, VolumeError> {
        let superblock = whole_superblock(&self.path, &self.reader(&self.path)?)?;
        self.foresee_memory(&superblock)
    }

    fn foresee_memory(&self, superblock: &crate::format::Superblock) -> Result<Foreseen, VolumeError> {
        let memory = Memory::find(&self.memory_file, superblock, Home::of(&self.path))?;
        match memory {
            Some(found) => {
                found.contents(superblock)?;
                Ok(Foreseen { memory_file: found.path, is_there: true })
            }
            None => match memory::missing(&self.memory_file, superblock) {
                Some(missing) => Err(missing),
                None => {
                    memory::check_named(&self.memory_file)?;
                    let memory_file = memory::likely(&self.memory_file, &superblock.volume);
                    Ok(Foreseen { memory_file, is_there: false })
                }
            },
        }
    }
}

/// As [`VolumeOptions::foresee`], of a log in front of a disk.
///
/// # Errors
/// As there.
pub fn foresee_log(log: &LogFile) -> Result<Foreseen, VolumeError> {
    let options = apart::at(log);
    let superblock = apart::superblock(&log.path, &options.reader(&log.path)?)?;
    options.foresee_memory(&superblock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::tools;
    use values::MemoryFile;

    fn made(directory: &std::path::Path) -> VolumeOptions {
        let memory_file = MemoryFile::Path(directory.join("memory"));
        let at = VolumeOptions { memory_file, ..VolumeOptions::new(directory.join("v")) };
        let options = tools::CreateOptions {
            size_bytes: 1 << 20,
            log_bytes: 1 << 20,
            force: false,
            created_by: "a test".to_owned(),
        };
        tools::create(&at, &options, &mut |_| {}).unwrap();
        at
    }

    #[test]
    fn nothing_is_made_where_a_file_would_be() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = made(directory.path());
        let memory_file = Some(directory.path().join("memory"));
        assert_eq!(at.foresee().unwrap(), Foreseen { memory_file: memory_file.clone(), is_there: false });
        assert!(!directory.path().join("memory").exists());
        let volume = storage::open(&at).unwrap();
        assert_eq!(at.foresee().unwrap(), Foreseen { memory_file, is_there: true });
        drop(volume);
    }

    #[test]
    fn a_place_where_no_file_can_be_is_named() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let on_disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for path in [directory.path().join("none/memory"), on_disk.path().join("memory")] {
            let at = VolumeOptions { memory_file: MemoryFile::Path(path), ..made(directory.path()) };
            let foreseen = at.foresee().unwrap_err().to_string();
            assert_eq!(foreseen, storage::open(&at).map(drop).unwrap_err().to_string());
            std::fs::remove_file(&at.path).unwrap();
        }
    }

    #[test]
    fn memory_that_is_missed_is_named() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = made(directory.path());
        let volume = storage::open(&at).unwrap();
        // As a kill leaves it, and somebody who clears up.
        let killed = directory.path().join("killed");
        std::fs::copy(&at.path, &killed).unwrap();
        drop(volume);
        std::fs::rename(&killed, &at.path).unwrap();
        let foreseen = at.foresee().unwrap_err().to_string();
        assert_eq!(foreseen, storage::open(&at).map(drop).unwrap_err().to_string());
    }
}
