//! One connection after its handshake: requests out, replies in. This is the path of every request.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::inbox::Inbox;
use super::message::{Reply, Request};
use super::outbox::Outbox;
use super::spec::{command, magic};
use crate::frontend::buffers::Loan;
use crate::frontend::queue::Completion;

/// Why a connection cannot go on. Messages are whole.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum ConnectionError {
    /// the server closed it with {in_flight} requests in flight
    Closed {
        /// Requests submitted and not completed.
        in_flight: usize,
    },
    /// cannot send to the server: {0}
    Send(io::Error),
    /// cannot receive from the server: {0}
    Receive(io::Error),
    /// cannot wait for the server: {0}
    Wait(io::Error),
    /// a reply begins with {0:#010x}, which is no simple reply
    Magic(u32),
    /// a reply has the cookie {0:#x}, which no request in flight has
    Cookie(u64),
    /// a write was answered before its data was sent
    Early,
}

/// A request in flight.
struct Pending {
    cookie: u64,
    /// Where the data of a read goes.
    data: Option<Loan>,
}

/// A read whose data is coming in.
struct Arriving {
    slot: u16,
    data: Loan,
    filled: usize,
}

impl Arriving {
    fn rest(&mut self) -> &mut [u8] {
        &mut self.data.data_mut()[self.filled..]
    }
}

/// A connection with its requests in flight.
pub(crate) struct Connection {
    socket: OwnedFd,
    outbox: Outbox,
    inbox: Inbox,
    /// Of each slot.
    pending: Box<[Option<Pending>]>,
    in_flight: usize,
    arriving: Option<Arriving>,
    completions: Vec<Completion>,
    /// How many requests there were, which makes cookies differ.
    requests: u64,
    /// How long a receive sleeps.
    wait: Option<Duration>,
}

impl Connection {
    /// On a blocking socket, for requests of `block_bytes` in `depth` slots.
    pub(super) fn new(socket: OwnedFd, depth: u16, block_bytes: u32) -> Self {
        Self {
            socket,
            outbox: Outbox::new(depth),
            inbox: Inbox::new(block_bytes),
            pending: (0..depth).map(|_| None).collect(),
            in_flight: 0,
            arriving: None,
            completions: Vec::with_capacity(usize::from(depth)),
            requests: 0,
            wait: None,
        }
    }

    /// Has a read ready for [`Connection::reap`] to send, as the other requests.
    pub(crate) fn read(&mut self, offset: u64, data: Loan, slot: u16) {
        self.submit(command::READ, offset, data.len(), slot);
        if let Some(pending) = &mut self.pending[usize::from(slot)] {
            pending.data = Some(data);
        }
    }

    /// Has a write ready.
    pub(crate) fn write(&mut self, offset: u64, data: Loan, slot: u16) {
        self.submit(command::WRITE, offset, data.len(), slot);
        self.outbox.push_data(slot, data);
    }

    /// Has a flush ready.
    pub(crate) fn flush(&mut self, slot: u16) {
        self.submit(command::FLUSH, 0, 0, slot);
    }

    fn submit(&mut self, command: u16, offset: u64, bytes: usize, slot: u16) {
        let cookie = self.requests << 16 | u64::from(slot);
        self.outbox.push(&Request { command, cookie, offset, bytes: bytes as u32 });
        self.pending[usize::from(slot)] = Some(Pending { cookie, data: None });
        self.requests += 1;
        self.in_flight += 1;
    }

    /// Sends what is ready and takes completions, waiting up to `wait` for `least` of them; how many there are.
    pub(crate) fn reap(&mut self, least: usize, wait: Duration) -> Result<usize, ConnectionError> {
        self.completions.clear();
        let mut deadline = None;
        while self.in_flight > 0 {
            self.outbox.send(&self.socket).map_err(|errno| self.cannot_send(errno))?;
            let sleeps = self.completions.len() < least && self.outbox.is_empty();
            let has_received = self.receive(sleeps.then_some(wait))?;
            self.take_replies()?;
            if self.completions.len() >= least || (sleeps && !has_received) {
                break;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + wait);
            let left = deadline.saturating_duration_since(Instant::now());
            // A server may take no more requests before its replies are taken.
            if left.is_zero() || (!sleeps && !has_received && !self.wait_for_either(left)?) {
                break;
            }
        }
        Ok(self.completions.len())
    }

