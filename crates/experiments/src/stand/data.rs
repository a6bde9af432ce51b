//! The data that is served: laid out once, reused by every configuration and round, removed at the end of the run.
//!
//! All of it is real data in every block: holes and compressible blocks are faster than what an image holds. Files of one
//! shape (how many, how large) lie in one directory, whose marker says that they are complete; an interrupted run finds
//! it again. A volume is made of the image, with the same data, for each configuration that serves one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, statvfs};

use super::{Site, Trouble, volume};
use crate::experiment::{self, Configuration, Experiment, Medium};

/// Holds all data of a site's directory, so that it can be told from what else is there.
const DIRECTORY: &str = "vringd-bench-data";
/// Says that the files beside it are complete.
const MARKER: &str = "complete";
/// What is served.
const FILES: &str = "files";
const MIB: u64 = 1 << 20;
/// Left free on a disk: a file system that is full to the brim is another file system.
const SPARE_MIB: u64 = 64;

/// Data that lies ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    directory: PathBuf,
    files: u32,
    size_mib: u64,
}

impl Data {
    /// Lays out what `configuration` serves: files, or a volume of the same contents.
    ///
    /// # Errors
    /// As [`Data::lay_out`].
    pub fn of(site: &Site, configuration: &Configuration) -> Result<Option<Self>, Trouble> {
        match Self::lay_out(site, &configuration.data)? {
            Some(image) if configuration.server.serves_volume() => {
                let directory = volume::directory(&image.directory, &configuration.name);
                let data = Self { directory, ..image.clone() };
                volume::make(site, &image, &data, configuration.data.medium)?;
                Ok(Some(data))
            }
            other => Ok(other),
        }
    }

    /// Lays out what `wanted` asks for, or finds it laid out. `None` when it lies nowhere ([`Medium::None`]).
    ///
    /// # Errors
    /// [`Trouble::Failed`]: there is no room (nothing is written then), or writing failed (what was written is removed).
    pub fn lay_out(site: &Site, wanted: &experiment::Data) -> Result<Option<Self>, Trouble> {
        let Some(directory) = directory(site, wanted) else { return Ok(None) };
        let data = Self { directory, files: wanted.files.max(1), size_mib: wanted.size_mib };
        if data.is_complete() {
            return Ok(Some(data));
        }
        // What an interrupted run left takes room.
        remove_directory(&data.directory).map_err(|error| data.trouble(wanted.medium, &error))?;
        data.check_room(wanted.medium)?;
        if let Err(error) = data.write() {
            let trouble = data.trouble(wanted.medium, &error);
            // The first error is the one to tell.
            let _removed = data.remove();
            return Err(trouble);
        }
        Ok(Some(data))
    }

    /// Removes all data that `experiment` has laid out.
    ///
    /// # Errors
    /// Files of ours cannot be removed.
    pub fn remove_all(site: &Site, experiment: &Experiment) -> io::Result<()> {
        for configuration in &experiment.configurations {
            if let Some(directory) = directory(site, &configuration.data) {
                remove_directory(&volume::directory(&directory, &configuration.name))?;
                remove_directory(&directory)?;
            }
        }
        Ok(())
    }

    /// Removes it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        remove_directory(&self.directory)
    }

    /// The directory that holds the files and nothing else: what a server of directories serves.
    pub fn directory(&self) -> PathBuf {
        self.directory.join(FILES)
    }

    /// The image: the first file, for servers of disks.
    pub fn image(&self) -> PathBuf {
        self.directory().join(file_name(0))
    }

    /// How many files there are.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Size of each file, in MiB.
    pub fn size_mib(&self) -> u64 {
        self.size_mib
    }

    fn is_complete(&self) -> bool {
        let is_full = |number| {
            let path = self.directory().join(file_name(number));
            fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() == self.size_mib * MIB)
        };
        self.is_marked() && (0..self.files).all(is_full)
    }

    fn needed_mib(&self) -> u64 {
        self.size_mib.saturating_mul(u64::from(self.files))
    }

    pub(super) fn check_room(&self, medium: Medium) -> Result<(), Trouble> {
        let parent = self.directory.parent().unwrap_or(&self.directory);
        fs::create_dir_all(parent).map_err(|error| self.trouble(medium, &error))?;
        let there = statvfs(parent).map_err(|error| self.trouble(medium, &error.into()))?;
        let free_mib = there.f_bavail.saturating_mul(there.f_frsize) / MIB;
        let needed_mib = self.needed_mib();
        if needed_mib.saturating_add(SPARE_MIB) > free_mib {
            return Err(Trouble::Failed(format!(
                "not enough room: {needed_mib} MiB of data and {SPARE_MIB} MiB to spare are needed in {}, {free_mib} MiB \
                 are free",
                parent.display()
            )));
        }
        if medium == Medium::Memory {
            let available_mib = crate::environment::memory_available_mib();
            if needed_mib > available_mib / 2 {
                return Err(Trouble::Failed(format!(
                    "not enough memory: {needed_mib} MiB of data in memory are needed, and half of the {available_mib} MiB \
                     available is the most that is taken"
                )));
            }
        }
        Ok(())
    }

    fn write(&self) -> io::Result<()> {
        let files = self.directory();
        fs::create_dir_all(&files)?;
        for number in 0..self.files {
            write_file(&files.join(file_name(number)), self.size_mib, u64::from(number))?;
        }
        self.mark()
    }

    /// Whether somebody has said that it is complete.
    pub(super) fn is_marked(&self) -> bool {
        self.directory.join(MARKER).exists()
    }

    /// Says that it is complete, once that is on the disk.
    pub(super) fn mark(&self) -> io::Result<()> {
        File::open(self.directory())?.sync_all()?;
        let marker = File::create(self.directory.join(MARKER))?;
        marker.sync_all()
    }

    pub(super) fn trouble(&self, medium: Medium, error: &io::Error) -> Trouble {
        let what = match medium {
            Medium::Memory => "memory",
            Medium::Disk | Medium::None => "the disk",
        };
        Trouble::Failed(match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("{what} is full: {} MiB of data do not fit in {}", self.needed_mib(), self.directory.display())
            }
            _ => format!("cannot lay out data in {}: {error}", self.directory.display()),
        })
    }
}

