//! A file or device that something is written to: nothing that somebody misses is overwritten.

use crate::OpenError;
use crate::lock::ImageLock;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Whoever has put anything on a device has written here.
const LOOK_BYTES: usize = 1 << 20;

/// Why nothing can be written there.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum TargetError {
    /// {path}: cannot {what}: {source}
    Io {
        /// The file or device.
        path: PathBuf,
        /// What was done.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {0}
    Open(#[from] OpenError),
    /// {path}: is written, and cannot be brought to stable storage: {source}
    Keep {
        /// The file or device.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: {what}, which would be lost: `force` (`--force`) overwrites it
    Exists {
        /// The file or device.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// {path}: has {present_bytes} bytes and needs {needed_bytes}: use a larger device or a smaller size
    Small {
        /// The device.
        path: PathBuf,
        /// Its size.
        present_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
}

impl TargetError {
    fn io(path: &Path, what: &'static str) -> impl Fn(io::Error) -> TargetError {
        move |source| TargetError::Io { path: path.to_owned(), what, source }
    }
}

/// See the module. A file that was made for this is removed again unless it is kept.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    /// It was made, and nothing counts on it yet.
    made: bool,
    /// What was there and is still as it was, and the size that it is to have if it is a file.
    found: Option<(File, Option<u64>)>,
    /// Nobody else writes to what was there, until it is cleared.
    lock: Option<ImageLock>,
    /// It reads as zeroes, at the latest when it is cleared.
    pub blank: bool,
}

impl Target {
    /// Makes a sparse file of `bytes`, or checks that a device has them. Whatever is there is only overwritten with `force`, and not
    /// before it is [cleared](Self::clear).
    ///
    /// # Errors
    /// Somebody uses it, something is there, there is no room, or it is no file and no device.
    pub fn make(path: &Path, bytes: u64, force: bool) -> Result<Target, TargetError> {
        let path = path.to_owned();
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => {
                // From here on it is removed if something fails.
                let target = Target { path, made: true, found: None, lock: None, blank: true };
                File::from(fd).set_len(bytes).map_err(TargetError::io(&target.path, "make a file of this size"))?;
                return Ok(target);
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(TargetError::io(&path, "make")(errno.into())),
        }
        let fd = rustix::fs::open(&path, flags, Mode::empty());
        let fd = fd.map_err(|errno| TargetError::io(&path, "open")(errno.into()))?;
        crate::file::check_kind(&path, &fd)?;
        // Nobody must be using what is about to be overwritten.
        let lock = Some(ImageLock::take(&path, &fd, true)?);
        crate::late::settled(&path, &fd, true)?;
        let about = rustix::fs::fstat(&fd).map_err(|errno| TargetError::io(&path, "inspect")(errno.into()))?;
        if FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice {
            let mut target = Target::device(path, &fd, bytes, force)?;
            (target.lock, target.found) = (lock, Some((File::from(fd), None)));
            return Ok(target);
        }
        if about.st_size > 0 && !force {
            return Err(TargetError::Exists { path, what: "is a file with contents" });
        }
        let file = File::from(fd);
        if bytes > about.st_size.unsigned_abs() {
            // A size that the file system has not is refused before anything is lost.
            let fits = file.set_len(bytes).and_then(|()| file.set_len(about.st_size.unsigned_abs()));
            fits.map_err(TargetError::io(&path, "make a file of this size"))?;
        }
        Ok(Target { path, made: false, found: Some((file, Some(bytes))), lock, blank: true })
    }

    /// Nothing stands against it any more: what a file held is gone.
    ///
    /// # Errors
    /// The file system has no file of that size.
    pub fn clear(&mut self) -> Result<(), TargetError> {
        let _until_the_end = self.lock.take();
        let Some((file, Some(bytes))) = self.found.take() else { return Ok(()) };
        let fresh = file.set_len(0).and_then(|()| file.set_len(bytes));
        fresh.map_err(TargetError::io(&self.path, "make a file of this size"))
    }

    /// The first bytes of what is there and locked, `most` or fewer; none of what was made here, or is cleared.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn begins(&self, most: usize) -> Result<Vec<u8>, TargetError> {
        let Some((file, _)) = &self.found else { return Ok(Vec::new()) };
        let (mut file, mut bytes) = (file, Vec::with_capacity(most));
        let read = file.rewind().and_then(|()| file.take(most as u64).read_to_end(&mut bytes));
        read.map_err(TargetError::io(&self.path, "read"))?;
        Ok(bytes)
    }

    fn device(path: PathBuf, fd: &OwnedFd, needed_bytes: u64, force: bool) -> Result<Target, TargetError> {
        let failed = |errno: Errno| TargetError::io(&path, "read")(errno.into());
        let present_bytes = rustix::fs::seek(fd, SeekFrom::End(0)).map_err(failed)?;
        if present_bytes < needed_bytes {
            return Err(TargetError::Small { path, present_bytes, needed_bytes });
        }
        let mut begin = vec![0; LOOK_BYTES];
        let got = rustix::io::pread(fd, &mut begin[..], 0).map_err(failed)?;
        if !force && begin.iter().take(got).any(|byte| *byte != 0) {
            return Err(TargetError::Exists { path, what: "is a device with contents" });
        }
        Ok(Target { path, made: false, found: None, lock: None, blank: false })
    }

    /// It is whole: it stays, also when the power goes.
    ///
    /// # Errors
    /// The kernel cannot bring it to stable storage.
    pub fn keep(mut self) -> Result<(), TargetError> {
        let failed = |source| TargetError::Keep { path: self.path.clone(), source };
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        self.made = false;
        Ok(())
    }

    /// Somebody else has it now: it stays as it is.
    pub fn leave(mut self) {
        self.made = false;
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volume");
        drop(Target::make(&path, 4096, false).unwrap());
        assert!(!path.exists(), "nobody kept it");
        Target::make(&path, 4096, false).unwrap().keep().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
        std::fs::write(&path, "precious").unwrap();
        let error = Target::make(&path, 4096, false).unwrap_err();
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let mut target = Target::make(&path, 4096, true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"precious", "something else may be wrong");
        assert_eq!((&target.begins(100).unwrap()[..], &target.begins(3).unwrap()[..]), (&b"precious"[..], &b"pre"[..]));
        target.clear().unwrap();
        assert!(target.begins(100).unwrap().is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4096]);
        drop(target);
        assert!(path.exists(), "it was there before");
        // A size that there is not costs nothing.
        std::fs::write(&path, "precious").unwrap();
        Target::make(&path, u64::MAX, true).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        // Nor is what somebody opens meanwhile emptied under him.
        let target = Target::make(&path, 4096, true).unwrap();
        let other = File::options().read(true).write(true).open(&path).unwrap();
        assert!(ImageLock::take(&path, &other, true).is_err());
        drop(target);
        std::fs::write(&path, "").unwrap();
        let mut target = Target::make(&path, 4096, false).unwrap();
        target.clear().unwrap();
        target.keep().unwrap();
    }

    #[test]
    fn only_files_and_devices_are_targets() {
        let error = Target::make(Path::new("/dev/null"), 4096, true).unwrap_err();
        assert!(error.to_string().contains("character device"), "{error}");
        assert!(Target::make(Path::new("/nonexistent/volume"), 4096, true).is_err());
    }
}
