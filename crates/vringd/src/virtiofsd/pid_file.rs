//! The file beside the socket that says which process serves it, and that no other does.

use crate::failure::Failure;
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
    /// [`Failure::Usage`] when another process holds it or it cannot be written.
    pub(crate) fn new(path: &Path) -> Result<PidFile, Failure> {
        let failed = |error: std::io::Error| Failure::Usage(format!("cannot write {}: {error}", path.display()));
        let mut file = loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
            let file = file.map_err(failed)?;
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
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(PidFile { _locked: file })
    }
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
    fn a_directory_that_is_not_there_is_named() {
        let refused = PidFile::new(Path::new("/nonexistent/fs.sock.pid")).unwrap_err();
        assert!(refused.to_string().contains("/nonexistent/fs.sock.pid"), "{refused}");
    }
}
