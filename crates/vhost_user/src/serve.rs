//! Accepts frontends and runs their sessions, one after another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::handover::{EndpointState, Handover, HandoverError, Order, Resume, SessionState};
use crate::session::Session;
use crate::session::handover::NoPause;
use crate::wire::Wire;
use crate::{BackendChannel, Endpoint, SessionEnd, StopFd, Target, peer};

/// How long to leave the listening socket alone after it failed, so that a process without free file descriptors does
/// not spin.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Between two attempts to give up what is kept.
const KEPT_PAUSE: Duration = Duration::from_secs(5);

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Serves sessions one after another until `stop` is signalled; the socket goes away with it.
///
/// A frontend that disconnects, crashes or misspeaks ends its session, not the export: its rings are stopped and the
/// next frontend is accepted. A second frontend that connects meanwhile is turned away at once (accepted and closed),
/// because one that waited in the backlog would look like an export that hangs.
pub fn serve(endpoint: Endpoint, target: &mut dyn Target, stop: &StopFd) {
    match Handover::new() {
        Ok(handover) => serve_on(endpoint, target, stop, &handover, None),
        Err(error) => tracing::error!("cannot serve {endpoint}: {error}"),
    }
}

/// As [`serve`], of an endpoint that can be handed over to another program, and that goes on with the session it was
/// handed over with, if there was one.
pub fn serve_on(
    endpoint: Endpoint,
    target: &mut dyn Target,
    stop: &StopFd,
    handover: &Handover,
    resume: Option<Resume>,
) {
    let _taker = handover.taker();
    let service = Service { endpoint: &endpoint, stop, handover };
    let mut reason = resume.map(|resume| service.resume(resume, target));
    while !matches!(reason, Some(SessionEnd::Stopped)) {
        let Some(connection) = service.next_frontend(target) else { break };
        reason = Some(service.session(connection, target));
    }
    drop(endpoint);
}

/// What the thread of an endpoint looks at.
#[derive(Clone, Copy)]
struct Service<'a> {
    endpoint: &'a Endpoint,
    stop: &'a StopFd,
    handover: &'a Handover,
}

