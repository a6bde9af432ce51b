//! The listening thread: connections that come and go.
//!
//! It takes the place of a vhost-user session's thread. It serves no message: it makes rings of connections, gives them to
//! workers, and ends them when they say that they are over.

use super::ends::Ends;
use super::listener::prepare;
use super::{Admission, IN_FLIGHT_MAX, Pipe, StreamListener};
use crate::Ring;
use crate::label::Label;
use crate::target::ExportTarget;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use values::Listen;
use vhost_user::{BackendChannel, Handover, HandoverError, SessionEnd, StopFd, Target};

/// How long to leave the listening socket alone after it failed, so that a process without free descriptors does not spin.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What is served to the clients of a stream.
pub(crate) trait Clients: Send + Sync {
    /// A ring for a client that has just connected, and what tells whether that has said what it wants.
    fn connect(&self, pipe: Pipe, label: Label) -> (Ring, Arc<dyn Greeted>);

    /// How long a client may take to say what it wants.
    fn greeting(&self) -> Duration;

    /// Why those that are connected cannot go along to another program, as the rest of a sentence about the export.
    fn stay(&self, clients: usize) -> String;
}

/// A client that is connected.
pub(crate) trait Greeted: Send + Sync {
    /// Whether it has said what it wants.
    fn has_greeted(&self) -> bool;
}

/// Serves connections until `stop` is signalled; the listening socket goes away with it.
pub(crate) fn serve(
    listener: StreamListener,
    target: &mut ExportTarget,
    clients: &dyn Clients,
    (stop, handover): (&StopFd, &Handover),
) {
    let _taker = handover.taker();
    match Ends::new() {
        Ok(ends) => {
            let (address, admission) = (listener.address().clone(), listener.admission().clone());
            let (ends, open, silent) = (Arc::new(ends), BTreeSet::new(), BTreeMap::new());
            let connections = Connections { address, admission, clients, target, ends, open, silent };
            connections.serve(listener, stop, handover);
        }
        Err(error) => target.shared.fail(&format!("cannot serve connections: {error} (check RLIMIT_NOFILE)")),
    }
}

struct Connections<'a> {
    address: Listen,
    admission: Admission,
    clients: &'a dyn Clients,
    target: &'a mut ExportTarget,
    ends: Arc<Ends>,
    /// Their rings.
    open: BTreeSet<u16>,
    /// Those that had not said what they want when somebody looked last, and until when they have to.
    silent: BTreeMap<u16, (Arc<dyn Greeted>, Instant)>,
}

