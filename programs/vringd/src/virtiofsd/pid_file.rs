//! The file beside the socket that says which process serves it, and that no other does.

use crate::failure::Failure;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A locked file with the process id. The lock (flock(2)) is shared with a child and lasts until the last of both ends;
/// the file stays, as virtiofsd's does, because whoever removed it might remove its successor's.
#[derive(Debug)]
pub(crate) struct PidFile {
    _locked: File,
}

impl PidFile {
    /// Makes or takes over the file.
    ///
    /// # Errors
    /// [`Failure::Usage`] when another process holds it, it cannot be written, or it is no file of its own: whoever may write to
    /// its directory could have it name a file that only this user may change.
    pub(crate) fn new(path: &Path) -> Result<PidFile, Failure> {
        let failed = |error: std::io::Error| Failure::Usage(format!("cannot write {}: {error}", path.display()));
        let mut file = loop {
            let file = open(path).map_err(failed)?;
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => {
                    let path = path.display();
                    Failure::Usage(format!("{path} is locked: another process serves this socket; stop it first"))
                }
                TryLockError::Error(error) => failed(error),
            })?;
            // Whoever held it may have removed it between our opening and locking it.
            let there =
                std::fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|our| our.ino() == now.ino()));
            if there {
                break file;
            }
        };
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() || about.nlink() != 1 {
            let path = path.display();
            return Err(Failure::Usage(format!("{path} is another name of a file, or no file at all: remove it")));
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(PidFile { _locked: file })
    }
}

/// Follows no link, and does not wait for whoever reads a pipe.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed());
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == Errno::LOOP.raw_os_error() => std::io::Error::other("it is a symbolic link: remove it"),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fs.sock.pid");
        std::fs::write(&path, "123456789 was here before").unwrap();
        let first = PidFile::new(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        let refused = PidFile::new(&path).unwrap_err();
        assert!(matches!(&refused, Failure::Usage(line) if line.contains("is locked")), "{refused}");
        drop(first);
        PidFile::new(&path).unwrap();
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("fs.sock.pid"), directory.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let refused = PidFile::new(&path).unwrap_err();
        assert!(refused.to_string().contains("fs.sock.pid"), "{refused}");
        std::fs::remove_file(&path).unwrap();
        // A second name of a file is as good as a link to it.
        std::fs::hard_link(&victim, &path).unwrap();
        assert!(PidFile::new(&path).unwrap_err().to_string().contains("another name"));
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let refused = PidFile::new(Path::new("/nonexistent/fs.sock.pid")).unwrap_err();
        assert!(refused.to_string().contains("/nonexistent/fs.sock.pid"), "{refused}");
    }
}
