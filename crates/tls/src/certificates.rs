//! The certificates of one address, which may be renewed while it is served.

use crate::files::{Files, Places, Stamps};
use crate::server::server;
use crate::{Session, SessionError, TlsError};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use values::Tls;
use zeroize::Zeroizing;

/// How long a client waits for files to be looked at: a disk that has to start spinning takes as long. After that it is served with what
/// there is, and at once where a look has taken as long already.
const LOOK: Duration = Duration::from_secs(3);

/// The name of a thread that looks at files: where they hang it stays behind, whatever becomes of their address.
pub const LOOK_THREAD: &str = "tls-files";

/// What goes on with a client's session.
type Then = Box<dyn FnOnce(Result<Session, SessionError>) + Send>;

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
    /// When the one began that goes on.
    since: Option<Instant>,
    /// Whether it was told that it takes long.
    is_told: bool,
    /// Clients, in the order in which they came.
    waiting: VecDeque<Waiting>,
    /// Somebody lets them go on when it is time.
    is_kept: bool,
}

/// A client that has just begun.
struct Waiting {
    /// The look that sees what was there when it came.
    wanted: u64,
    until: Instant,
    then: Then,
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

    /// Has a thread look whether files were renewed, and calls `then` with a session when it has, in some seconds at most: where the
    /// files cannot be used or seen, those before are. All who wait share a look. The first of them comes back when nobody waits any
    /// more and calls what the others have left here, which come back at once.
    pub fn begin(&self, then: impl FnOnce(Result<Session, SessionError>) + Send + 'static) {
        self.held.begin(Box::new(then));
    }

    /// A session with a client, by the files that were read last: waits for nothing.
    ///
    /// # Errors
    /// No session can be made.
    pub fn session(&self) -> Result<Session, SessionError> {
        self.held.session()
    }

    /// Whether a look has gone on for longer than `moment`, which is waited for.
    pub fn look_lasts(&self, moment: Duration) -> bool {
        let mut looks = self.held.looks();
        let Some(since) = looks.since else { return false };
        while looks.since == Some(since) {
            let left = moment.saturating_sub(since.elapsed());
            if left.is_zero() {
                return true;
            }
            looks = self.held.looked.wait_timeout(looks, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Where the files are.
    pub fn directory(&self) -> &Path {
        &self.held.about.certificates
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
}

impl Looks {
    /// Takes out the first client that has waited for as long as it has to: those behind it have come later and do not before.
    fn take_ready(&mut self) -> Option<Waiting> {
        let now = Instant::now();
        let hangs = self.since.is_some_and(|since| now.saturating_duration_since(since) >= LOOK);
        let first = self.waiting.front()?;
        let is_ready = hangs || first.wanted <= self.ended || first.until <= now;
        if is_ready { self.waiting.pop_front() } else { None }
    }

    /// How long none of them is ready, if the look does not end.
    fn patience(&self) -> Duration {
        let until = self.waiting.front().map(|first| first.until);
        let until = until.into_iter().chain(self.since.map(|since| since + LOOK)).min();
        until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()))
    }
}

/// Dropped by a panic: the next client to come lets all go on.
struct Keeper<'a>(&'a Held);

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        self.0.looks().is_kept = false;
    }
}

/// A look that goes on; it has ended when this is dropped, also by a panic.
struct Look<'a>(&'a Held);

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.0.looked();
    }
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> Result<Session, SessionError> {
        let server = self.lock().server.clone();
        Session::new(server)
    }

    fn begin(self: &Arc<Held>, then: Then) {
        let mut looks = self.looks();
        // One that goes on may have seen what was there before.
        let wanted = looks.begun + 1;
        looks.waiting.push_back(Waiting { wanted, until: Instant::now() + LOOK, then });
        if !looks.is_kept {
            looks.is_kept = true;
            drop(looks);
            self.keep();
        }
    }

    /// Lets clients go on until none waits.
    fn keep(self: &Arc<Held>) {
        let keeper = Keeper(self);
        let mut looks = self.looks();
        loop {
            if let Some(ready) = looks.take_ready() {
                let is_late = ready.wanted > looks.ended && looks.since.is_some();
                let is_told = is_late && std::mem::replace(&mut looks.is_told, true);
                drop(looks);
                if is_late && !is_told {
                    let directory = self.about.certificates.display();
                    tracing::warn!("{directory}: does not answer in time; the certificates from before hold on");
                }
                (ready.then)(self.session());
            } else if looks.waiting.is_empty() {
                // Under the lock: the next to come keeps this up again.
                looks.is_kept = false;
                std::mem::forget(keeper);
                return;
            } else if looks.begun == looks.ended {
                self.start_look(looks);
            } else {
                let patience = looks.patience();
                drop(self.looked.wait_timeout(looks, patience));
            }
            looks = self.looks();
        }
    }

    fn start_look(self: &Arc<Held>, mut looks: MutexGuard<'_, Looks>) {
        looks.begun += 1;
        (looks.since, looks.is_told) = (Some(Instant::now()), false);
        drop(looks);
        let held = self.clone();
        let started = thread::Builder::new().name(LOOK_THREAD.to_owned()).spawn(move || held.look(Files::read));
        if let Err(error) = started {
            self.looked();
            let directory = self.about.certificates.display();
            tracing::warn!(%error, "{directory}: is not looked at; the certificates from before hold on");
        }
    }

    /// Looks at the files, on a thread for it alone: what hangs there keeps nobody.
    fn look(&self, read: impl FnOnce(&Tls) -> Result<Files, TlsError>) {
        let _ends = Look(self);
        self.renew(read);
    }

    fn looked(&self) {
        let mut looks = self.looks();
        (looks.ended, looks.since) = (looks.begun, None);
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
        let passes = renewed.as_ref().is_err_and(TlsError::passes);
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