impl Connections<'_> {
    fn serve(mut self, listener: StreamListener, stop: &StopFd, handover: &Handover) {
        // What a client leaves behind must keep nobody from connecting.
        passthrough::serves_others();
        let (listener, connected) = listener.into_parts();
        if let Some(connection) = connected {
            self.begin(connection);
        }
        loop {
            let door = listener.as_ref().map_or(stop.as_fd(), AsFd::as_fd);
            let patience = self.patience();
            let [stopped, asked, over, waiting] =
                wait([stop.as_fd(), handover.as_fd(), self.ends.as_fd(), door], patience.as_ref());
            if stopped {
                break;
            }
            if over {
                for (index, why) in self.ends.take() {
                    self.end(index, &why);
                }
            }
            self.end_silent();
            if asked {
                self.hand_over(listener.as_ref(), handover);
            }
            if waiting && let Some(listener) = &listener {
                match listener.accept() {
                    Ok(connection) => self.begin(connection),
                    Err(error) => self.pause_after(&error, stop),
                }
            }
        }
        // Nobody connects to what is ending.
        drop(listener);
        while let Some(index) = self.open.first().copied() {
            self.end(index, &SessionEnd::Stopped);
        }
    }

    /// How long nobody has to be looked after.
    fn patience(&self) -> Option<Timespec> {
        let first = self.silent.values().map(|(_, until)| *until).min()?;
        let patience = first.saturating_duration_since(Instant::now());
        // Not a moment too early, which would be another turn.
        let patience = patience.saturating_add(Duration::from_millis(1));
        Timespec::try_from(patience).ok()
    }

    /// Ends connections that have had their time to say what they want. They take places of others, and may be many.
    fn end_silent(&mut self) {
        let now = Instant::now();
        self.silent.retain(|_, (client, _)| !client.has_greeted());
        while let Some((&index, _)) = self.silent.iter().find(|(_, (_, until))| *until <= now) {
            let seconds = self.clients.greeting().as_secs_f32();
            let why = format!("it did not say what it wants within {seconds} s");
            self.end(index, &SessionEnd::Connection(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
    }

    fn pause_after(&self, error: &io::Error, stop: &StopFd) {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) {
            return;
        }
        tracing::warn!("cannot accept a connection on {}: {error}", self.address);
        wait([stop.as_fd()], Some(&ACCEPT_PAUSE));
    }

    /// Answers whoever wants the endpoint for another program. Connections have fids and open files, and stay.
    fn hand_over(&self, listener: Option<&StreamListener>, handover: &Handover) {
        let Some(order) = handover.take().filter(vhost_user::Order::is_wanted) else {
            return;
        };
        let state = match listener {
            _ if !self.open.is_empty() => Err(HandoverError::Refused(self.clients.stay(self.open.len()))),
            Some(listener) => listener.state().map_err(HandoverError::from),
            None => Err(HandoverError::Refused("its one connection has ended: remove it".to_owned())),
        };
        // Returns when nothing came of it.
        order.answer(state);
    }

    /// Makes a ring of a connection, if there is a place for one.
    fn begin(&mut self, connection: OwnedFd) {
        let client = vhost_user::peer_info(connection.as_fd());
        if let Some(refusal) = self.admission.refuses(connection.as_fd(), client) {
            tracing::warn!("{}: {refusal}", self.address);
            let why = SessionEnd::Connection(io::Error::new(io::ErrorKind::PermissionDenied, refusal.to_string()));
            self.target.shared.connection_ended(&why);
            return;
        }
        let queues = self.target.shared.queues;
        let Some(index) = (0..queues).find(|index| !self.open.contains(index)) else {
            tracing::warn!(
                "{}: turned away {client}: {queues} clients are connected, which is the bound",
                self.address
            );
            return;
        };
        prepare(connection.as_fd());
        self.target.session_started(client, BackendChannel::default());
        self.open.insert(index);
        if let Err(why) = self.start(index, connection) {
            tracing::error!("{}: cannot serve {client}: {why}", self.address);
            self.ended(index, &SessionEnd::Connection(io::Error::other(why)));
        }
    }

    fn start(&mut self, index: u16, connection: OwnedFd) -> Result<(), String> {
        let shared = &self.target.shared;
        let worker = shared.place(index).map_err(|error| error.to_string())?;
        let _steady = shared.steady();
        let label = shared.label(index);
        let (mut ring, client) = self.clients.connect(Pipe::new(connection, self.ends.clone()), label);
        shared.limit_before(index, &mut ring);
        let page = ring.page();
        let attached = shared.engine().attach(ring, worker);
        let id = attached.map_err(|(error, _)| error.to_string())?;
        shared.rings.started(index, id, IN_FLIGHT_MAX as u16, page);
        shared.device.started(&shared.rings, index);
        shared.limit(index);
        self.silent.insert(index, (client, Instant::now() + self.clients.greeting()));
        Ok(())
    }

    /// Takes a ring back from its worker. What its client had goes with it: fids, open files, locks.
    fn end(&mut self, index: u16, why: &SessionEnd) {
        self.target.stop(index);
        self.ended(index, why);
    }

    fn ended(&mut self, index: u16, why: &SessionEnd) {
        self.open.remove(&index);
        // With all that it had, if the ring did not take it along.
        self.silent.remove(&index);
        tracing::info!(connection = index, reason = %why, "connection ended");
        if self.open.is_empty() {
            self.target.session_ended(why);
        } else {
            self.target.shared.connection_ended(why);
        }
    }
}

/// Waits until at least one descriptor has something to say, or time is up. A failing poll (out of memory) counts as
/// nothing to say.
fn wait<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Option<&Timespec>) -> [bool; N] {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut polled, timeout) {
        Ok(_) => polled.map(|fd| !fd.revents().is_empty()),
        Err(Errno::INTR) => [false; N],
        Err(error) => {
            tracing::error!("cannot wait for connections: {error}");
            [false; N]
        }
    }
}
