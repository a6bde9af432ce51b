//! The certificates of one address, which may be renewed while it is served.

use crate::files::{Files, Places, Stamps};
use crate::server::server;
use crate::{Session, SessionError, TlsError};
use rustls::ServerConfig;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use values::Tls;
use zeroize::Zeroizing;

/// How long a client waits for files to be looked at, from the look's beginning: a disk that has to start spinning takes as long. After
/// that it is served with what there is.
const LOOK: Duration = Duration::from_secs(3);

/// Certificates and a key, as they are in a directory.
pub struct Certificates {
    held: Arc<Held>,
}

/// What a thread that looks at the files has to itself when these hang.
struct Held {
    about: Tls,
    current: Mutex<Current>,
    looks: Mutex<Looks>,
    looked: Condvar,
}

struct Current {
    files: Files,
    /// Of the files that were read or tried last.
    stamps: Stamps,
    /// Of those that a look has tried to read last, of which it was told what came of that.
    tried: Option<Stamps>,
    server: Arc<ServerConfig>,
}

/// Looks at the files, of which there is one at a time.
#[derive(Default)]
struct Looks {
    begun: u64,
    ended: u64,
    /// When the one began that goes on, and whether it was told that it takes long.
    since: Option<(Instant, bool)>,
}

impl Certificates {
    /// Reads what `about` asks for.
    ///
    /// # Errors
    /// A file that is missing, damaged, everybody's, or does not go with another one.
    pub fn read(about: &Tls) -> Result<Certificates, TlsError> {
        let (stamps, files) = (Stamps::of(&about.certificates), Files::read(about)?);
        Certificates::new(about, files, stamps)
    }

    /// Goes on with what another program has [handed over](Self::hand_over). The files are looked at when the next client comes.
    ///
    /// # Errors
    /// Bytes that are no certificates.
    pub fn adopt(about: &Tls, handed: &[u8]) -> Result<Certificates, TlsError> {
        // What they say of the place of an error may have a piece of the key.
        let files = serde_json::from_slice(handed).map_err(|_| TlsError::Handed)?;
        Certificates::new(about, files, Stamps::default())
    }

    /// What another program needs to go on: with the private key.
    pub fn hand_over(&self) -> Zeroizing<Vec<u8>> {
        let current = self.lock();
        // It does not grow, so that no copy of its beginning is left behind: a byte is a number and a comma.
        let mut handed = Zeroizing::new(Vec::with_capacity(4 * current.files.bytes() + 256));
        match serde_json::to_writer(&mut *handed, &current.files) {
            Ok(()) => handed,
            Err(_) => Zeroizing::default(),
        }
    }

    /// A session with a client that has just begun. Has a thread of its own look whether files were renewed, and waits for it for some
    /// seconds at most; where they cannot be used or seen, those before are.
    ///
    /// # Errors
    /// No session can be made.
    pub fn session(&self) -> Result<Session, SessionError> {
        Session::new(self.server())
    }

    fn new(about: &Tls, files: Files, stamps: Stamps) -> Result<Certificates, TlsError> {
        let server = Arc::new(server(&files, &Places::in_directory(&about.certificates))?);
        // They are looked for again, wherever this process is then.
        let certificates = std::path::absolute(&about.certificates).unwrap_or_else(|_| about.certificates.clone());
        let held = Held {
            about: Tls { certificates, ..about.clone() },
            current: Mutex::new(Current { files, stamps, tried: None, server }),
            looks: Mutex::default(),
            looked: Condvar::new(),
        };
        Ok(Certificates { held: Arc::new(held) })
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.held.lock()
    }

    fn server(&self) -> Arc<ServerConfig> {
        self.held.look_soon();
        self.lock().server.clone()
    }
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the files looked at from now on, and waits for that while it does not take too long.
    fn look_soon(self: &Arc<Held>) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        // One that goes on may have seen what was there before.
        let wanted = looks.begun + 1;
        while looks.ended < wanted {
            let (since, told) = *looks.since.get_or_insert((Instant::now(), false));
            if looks.begun == looks.ended {
                let held = self.clone();
                looks.begun += 1;
                if let Err(error) = thread::Builder::new().name("tls-files".to_owned()).spawn(move || held.look()) {
                    looks.ended = looks.begun;
                    looks.since = None;
                    let directory = self.about.certificates.display();
                    return tracing::warn!(%error, "{directory}: is not looked at; the certificates from before hold on");
                }
            }
            let left = LOOK.saturating_sub(since.elapsed());
            if left.is_zero() {
                looks.since = Some((since, true));
                if !told {
                    let directory = self.about.certificates.display();
                    tracing::warn!("{directory}: does not answer; the certificates from before hold on");
                }
                return;
            }
            looks = self.looked.wait_timeout(looks, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Looks at the files, on a thread for it alone: what hangs there keeps nobody.
    fn look(&self) {
        self.renew(Files::read);
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.ended = looks.begun;
        looks.since = None;
        drop(looks);
        self.looked.notify_all();
    }

    fn renew(&self, read: impl FnOnce(&Tls) -> Result<Files, TlsError>) {
        let directory = &self.about.certificates;
        let now = Stamps::of(directory);
        let (before, stamps) = {
            let current = self.lock();
            if current.stamps == now {
                return;
            }
            (current.files.clone(), current.stamps)
        };
        let places = Places::in_directory(directory);
        let renewed = read(&self.about).and_then(|files| {
            // A list that is gone says nothing: who was revoked stays so until somebody says otherwise.
            if before.revoked.is_some() && files.revoked.is_none() {
                return Err(TlsError::NoList { path: places.revoked.clone() });
            }
            Ok((server(&files, &places)?, files))
        });
        let mut current = self.lock();
        // Once for each change: what cannot be used now can when its other half is there, which is another change. What could not be read
        // for a moment is read again, or the list of who is revoked would never hold.
        let passes = renewed.as_ref().is_err_and(|error| error.passes());
        let is_told = current.tried.replace(now) == Some(now);
        current.stamps = if passes { stamps } else { now };
        match renewed {
            Ok((_, files)) if files == before => {}
            Ok((server, files)) => {
                (current.files, current.server) = (files, Arc::new(server));
                drop(current);
                tracing::info!("{}: renewed certificates hold from now on", directory.display());
            }
            Err(_) if passes && is_told => {}
            Err(error) => {
                drop(current);
                tracing::warn!("{error}; the certificates from before hold on");
            }
        }
    }
}

/// Without what is secret.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificates({})", self.held.about.certificates.display())
    }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