    /// One of the completions that the last [`Connection::reap`] has taken.
    pub(crate) fn completion(&self, index: usize) -> Completion {
        self.completions[index]
    }

    /// What to poll for when there is nothing to reap.
    pub(crate) fn announcement(&self) -> PollFd<'_> {
        let unsent = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&self.socket, PollFlags::IN | unsent)
    }

    fn cannot_send(&self, errno: Errno) -> ConnectionError {
        match errno {
            Errno::PIPE | Errno::CONNRESET => ConnectionError::Closed { in_flight: self.in_flight },
            errno => ConnectionError::Send(errno.into()),
        }
    }

    /// Receives what has come, sleeping for it where a time is given; whether anything has.
    fn receive(&mut self, wait: Option<Duration>) -> Result<bool, ConnectionError> {
        let flags = if wait.is_some() { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        if wait.is_some() && wait != self.wait {
            // Always the same, so a sleep is one system call.
            let set = set_socket_timeout(&self.socket, Timeout::Recv, wait);
            set.map_err(|errno| ConnectionError::Wait(errno.into()))?;
            self.wait = wait;
        }
        let rest = self.arriving.as_mut().map(Arriving::rest).unwrap_or_default();
        let lacking = rest.len();
        match self.inbox.receive(&self.socket, rest, flags) {
            Ok(0) | Err(Errno::CONNRESET) => Err(ConnectionError::Closed { in_flight: self.in_flight }),
            Ok(bytes) => {
                if let Some(arriving) = &mut self.arriving {
                    arriving.filled += bytes.min(lacking);
                }
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(ConnectionError::Receive(errno.into())),
        }
    }

    /// Sleeps until there is something to receive or room to send; false when there is neither for `limit`.
    fn wait_for_either(&self, limit: Duration) -> Result<bool, ConnectionError> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut [self.announcement()], Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(ConnectionError::Wait(errno.into())),
        }
    }

    /// Completes all that has been answered.
    fn take_replies(&mut self) -> Result<(), ConnectionError> {
        loop {
            if let Some(arriving) = &mut self.arriving {
                let taken = self.inbox.take(arriving.rest());
                arriving.filled += taken;
                if !arriving.rest().is_empty() {
                    return Ok(());
                }
                let slot = arriving.slot;
                self.arriving = None;
                self.complete(slot, 0);
            }
            let Some(reply) = self.inbox.take_head() else { return Ok(()) };
            self.take_reply(reply)?;
        }
    }

    fn take_reply(&mut self, reply: Reply) -> Result<(), ConnectionError> {
        if reply.magic != magic::SIMPLE_REPLY {
            return Err(ConnectionError::Magic(reply.magic));
        }
        let slot = reply.cookie as u16;
        let place = self.pending.get_mut(usize::from(slot));
        let pending = place.and_then(|place| place.take_if(|pending| pending.cookie == reply.cookie));
        let Some(pending) = pending else { return Err(ConnectionError::Cookie(reply.cookie)) };
        if self.outbox.has_data_of(slot) {
            return Err(ConnectionError::Early);
        }
        match (reply.error, pending.data) {
            (0, Some(data)) => self.arriving = Some(Arriving { slot, data, filled: 0 }),
            (0, None) => self.complete(slot, 0),
            // The protocol's numbers are Linux's (section "Error values").
            (error, _) => self.complete(slot, i32::try_from(error).map_or(-Errno::IO.raw_os_error(), |error| -error)),
        }
        Ok(())
    }

    fn complete(&mut self, slot: u16, result: i32) {
        self.in_flight -= 1;
        self.completions.push(Completion { slot, result });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.outbox.is_empty() {
            self.outbox.push(&Request { command: command::DISC, cookie: 0, offset: 0, bytes: 0 });
            // A courtesy: the connection ends anyway.
            let _gone = self.outbox.send(&self.socket);
        }
    }
}
