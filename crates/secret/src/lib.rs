//! Files that hold a secret: a passphrase, a private key. They are read once, refused where anybody may read them, and wiped from memory
//! behind the last use.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// Why a file is not taken. The doc comments are the messages, without the path.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum SecretError {
    /// cannot be read: {0}
    Read(#[source] io::Error),
    /// is no regular file: give the path of one
    Kind,
    /// may be read or written by anybody: `chmod o= FILE` takes that back
    Public,
    /// has {bytes} bytes, and a key has {most} at most
    Long {
        /// Its size.
        bytes: u64,
        /// The bound, in bytes.
        most: u64,
    },
}

/// All bytes of the file at `path`, at most `most` of them.
///
/// # Errors
/// It cannot be read, is no regular file, too long, or everybody's.
pub fn read(path: &Path, most: u64) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    read_if(path, most, |mode| mode & 0o007 == 0)
}

/// As [`read`], of a file beside a secret that may be everybody's, such as a certificate.
///
/// # Errors
/// As [`read`], but for whose it is.
pub fn read_public(path: &Path, most: u64) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    read_if(path, most, |_| true)
}

fn read_if(path: &Path, most: u64, admits: impl Fn(u32) -> bool) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    // NONBLOCK: a FIFO must not keep us waiting before we have seen that it is one.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut file = File::options().read(true).custom_flags(flags).open(path).map_err(SecretError::Read)?;
    let about = file.metadata().map_err(SecretError::Read)?;
    if !about.is_file() {
        return Err(SecretError::Kind);
    }
    if !admits(about.mode()) {
        return Err(SecretError::Public);
    }
    if about.len() > most {
        return Err(SecretError::Long { bytes: about.len(), most });
    }
    // It does not grow, so that no copy of its beginning is left behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(about.len() as usize + 1));
    (&mut file).take(about.len()).read_to_end(&mut bytes).map_err(SecretError::Read)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_not_everybodys_is_read_to_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, b"secret\n").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            read(file.path(), 7).map(|bytes| bytes.to_vec())
        };
        // A group may share it.
        for mode in [0o600, 0o640] {
            assert_eq!(read(mode).unwrap(), b"secret\n");
        }
        for mode in [0o604, 0o602, 0o601, 0o644] {
            assert!(matches!(read(mode), Err(SecretError::Public)), "{mode:o}");
            assert_eq!(read_public(file.path(), 7).unwrap().to_vec(), b"secret\n");
        }
        assert!(matches!(super::read(file.path(), 6), Err(SecretError::Public)));
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(super::read(file.path(), 6), Err(SecretError::Long { bytes: 7, most: 6 })));
        assert!(matches!(super::read(file.path().parent().unwrap(), 6), Err(SecretError::Kind)));
        assert!(matches!(super::read(Path::new("/nonexistent/key"), 6), Err(SecretError::Read(_))));
    }
}
