//! TLS between a connection and its inbox and outbox: a connection without it pays one look at an empty field.
//!
//! A handshake's arithmetic takes a millisecond and more, which is no worker's to spend: it runs on threads for that, and the session is
//! with them meanwhile. Data is opened and sealed on the worker, as it would be copied there.

use engine::{Io, Reply, Token};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use storage::kit::{Jobs, Threads};
use tls::{Certificates, Opened, Session, SessionError, Shaken};

/// Threads for handshakes, of all addresses.
static HANDSHAKES: Threads = Threads::new("tls", 2, "TLS handshakes run on the workers and may delay other requests");

/// The token of a handshake's step on another thread.
pub(crate) const SHAKEN: Token = Token::other(2);

/// Bytes without data that a turn opens before other rings have theirs. Word of another key has 27 bytes and takes some microseconds, in which
/// as many bytes of data are nothing: so these are a millisecond at most.
const IDLE_BYTES_MAX: usize = 8 << 10;

/// What one step of a handshake has come to, and the session with it.
type Step = Result<(Box<Session>, Result<Shaken, SessionError>), SessionError>;

/// What the clients of an address have done elsewhere. Their steps do not wait behind those of them for whom files are looked at.
#[derive(Clone)]
pub(crate) struct Handshakes {
    steps: Jobs,
    looks: Jobs,
}

impl Handshakes {
    /// None yet.
    pub(crate) fn new() -> Handshakes {
        Handshakes { steps: Jobs::on(&HANDSHAKES), looks: Jobs::on(&HANDSHAKES) }
    }

    /// Starts the threads for them with the caller's affinity and cgroup, and not with those of a worker.
    pub(crate) fn prepare() {
        HANDSHAKES.prepare();
    }
}

/// A step that goes on elsewhere.
pub(super) struct Away {
    /// Tells the worker that it has ended.
    reply: Mutex<Option<Reply>>,
    step: Mutex<Option<Step>>,
}

impl Away {
    fn tell(&self) {
        let reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        reply.into_iter().for_each(|reply| reply.complete(0));
    }

    fn take_step(&self) -> Option<Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Who makes the step: the worker is told when this is dropped, also by a panic.
struct Maker(Arc<Away>);

impl Maker {
    fn makes(self, step: Step) {
        *self.0.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.0.tell();
    }
}

/// How far a connection's TLS has come.
pub(super) enum Stage {
    /// What is said in the open has to leave first: the answer to who asked for TLS.
    Open(Arc<Certificates>),
    /// Another thread goes on with the handshake, and leaves the session there.
    Elsewhere(Arc<Away>),
    /// The client has to go on with it.
    Shaking(Box<Session>),
    /// It protects what is said.
    Begun(Box<Session>),
    /// It is over, and nobody says anything any more, but for what the session has left.
    Over(Option<Box<Session>>),
}

/// TLS of one connection.
pub(super) struct Secure {
    pub(super) stage: Stage,
    /// The kernel has what is unsent.
    pub(super) lent: bool,
    /// Something has come since the handshake went on.
    pub(super) fresh: bool,
    /// Bytes that were opened in this turn and held no data.
    idle_bytes: usize,
    handshakes: Handshakes,
}

impl Secure {
    /// A handshake that is about to begin.
    pub(super) fn new(certificates: Arc<Certificates>, handshakes: Handshakes) -> Secure {
        Secure { stage: Stage::Open(certificates), lent: false, fresh: false, idle_bytes: 0, handshakes }
    }

