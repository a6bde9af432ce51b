//! The passphrase of a container, from a file.

use crate::LuksError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Longest key file, in bytes. Source: cryptsetup's default for `--key-file`.
const BYTES_MAX: u64 = 8 << 20;

/// All bytes of a file. They are wiped when it is dropped, and never shown.
pub struct Passphrase {
    bytes: Zeroizing<Vec<u8>>,
    /// Where they come from, for messages.
    pub(crate) path: PathBuf,
}

impl Passphrase {
    /// Reads a key file: every byte counts, a newline at the end too.
    ///
    /// # Errors
    /// It cannot be read, is empty or too long, or is everybody's.
    pub fn read(path: &Path) -> Result<Passphrase, LuksError> {
        let refused = |reason| LuksError::Key { path: path.to_owned(), reason };
        let read = secret::read(path, BYTES_MAX);
        let bytes = read.map_err(|source| LuksError::KeyFile { path: path.to_owned(), source })?;
        if bytes.is_empty() {
            return Err(refused("is empty: write the passphrase into it, without a newline"));
        }
        Ok(Passphrase { bytes, path: path.to_owned() })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Passphrase({})", self.path.display())
    }
}

/// Fills a buffer with what nobody can guess.
pub(crate) fn random(buf: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::rand::getrandom(&mut buf[done..], rustix::rand::GetRandomFlags::empty()) {
            Ok(bytes) => done += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
