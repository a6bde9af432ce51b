//! What can be wrong with certificates, and with what a client says.

use secret::SecretError;
use std::io;
use std::path::PathBuf;

/// Why certificates cannot be used. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum TlsError {
    /// {path}: {source}
    Read {
        /// The file.
        path: PathBuf,
        /// Why it is not taken.
        source: SecretError,
    },
    /// {path}: is missing: put the certificate there that signs those of clients, or set `tls.clients_may_be_anonymous`
    NoAuthority {
        /// The file.
        path: PathBuf,
    },
    /// {path}: has no certificate: it must be in PEM form, with `BEGIN CERTIFICATE`
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// {path}: has no private key: it must be in PEM form (PKCS #8, PKCS #1 or SEC 1), without a passphrase
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// {path}: is damaged: {why}
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// {path}: has two lists of one authority, of which one alone would be heeded: leave the older one out
    TwoLists {
        /// The file.
        path: PathBuf,
    },
    /// {path}: has vanished: put a list there, or restart to revoke nothing any more
    NoList {
        /// The file.
        path: PathBuf,
    },
    /// {key}: does not belong to the first certificate of {chain}: give the key that it was made for
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        chain: PathBuf,
    },
    /// certificates that were handed over: they are of no known form
    Handed,
}

impl TlsError {
    /// Whether the same files may be read the next time: descriptors, memory or a device were missing for a moment.
    pub(crate) fn passes(&self) -> bool {
        let TlsError::Read { source: SecretError::Read(error), .. } = self else { return false };
        !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
    }
}

/// Why a session with a client ends. The doc comments are the messages.
#[derive(Debug, Clone, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum SessionError {
    /// TLS: {0}
    Protocol(String),
    /// TLS: a message of the handshake is longer than this server takes
    LongMessage,
    /// TLS: the keys of the session are used up
    UsedUp,
}

impl From<rustls::Error> for SessionError {
    fn from(error: rustls::Error) -> SessionError {
        SessionError::Protocol(error.to_string())
    }
}