/// Name of a file, as workloads know it.
pub(crate) fn file_name(number: u32) -> String {
    format!("file{number}")
}

/// The directory that holds all data of a medium.
pub(super) fn root(site: &Site, medium: Medium) -> Option<PathBuf> {
    let base = match medium {
        Medium::Disk => &site.data,
        Medium::Memory => &site.memory,
        Medium::None => return None,
    };
    Some(base.join(DIRECTORY))
}

fn directory(site: &Site, data: &experiment::Data) -> Option<PathBuf> {
    Some(root(site, data.medium)?.join(format!("{}x{}MiB", data.files.max(1), data.size_mib)))
}

fn remove_directory(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write_file(path: &Path, size_mib: u64, seed: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let go_on = |_| if guest::interrupt::requested() { Err(io::Error::other("interrupted")) } else { Ok(()) };
    bench::image::lay_out(&mut file, size_mib * MIB, seed, go_on)?;
    // What was written a minute ago must not be what the first measurement reads from memory. Advice may be ignored.
    let _ignored = fadvise(&file, 0, None, Advice::DontNeed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn site(directory: &TempDir) -> Site {
        let path = directory.path().to_owned();
        Site {
            kit: guest::Kit::default(),
            vringd: "vringd".into(),
            data: path.clone(),
            memory: path.clone(),
            scratch: path,
            programs: crate::stand::Programs::default(),
            ssh: None,
            limits: crate::stand::Limits::default(),
        }
    }

    fn wanted(medium: Medium, files: u32, size_mib: u64) -> experiment::Data {
        experiment::Data { medium, files, size_mib }
    }

    #[test]
    fn data_is_full_different_and_reused() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(&directory);
        let data = Data::lay_out(&site, &wanted(Medium::Disk, 2, 1)).unwrap().unwrap();
        let read = |number| fs::read(data.directory().join(file_name(number))).unwrap();
        let (one, two) = (read(0), read(1));
        assert_eq!((one.len() as u64, two.len() as u64), (MIB, MIB));
        let mut blocks: Vec<&[u8]> = one.chunks(4096).chain(two.chunks(4096)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 512, "no block is like another, none is empty");
        assert_eq!(data.image(), data.directory().join("file0"));

        // What a load has written stays: laying out again would have replaced it.
        fs::write(data.image(), vec![7; MIB as usize]).unwrap();
        let again = Data::lay_out(&site, &wanted(Medium::Disk, 2, 1)).unwrap().unwrap();
        assert_eq!(again, data);
        assert_eq!(fs::read(data.image()).unwrap()[0], 7);
    }

    #[test]
    fn what_is_not_complete_is_laid_out_again() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(&directory);
        let data = Data::lay_out(&site, &wanted(Medium::Disk, 1, 1)).unwrap().unwrap();
        fs::write(data.image(), "short").unwrap();
        let again = Data::lay_out(&site, &wanted(Medium::Disk, 1, 1)).unwrap().unwrap();
        assert_eq!(fs::metadata(again.image()).unwrap().len(), MIB);
        fs::remove_file(again.directory.join(MARKER)).unwrap();
        fs::write(again.image(), vec![7; MIB as usize]).unwrap();
        let again = Data::lay_out(&site, &wanted(Medium::Disk, 1, 1)).unwrap().unwrap();
        assert!(fs::read(again.image()).unwrap().iter().any(|byte| *byte != 7), "no marker, no data");
    }

    #[test]
    fn nothing_of_it_stays_and_nothing_else_goes() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(&directory);
        let one = Data::lay_out(&site, &wanted(Medium::Disk, 1, 1)).unwrap().unwrap();
        let two = Data::lay_out(&site, &wanted(Medium::Disk, 1, 2)).unwrap().unwrap();
        one.remove().unwrap();
        assert!(!one.directory().exists() && two.image().exists());
        two.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path().join(DIRECTORY)).unwrap().count(), 0);
        // Removing what is gone is no error.
        two.remove().unwrap();
    }

    #[test]
    fn without_room_nothing_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(&directory);
        for medium in [Medium::Disk, Medium::Memory] {
            let trouble = Data::lay_out(&site, &wanted(medium, 4, 1 << 40)).unwrap_err();
            let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
            assert!(reason.starts_with("not enough room: 4398046511104 MiB"), "{reason}");
            assert!(!directory.path().join(DIRECTORY).join("4x1099511627776MiB").exists());
        }
        assert_eq!(Data::lay_out(&site, &wanted(Medium::None, 1, 1)).unwrap(), None);
    }
}
