//! The passphrase of a container, from a file.

use crate::LuksError;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
        let failed = |source| LuksError::KeyFile { path: path.to_owned(), source };
        let refused = |reason| LuksError::Key { path: path.to_owned(), reason };
        // NONBLOCK: a FIFO must not keep us waiting before we have seen that it is one.
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(refused("is no regular file: give the path of one"));
        }
        if about.mode() & 0o007 != 0 {
            return Err(refused("may be read or written by anybody: `chmod o= FILE` takes that back"));
        }
        if about.len() > BYTES_MAX {
            return Err(refused("has more than 8 MiB: a key file is a passphrase"));
        }
        // It does not grow, so that no copy of its beginning is left behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(about.len() as usize + 1));
        (&mut file).take(about.len()).read_to_end(&mut bytes).map_err(failed)?;
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
