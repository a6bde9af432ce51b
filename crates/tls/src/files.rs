//! The files of a directory, by the names that QEMU's `tls-creds-x509` gives them (its `docs/system/tls.rst`).

use crate::TlsError;
use secret::SecretError;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use values::Tls;
use zeroize::Zeroizing;

/// The server's certificate, and those between it and its authority.
const CHAIN: &str = "server-cert.pem";
/// Its private key.
const KEY: &str = "server-key.pem";
/// Who signs the certificates of clients.
const AUTHORITY: &str = "ca-cert.pem";
/// Which of them are revoked.
const REVOKED: &str = "ca-crl.pem";

/// Longest file of certificates, in bytes: a bundle of all authorities that browsers know has a fifth of it.
const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;
/// Longest private key, in bytes: RSA with 16384 bits takes 13 KiB.
const KEY_BYTES_MAX: u64 = 64 << 10;
/// Longest list of revoked certificates, in bytes.
const REVOKED_BYTES_MAX: u64 = 4 << 20;

/// What the files hold.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Files {
    pub(crate) chain: Zeroizing<Vec<u8>>,
    pub(crate) key: Zeroizing<Vec<u8>>,
    /// None where clients may be anonymous.
    pub(crate) authority: Option<Zeroizing<Vec<u8>>>,
    pub(crate) revoked: Option<Zeroizing<Vec<u8>>>,
}

/// Where they are, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) authority: PathBuf,
    pub(crate) revoked: PathBuf,
}

impl Places {
    pub(crate) fn in_directory(directory: &Path) -> Places {
        let of = |name| directory.join(name);
        Places { chain: of(CHAIN), key: of(KEY), authority: of(AUTHORITY), revoked: of(REVOKED) }
    }
}

impl Files {
    /// Reads what `about` asks for.
    ///
    /// # Errors
    /// A file that is missing or cannot be taken; a key that is everybody's.
    pub(crate) fn read(about: &Tls) -> Result<Files, TlsError> {
        let places = Places::in_directory(&about.certificates);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Read { path, source }
        };
        let chain = secret::read_public(&places.chain, CERTIFICATES_BYTES_MAX).map_err(failed(&places.chain))?;
        let key = secret::read(&places.key, KEY_BYTES_MAX).map_err(failed(&places.key))?;
        if about.clients_may_be_anonymous {
            return Ok(Files { chain, key, authority: None, revoked: None });
        }
        let authority = secret::read_public(&places.authority, CERTIFICATES_BYTES_MAX);
        let authority = authority.map_err(|source| match source {
            SecretError::Read(error) if error.kind() == io::ErrorKind::NotFound => {
                TlsError::NoAuthority { path: places.authority.clone() }
            }
            source => failed(&places.authority)(source),
        })?;
        let revoked = match secret::read_public(&places.revoked, REVOKED_BYTES_MAX) {
            Ok(revoked) => Some(revoked),
            Err(SecretError::Read(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(failed(&places.revoked)(source)),
        };
        Ok(Files { chain, key, authority: Some(authority), revoked })
    }
}

impl Files {
    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        let optional = [&self.authority, &self.revoked].into_iter().flatten();
        [&self.chain, &self.key].into_iter().chain(optional).map(|file| file.len()).sum()
    }
}

/// What tells whether a file is still the same one: its identity, its size, and when it was changed.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Stamps of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps([Stamp; 4]);

impl Stamps {
    /// As they are now. A file that cannot be seen has none.
    pub(crate) fn of(directory: &Path) -> Stamps {
        let Places { chain, key, authority, revoked } = Places::in_directory(directory);
        let stamp = |path: PathBuf| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.dev(), about.ino(), about.size(), about.ctime(), about.ctime_nsec()))
        };
        Stamps([chain, key, authority, revoked].map(stamp))
    }
}
