//! One connection: what its worker calls. Bytes in, messages, replies, bytes out.
//!
//! A connection receives while it can take requests: there is one receive with the kernel, and none while the client does not
//! read its replies, while too much of it is in flight, or while a limit holds it up. Replies leave by a call of the worker's own
//! at the end of each turn, and the kernel waits for what a client has no room for.

use super::super::kind;
use super::super::service::Session;
use super::buffers::Buffers;
use super::ends::Ends;
use super::inbox::{Front, Inbox, Room};
use super::outbox::{Outbox, Sent};
use super::slot::Deferred;
use crate::attachment::{self, Attachment};
use crate::calls::{Calls, Executor};
use crate::label::Label;
use crate::queue::{Queue, QueuePage};
use crate::turns::Turns;
use crate::virtqueue::Slot;
use device::p9::MSIZE_MIN;
use engine::{Completion, Io, Token};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use vhost_user::SessionEnd;

/// Requests of one connection that are in flight at most.
pub(super) const IN_FLIGHT_MAX: usize = 256;
/// Bytes of messages and replies that one connection keeps at most before it takes no more requests; the one that goes beyond it
/// is still served.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Replies that leave together while a batch goes on: the client works on them meanwhile.
const SEND_EVERY: usize = 8;
/// Bytes of replies that leave at once.
const SEND_BYTES: usize = 64 << 10;

/// The token of a receive.
const RECEIVE: Token = Token::other(0);
/// The token of a send that waits for the client.
const SEND: Token = Token::other(1);

/// One connection of a client that speaks 9P over a stream.
pub(crate) struct StreamRing {
    pub(super) turns: Turns,
    pub(super) calls: Calls<Session>,
    /// As of a virtqueue; sends count as notifications.
    page: Arc<QueuePage>,
    socket: OwnedFd,
    inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) buffers: Buffers,
    /// Longest message now, in bytes.
    pub(super) largest: usize,
    pub(super) slots: Vec<Slot<Deferred>>,
    /// Slots that are not used.
    pub(super) free: Vec<u16>,
    /// Bytes that requests in flight keep.
    pub(super) kept_bytes: usize,
    /// Requests that wait for locks.
    pub(super) locks: usize,
    /// The next message waits for all that is in flight.
    pub(super) waits_for_all: bool,
    /// The kernel receives.
    receiving: bool,
    /// Why no more requests are taken.
    end: Option<SessionEnd>,
    /// Nobody waits for room to send any more.
    stopping: bool,
    ends: Arc<Ends>,
}

impl StreamRing {
    /// A connection in blocking mode. `ends` is told when it is over.
    pub(super) fn new(
        socket: OwnedFd,
        session: Arc<Session>,
        executor: Executor,
        ends: Arc<Ends>,
        label: Label,
    ) -> StreamRing {
        let mut ring = StreamRing {
            turns: Turns::new(&kind::NAMES, IN_FLIGHT_MAX, label),
            page: Arc::default(),
            calls: Calls::new(session, executor),
            socket,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            buffers: Buffers::default(),
            largest: 0,
            slots: Vec::new(),
            free: Vec::new(),
            kept_bytes: 0,
            locks: 0,
            waits_for_all: false,
            receiving: false,
            end: None,
            stopping: false,
            ends,
        };
        ring.learn_largest();
        ring
    }

    /// The client.
    pub(super) fn session(&self) -> &Session {
        &self.calls.protocol
    }

    /// What was agreed on may have changed.
    pub(super) fn learn_largest(&mut self) {
        self.largest = self.calls.protocol.msize().max(MSIZE_MIN) as usize;
        self.buffers.set_largest(self.largest);
    }

    /// Whether another request may be begun.
    #[inline]
    fn takes_more(&self) -> bool {
        self.end.is_none()
            && !self.outbox.lent()
            && !self.waits_for_all
            && self.requests_in_flight() < IN_FLIGHT_MAX
            && self.kept_bytes + self.outbox.bytes() < KEPT_BYTES_MAX
    }

    /// Has the kernel receive more, unless it does or there is enough.
    fn receive(&mut self, io: &mut Io<'_>) {
        if self.receiving || !self.takes_more() || self.inbox.front(self.largest) != Front::Part {
            return;
        }
        let Room { place, bytes, whole } = self.inbox.room(&mut self.buffers);
        // SAFETY: the room lies in the inbox's buffer, which nobody touches before the completion: messages are taken, and
        // room is made, only while nothing is received.
        unsafe { io.receive(RECEIVE, self.socket.as_fd(), place, bytes, whole) };
        self.receiving = true;
    }

    fn received(&mut self, result: i32) {
        self.receiving = false;
        match result {
            // SAFETY: the kernel wrote so many bytes to the place that it was given last.
            1.. => unsafe { self.inbox.received(result as usize) },
            0 => self.finish(SessionEnd::Disconnected),
            _ => match -result {
                // The ring has moved, or a signal came: the next turn receives again.
                libc::ECANCELED | libc::EINTR => {}
                libc::ECONNRESET | libc::EPIPE => self.finish(SessionEnd::Disconnected),
                error => self.finish(SessionEnd::Connection(io::Error::from_raw_os_error(error))),
            },
        }
    }

