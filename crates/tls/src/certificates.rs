//! The certificates of one address, which may be renewed while it is served.

use crate::files::{Files, Places, Stamps};
use crate::server::server;
use crate::{Session, SessionError, TlsError};
use rustls::ServerConfig;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use values::Tls;
use zeroize::Zeroizing;

/// Certificates and a key, as they are in a directory.
pub struct Certificates {
    about: Tls,
    current: Mutex<Current>,
}

struct Current {
    files: Files,
    /// Of the files that were read or tried last.
    stamps: Stamps,
    server: Arc<ServerConfig>,
}

impl Certificates {
    /// Reads what `about` asks for.
    ///
    /// # Errors
    /// A file that is missing, damaged, everybody's, or does not go with another one.
    pub fn read(about: &Tls) -> Result<Certificates, TlsError> {
        let (stamps, files) = (Stamps::of(&about.certificates), Files::read(about)?);
        let read = Certificates::new(about, files, stamps)?;
        // They are looked for again, wherever this process is then.
        let certificates = std::path::absolute(&about.certificates).unwrap_or_else(|_| about.certificates.clone());
        Ok(Certificates { about: Tls { certificates, ..read.about }, ..read })
    }

    /// Goes on with what another program has [handed over](Self::hand_over). The files are looked at when the next client comes.
    ///
    /// # Errors
    /// Bytes that are no certificates.
    pub fn adopt(about: &Tls, handed: &[u8]) -> Result<Certificates, TlsError> {
        // What they say of the place of an error may have a piece of the key.
        let files = serde_json::from_slice(handed).map_err(|_| TlsError::Handed("they are of no known form".into()))?;
        Certificates::new(about, files, Stamps::default())
    }

    /// What another program needs to go on: with the private key.
    pub fn hand_over(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(serde_json::to_vec(&self.lock().files).unwrap_or_default())
    }

    /// A session with a client that has just begun. Looks whether files were renewed, which may wait for a disk; where they cannot be
    /// used, those before are.
    ///
    /// # Errors
    /// No session can be made.
    pub fn session(&self) -> Result<Session, SessionError> {
        Session::new(self.server())
    }

    /// Whether clients need no certificate.
    pub fn admit_anybody(&self) -> bool {
        self.about.clients_may_be_anonymous
    }

    fn new(about: &Tls, files: Files, stamps: Stamps) -> Result<Certificates, TlsError> {
        let server = Arc::new(server(&files, &Places::in_directory(&about.certificates))?);
        Ok(Certificates { about: about.clone(), current: Mutex::new(Current { files, stamps, server }) })
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server(&self) -> Arc<ServerConfig> {
        let directory = &self.about.certificates;
        let now = Stamps::of(directory);
        let mut current = self.lock();
        if current.stamps != now {
            // Once for each change: what cannot be used now can when its other half is there, which is another change.
            current.stamps = now;
            let renewed = Files::read(&self.about).and_then(|files| {
                let renewed = files != current.files;
                let server = server(&files, &Places::in_directory(directory))?;
                Ok((renewed, files, server))
            });
            match renewed {
                Ok((false, ..)) => {}
                Ok((true, files, server)) => {
                    tracing::info!("{}: renewed certificates hold from now on", directory.display());
                    (current.files, current.server) = (files, Arc::new(server));
                }
                Err(error) => tracing::warn!("{error}; the certificates from before hold on"),
            }
        }
        current.server.clone()
    }
}

/// Without what is secret.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({})", self.about.certificates.display())
    }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
