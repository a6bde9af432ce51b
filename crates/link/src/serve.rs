//! Accepts frontends and runs their sessions, one after another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::session::Session;
use crate::wire::Wire;
use crate::{ConfigChange, Endpoint, SessionEnd, StopFd, Target, peer};

/// How long to leave the listening socket alone after it failed, so that a process without free file descriptors does
/// not spin.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Serves sessions one after another until `stop` is signalled; the socket goes away with it.
///
/// A frontend that disconnects, crashes or misspeaks ends its session, not the export: its rings are stopped and the
/// next frontend is accepted. A second frontend that connects meanwhile is turned away at once (accepted and closed),
/// because one that waited in the backlog would look like an export that hangs.
pub fn serve(endpoint: Endpoint, target: &mut dyn Target, stop: &StopFd) {
    while let Some(connection) = next_frontend(&endpoint, stop) {
        let reason = run_session(connection, &endpoint, target, stop);
        if matches!(reason, SessionEnd::Stopped) {
            break;
        }
    }
    drop(endpoint);
}

/// Waits for a frontend. `None`: stopped.
fn next_frontend(endpoint: &Endpoint, stop: &StopFd) -> Option<OwnedFd> {
    loop {
        let [stopped, waiting] = wait([stop.as_fd(), endpoint.as_fd()], None);
        if stopped {
            return None;
        }
        if waiting {
            match endpoint.accept() {
                Ok(connection) => return Some(connection),
                Err(error) => pause_after(&error, endpoint, stop),
            }
        }
    }
}

fn pause_after(error: &io::Error, endpoint: &Endpoint, stop: &StopFd) {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) {
        return;
    }
    tracing::warn!("cannot accept a frontend on {endpoint}: {error}");
    wait([stop.as_fd()], Some(&ACCEPT_PAUSE));
}

fn run_session(connection: OwnedFd, endpoint: &Endpoint, target: &mut dyn Target, stop: &StopFd) -> SessionEnd {
    let frontend = peer::info(&connection);
    let config_change = ConfigChange::default();
    tracing::info!("{endpoint}: {frontend} connected");
    target.session_started(frontend, config_change.clone());
    let mut session = Session::new(Wire::new(connection), target, stop, config_change);
    let reason = loop {
        let fds = [stop.as_fd(), session.wire().as_fd(), endpoint.as_fd()];
        let [stopped, message, another] = wait(fds, None);
        if stopped {
            break SessionEnd::Stopped;
        }
        // What the session has to say comes first: it may be that it has ended, and then the other one is the next.
        if message {
            if let Err(reason) = session.advance() {
                break reason;
            }
        } else if another && wait([session.wire().as_fd()], Some(&NO_TIME)) == [false] {
            // Looked at once more, because the session may have ended between the look at it and that at the endpoint.
            turn_away(endpoint, stop);
        }
    };
    match &reason {
        SessionEnd::Disconnected | SessionEnd::Stopped => {
            tracing::info!("{endpoint}: session ended: {reason}");
        }
        _ => tracing::warn!("{endpoint}: session ended: {reason}"),
    }
    session.end(&reason);
    reason
}

fn turn_away(endpoint: &Endpoint, stop: &StopFd) {
    match endpoint.accept() {
        Ok(connection) => {
            let frontend = peer::info(&connection);
            tracing::warn!("{endpoint}: turned away {frontend}: another frontend is connected");
        }
        Err(error) => pause_after(&error, endpoint, stop),
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
            tracing::error!("cannot wait for messages: {error}");
            [false; N]
        }
    }
}