    /// Sends what the client has room for, and has the kernel wait for the rest.
    fn send(&mut self, io: &mut Io<'_>) {
        self.turns.unshown = 0;
        match self.outbox.send(self.socket.as_fd(), &mut self.buffers, &self.page.sent) {
            Sent::All => {}
            Sent::Full if self.outbox.lent() => {}
            Sent::Full if self.stopping => self.outbox.clear(),
            Sent::Full => {
                if let Some((place, bytes)) = self.outbox.lend() {
                    // SAFETY: a lent piece stays as it is until it is returned.
                    unsafe { io.send(SEND, self.socket.as_fd(), place, bytes) };
                }
            }
            Sent::Failed(error) => self.unsendable(error.into()),
        }
    }

    fn sent(&mut self, result: i32) {
        self.outbox.returned(usize::try_from(result).unwrap_or_default(), &mut self.buffers);
        match -result {
            ..=0 | libc::EINTR => {}
            error => self.unsendable(io::Error::from_raw_os_error(error)),
        }
    }

    /// Nobody reads replies any more.
    fn unsendable(&mut self, error: io::Error) {
        self.outbox.clear();
        self.hang_up(Shutdown::Both);
        self.finish(match Errno::from_io_error(&error) {
            Some(Errno::PIPE | Errno::CONNRESET) => SessionEnd::Disconnected,
            _ => SessionEnd::Connection(error),
        });
    }

    /// Takes no more requests. Those that are in flight end, but for waiting.
    fn finish(&mut self, why: SessionEnd) {
        self.cancel_waits();
        self.end.get_or_insert(why);
    }

    pub(super) fn cancel_waits(&self) {
        for wait in self.slots.iter().filter_map(|slot| slot.request.call.wait.as_ref()) {
            wait.cancel();
        }
    }

    fn hang_up(&self, how: Shutdown) {
        // A socket whose other end is gone has been shut down.
        let _ = rustix::net::shutdown(&self.socket, how);
    }

    /// Tells the listening thread that it is over, once.
    fn report_end(&mut self) {
        if self.in_flight() == 0 && self.outbox.bytes() == 0 && !self.stopping && self.end.is_some() {
            // It is detached next, which is when it stops.
            self.stopping = true;
            let why = self.end.replace(SessionEnd::Stopped).unwrap_or(SessionEnd::Stopped);
            self.ends.tell(self.turns.label.ring, why);
        }
    }
}

impl Attachment for StreamRing {
    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn queue(&self) -> Option<&Queue> {
        None
    }

    fn queue_mut(&mut self) -> Option<&mut Queue> {
        None
    }

    fn page(&self) -> Arc<QueuePage> {
        self.page.clone()
    }

    fn set_executor(&mut self, executor: Executor) {
        self.calls.set_executor(executor);
    }

    fn next(&mut self, io: &mut Io<'_>) -> bool {
        if !self.takes_more() {
            return false;
        }
        match self.inbox.front(self.largest) {
            Front::Message(bytes) => {
                let mut inbox = std::mem::take(&mut self.inbox);
                let started = self.start(&mut inbox, bytes, io);
                self.inbox = inbox;
                started
            }
            Front::Part => false,
            Front::Impossible(bytes) => {
                let (least, most) = (device::p9::HEADER_BYTES, self.largest);
                let why = format!("the client sent a message of {bytes} bytes, and one has {least} to {most}");
                self.finish(SessionEnd::Connection(io::Error::new(io::ErrorKind::InvalidData, why)));
                false
            }
        }
    }

    fn is_waiting(&self) -> bool {
        self.inbox.front(self.largest) != Front::Part
    }

    fn is_ready(&self) -> bool {
        // While something is received there is not all of a message.
        !self.receiving && !self.turns.gate.closed() && self.takes_more()
    }

    fn arm(&mut self) -> bool {
        self.is_ready()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        if self.receiving {
            return 0;
        }
        let taken = if self.is_waiting() { attachment::serve(self, io) } else { 0 };
        if !self.turns.gate.closed() {
            self.receive(io);
        }
        taken
    }

    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        attachment::complete(self, completion, io);
    }

    fn ended(&mut self, Completion { token, result, .. }: Completion, io: &mut Io<'_>) {
        match token {
            RECEIVE => self.received(result),
            SEND => self.sent(result),
            _ => match token.index() {
                Some(index) => self.conclude(index, result, io.now_ns()),
                None => debug_assert!(false, "completion of {token:?}, which nobody started"),
            },
        }
    }

    fn show_some(&mut self, io: &mut Io<'_>) {
        if self.turns.unshown >= SEND_EVERY || self.outbox.bytes() >= SEND_BYTES {
            self.send(io);
        }
    }

    fn show(&mut self, io: &mut Io<'_>) {
        let in_flight = self.requests_in_flight() as u64;
        self.page.in_flight.set(in_flight);
        // What was answered on the spot was in flight, too, though some of it has been sent.
        self.turns.figures.in_flight_max.raise(in_flight + self.turns.fresh_done);
        self.send(io);
        self.report_end();
    }

    /// Replies that are ready are still sent, as far as the client takes them at once.
    fn drain(&mut self, _io: &mut Io<'_>) {
        self.stopping = true;
        self.finish(SessionEnd::Stopped);
        self.hang_up(if self.outbox.lent() { Shutdown::Both } else { Shutdown::Read });
    }

    fn lost(&mut self) {
        self.hang_up(Shutdown::Both);
        self.slots.iter_mut().for_each(Slot::abandon);
    }

    fn requests_in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.requests_in_flight() + usize::from(self.receiving) + usize::from(self.outbox.lent())
    }
}
