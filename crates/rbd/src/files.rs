//! Files that Ceph's library reads when a client is made: looked at before it does.
//!
//! It reads whatever it finds to its end: a FIFO that nobody writes holds the thread that makes the client, and `/dev/zero` takes all memory.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// More than any configuration or keyring has.
const BYTES_MAX: u64 = 1 << 20;

/// Why a file is not to be read. The doc comments are the messages.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub(crate) enum Unreadable {
    /// {0}
    Absent(io::Error),
    /// it is no regular file
    Special,
    /// it has {0} bytes, more than 1 MiB
    Long(u64),
}

impl From<Unreadable> for io::Error {
    fn from(why: Unreadable) -> io::Error {
        match why {
            Unreadable::Absent(error) => error,
            why => io::Error::other(why.to_string()),
        }
    }
}

/// Whether it can be read, and is small.
pub(crate) fn look(path: &Path) -> Result<(), Unreadable> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let metadata = file.and_then(|file| file.metadata()).map_err(Unreadable::Absent)?;
    match metadata.len() {
        _ if !metadata.is_file() => Err(Unreadable::Special),
        bytes if bytes > BYTES_MAX => Err(Unreadable::Long(bytes)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn what_would_be_read_without_end_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let said = |path: &Path| look(path).unwrap_err().to_string();
        assert!(said(&path).starts_with("No such file"));
        let file = File::create(&path).unwrap();
        look(&path).unwrap();
        file.set_len(BYTES_MAX).unwrap();
        look(&path).unwrap();
        file.set_len(BYTES_MAX + 1).unwrap();
        assert_eq!(said(&path), "it has 1048577 bytes, more than 1 MiB");
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        for special in [&*path, directory.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert_eq!(said(special), "it is no regular file", "{}", special.display());
        }
    }
}