impl Service<'_> {
    /// Waits for a frontend, and tries meanwhile to give up what is kept. `None`: stopped.
    fn next_frontend(self, target: &mut dyn Target) -> Option<OwnedFd> {
        let mut again_at = None;
        loop {
            // However often others wake this thread meanwhile.
            again_at = target.is_held().then(|| again_at.unwrap_or_else(|| Instant::now() + KEPT_PAUSE));
            let timeout = again_at.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = timeout.map(Timespec::try_from).transpose().unwrap_or_default();
            let [stopped, asked, waiting] =
                wait([self.stop.as_fd(), self.handover.as_fd(), self.endpoint.as_fd()], timeout.as_ref());
            if stopped {
                if target.is_held() {
                    target.give_up(true);
                }
                return None;
            }
            if again_at.take_if(|at| *at <= Instant::now()).is_some() && !waiting {
                target.give_up(false);
            }
            if asked && let Some(order) = self.handover.take() {
                self.hand_over(order, None);
            } else if waiting {
                match self.endpoint.accept() {
                    Ok(connection) => return Some(connection),
                    Err(error) => self.pause_after(&error),
                }
            }
        }
    }

    fn pause_after(self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) {
            return;
        }
        tracing::warn!("cannot accept a frontend on {}: {error}", self.endpoint);
        wait([self.stop.as_fd()], Some(&ACCEPT_PAUSE));
    }

    /// Answers an order with the endpoint as it is, and pauses.
    fn hand_over(self, order: Order, session: Option<SessionState>) {
        let state = self.endpoint.state().map(|(socket, file)| EndpointState { socket, file, session });
        order.answer(state.map_err(HandoverError::from));
    }

    fn session(self, connection: OwnedFd, target: &mut dyn Target) -> SessionEnd {
        let frontend = peer::info(connection.as_fd());
        let channel = BackendChannel::default();
        tracing::info!("{}: {frontend} connected", self.endpoint);
        target.session_started(frontend, channel.clone());
        self.run(Session::new(Wire::new(connection), target, self.stop, channel))
    }

    fn resume(self, resume: Resume, target: &mut dyn Target) -> SessionEnd {
        let Resume { session, resumed } = resume;
        let connection = match session.socket.try_clone() {
            Ok(connection) => connection,
            Err(error) => {
                let _ = resumed.send(Err(error.to_string()));
                return SessionEnd::Connection(error);
            }
        };
        let frontend = peer::info(connection.as_fd());
        let channel = BackendChannel::default();
        target.session_resumed(frontend, channel.clone());
        let mut restored = Session::new(Wire::new(connection), target, self.stop, channel);
        let outcome = restored.restore(session);
        let _ = resumed.send(outcome.as_ref().copied().map_err(ToString::to_string));
        match outcome {
            Ok(_) => {
                restored.give_up_if_idle(false);
                tracing::info!("{}: the session of {frontend} goes on", self.endpoint);
                self.run(restored)
            }
            Err(reason) => self.end(restored, reason),
        }
    }

    fn run(self, mut session: Session<'_>) -> SessionEnd {
        let mut again_at = None;
        let reason = loop {
            // However often others wake this thread meanwhile.
            again_at = session.keeps().then(|| again_at.unwrap_or_else(|| Instant::now() + KEPT_PAUSE));
            let [stopped, asked, message, another] = self.wait_in(&mut session, again_at);
            if stopped {
                break SessionEnd::Stopped;
            }
            session.turn();
            if again_at.take_if(|at| *at <= Instant::now()).is_some() {
                session.give_up_if_idle(false);
            }
            if asked && let Err(reason) = self.pause(&mut session) {
                break reason;
            }
            // What the session has to say comes first: it may be that it has ended, and then the other one is the next.
            if message {
                if let Err(reason) = session.advance() {
                    break reason;
                }
            } else if another && wait([session.wire().as_fd()], Some(&NO_TIME)) == [false] {
                // Looked at once more, because the session may have ended between the look at it and that at the endpoint.
                self.turn_away();
            }
        };
        self.end(session, reason)
    }

    /// Waits until somebody says something, or the device's state can go on; or until somebody has been waited for long enough on the
    /// channel back, or what is kept is to be given up once more.
    fn wait_in(self, session: &mut Session<'_>, again_at: Option<Instant>) -> [bool; 4] {
        let again = again_at.map(|at| at.saturating_duration_since(Instant::now()));
        let patience = session.channel().patience().into_iter().chain(again).min();
        let patience = patience.map(Timespec::try_from).transpose().unwrap_or_default();
        let fds = [self.stop.as_fd(), self.handover.as_fd(), session.wire().as_fd(), self.endpoint.as_fd()];
        wait_and(fds, session.other_fds(), patience.as_ref())
    }

    /// Hands the endpoint over with its session, as somebody has asked. Returns when the session goes on, because
    /// nothing came of it, or with the reason why it does not.
    fn pause(self, session: &mut Session<'_>) -> Result<(), SessionEnd> {
        let Some(order) = self.handover.take() else { return Ok(()) };
        if !order.is_wanted() {
            return Ok(());
        }
        match session.pause(&order) {
            Ok((state, paused)) => {
                self.hand_over(order, Some(state));
                session.go_on(&paused).map(drop)
            }
            Err(NoPause::Refused(error)) => {
                order.answer(Err(error));
                Ok(())
            }
            Err(NoPause::Ended(reason)) => {
                // The endpoint is still to be handed over, without a session.
                self.handover.put_back(order);
                Err(reason)
            }
        }
    }

    fn end(self, session: Session<'_>, reason: SessionEnd) -> SessionEnd {
        match &reason {
            SessionEnd::Disconnected | SessionEnd::Stopped => {
                tracing::info!("{}: session ended: {reason}", self.endpoint);
            }
            _ => tracing::warn!("{}: session ended: {reason}", self.endpoint),
        }
        session.end(&reason);
        reason
    }

    fn turn_away(self) {
        match self.endpoint.accept() {
            Ok(connection) => {
                let frontend = peer::info(connection.as_fd());
                tracing::warn!("{}: turned away {frontend}: another frontend is connected", self.endpoint);
            }
            Err(error) => self.pause_after(&error),
        }
    }
}

/// Waits until at least one descriptor has something to say, or time is up. A failing poll (out of memory) counts as
/// nothing to say.
fn wait<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Option<&Timespec>) -> [bool; N] {
    wait_and(fds, std::iter::empty(), timeout)
}

/// As [`wait`], or until one of `others` is as it was wanted.
fn wait_and<'a, const N: usize>(
    fds: [BorrowedFd<'a>; N],
    others: impl Iterator<Item = PollFd<'a>>,
    timeout: Option<&Timespec>,
) -> [bool; N] {
    let mut polled: Vec<_> =
        fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into_iter().chain(others).collect();
    match poll(&mut polled, timeout) {
        Ok(_) => std::array::from_fn(|at| !polled[at].revents().is_empty()),
        Err(Errno::INTR) => [false; N],
        Err(error) => {
            tracing::error!("cannot wait for messages: {error}");
            [false; N]
        }
    }
}