    /// The session, where it is here.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.stage {
            Stage::Shaking(session) | Stage::Begun(session) | Stage::Over(Some(session)) => Some(session),
            Stage::Open(_) | Stage::Elsewhere(_) | Stage::Over(None) => None,
        }
    }

    /// What was sealed and not sent, in bytes.
    pub(super) fn unsent_bytes(&self) -> usize {
        match &self.stage {
            Stage::Shaking(session) | Stage::Begun(session) | Stage::Over(Some(session)) => session.unsent().len(),
            Stage::Open(_) | Stage::Elsewhere(_) | Stage::Over(None) => 0,
        }
    }

    /// Whether another thread has the session.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.stage, Stage::Elsewhere(_))
    }

    /// Has another thread go on with the handshake: [`SHAKEN`] completes when it has.
    pub(super) fn step(&mut self, io: &mut Io<'_>) {
        self.fresh = false;
        if !matches!(self.stage, Stage::Open(_) | Stage::Shaking(_)) {
            return;
        }
        let away = Arc::new(Away { reply: Mutex::new(Some(io.reply(SHAKEN))), step: Mutex::default() });
        let maker = Maker(away.clone());
        match std::mem::replace(&mut self.stage, Stage::Elsewhere(away)) {
            Stage::Open(certificates) => {
                let begins = move |session: Result<Session, SessionError>| {
                    maker.makes(session.map(|session| (Box::new(session), Ok(Shaken::Wants))));
                };
                if self.handshakes.looks.has_threads() {
                    self.handshakes.looks.go(move || certificates.begin(begins));
                } else {
                    // Nobody waits for files on a worker.
                    begins(certificates.session());
                }
            }
            Stage::Shaking(mut session) => self.handshakes.steps.go(move || {
                let shaken = session.shake();
                maker.makes(Ok((session, shaken)));
            }),
            Stage::Elsewhere(_) | Stage::Begun(_) | Stage::Over(_) => {}
        }
    }

    /// Nobody waits for the handshake any more: what another thread still does for it is for nobody.
    pub(super) fn leave(&mut self) {
        if let Stage::Elsewhere(away) = &self.stage {
            away.tell();
        }
    }

    /// Takes the session back from the thread that had it.
    ///
    /// # Errors
    /// Why there is no more to it.
    pub(super) fn stepped(&mut self) -> Result<(), SessionError> {
        let Stage::Elsewhere(away) = &self.stage else {
            return Ok(());
        };
        let step = away.take_step();
        self.stage = Stage::Over(None);
        // There is nothing when the thread has panicked, and where nobody waited for it.
        let (session, shaken) = step.unwrap_or_else(|| Err(SessionError::Protocol("the handshake failed".into())))?;
        let (stage, result) = match shaken {
            Ok(Shaken::Wants) => (Stage::Shaking(session), Ok(())),
            Ok(Shaken::Done) => (Stage::Begun(session), Ok(())),
            Err(error) => (Stage::Over(Some(session)), Err(error)),
        };
        self.stage = stage;
        result
    }

    /// So many bytes have come to the room of the session.
    pub(super) fn received(&mut self, bytes: usize) {
        self.fresh = true;
        if let Some(session) = self.session() {
            session.received(bytes);
        }
    }

    /// Opens a record more, for `sink`, unless the turn has opened enough.
    ///
    /// # Errors
    /// It was not made by the client.
    pub(super) fn open(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<Opened, SessionError> {
        match &mut self.stage {
            Stage::Begun(session) if !self.lent && self.idle_bytes < IDLE_BYTES_MAX => {
                let (before, mut data_bytes) = (session.came_bytes(), 0);
                let opened = session.open(&mut |data| {
                    data_bytes += data.len();
                    sink(data);
                });
                self.idle_bytes += before.saturating_sub(session.came_bytes() + data_bytes);
                opened
            }
            _ => Ok(Opened::Nothing),
        }
    }

    /// Whether the turn has opened enough, and the rest is for the next one, which begins by that.
    pub(super) fn has_opened_enough(&mut self) -> bool {
        std::mem::take(&mut self.idle_bytes) >= IDLE_BYTES_MAX
    }

    /// Sends what is sealed, as far as the client has room. False when it has none.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, calls: &engine::Counter) -> rustix::io::Result<bool> {
        use rustix::io::Errno;
        use rustix::net::SendFlags;
        let Some(session) = self.session() else { return Ok(true) };
        while !session.unsent().is_empty() {
            calls.add(1);
            match rustix::net::send(socket, session.unsent(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(bytes) => session.sent(bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Lends what is unsent to the kernel. It stays as it is until [`returned`](Self::returned) is called: nothing is opened or sealed
    /// meanwhile, and the session stays here.
    pub(super) fn lend(&mut self) -> Option<(NonNull<u8>, usize)> {
        let unsent = self.session()?.unsent();
        let lent = (NonNull::from(unsent).cast(), unsent.len());
        self.lent = lent.1 > 0;
        self.lent.then_some(lent)
    }

    /// The kernel has sent so many bytes of it.
    pub(super) fn returned(&mut self, bytes: usize) {
        self.lent = false;
        if let Some(session) = self.session() {
            session.sent(bytes);
        }
    }

    /// Drops what is unsent and not lent.
    pub(super) fn clear(&mut self) {
        if !self.lent
            && let Some(session) = self.session()
        {
            session.forget_unsent();
        }
    }

    /// The session has failed: what it has left, an alert, is still sent.
    pub(super) fn give_up(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over(None)) {
            Stage::Shaking(session) | Stage::Begun(session) | Stage::Over(Some(session)) => Stage::Over(Some(session)),
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Solo;
    use std::sync::mpsc::channel;
    use testkit::certificates::Authority;
    use values::Tls;

    static THREADS: Threads = Threads::new("test", 2, "a test");

    #[test]
    fn who_stops_waits_neither_for_a_step_nor_for_those_before_it() {
        let directory = tempfile::tempdir().unwrap();
        Authority::new("one").fill(directory.path());
        let about = Tls { certificates: directory.path().to_owned(), clients_may_be_anonymous: false };
        let certificates = Arc::new(Certificates::read(&about).unwrap());
        THREADS.prepare();
        let handshakes = Handshakes { steps: Jobs::on(&THREADS), looks: Jobs::on(&THREADS) };
        let held: Vec<_> = (0..2)
            .map(|_| {
                let (hold, held) = channel::<()>();
                handshakes.looks.go(move || held.into_iter().for_each(drop));
                hold
            })
            .collect();
        let mut solo = Solo::new().unwrap();
        let mut secure = Secure::new(certificates, handshakes);
        secure.step(&mut solo.io());
        assert!(secure.is_elsewhere());
        secure.leave();
        assert_eq!(solo.wait().unwrap().token, SHAKEN);
        assert!(secure.stepped().is_err() && !secure.is_elsewhere() && secure.session().is_none());
        // What others do for it then is for nobody.
        drop(held);
        assert_eq!(solo.wait().unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
}
