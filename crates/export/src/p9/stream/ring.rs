//! One connection: what its worker calls. Bytes in, messages, replies, bytes out.
//!
//! A connection receives while it can take requests: there is one receive with the kernel, and none while the client does not
//! read its replies, while too much of it is in flight, or while a limit holds it up. Replies leave by a call of the worker's own
//! at the end of each turn, and the kernel waits for what a client has no room for.

use super::super::kind;
use super::super::service::Session;
use super::buffers::Buffers;
use super::connections::Ends;
use super::inbox::{Front, Inbox, Room};
use super::outbox::{Outbox, Sent};
use super::slot::Deferred;
use crate::calls::{Executor, Pace, Work, turns};
use crate::figures::RingFigures;
use crate::label::Label;
use crate::limit::{Ask, Gate, is_deadline};
use device::p9::MSIZE_MIN;
use engine::{Completion, Io, Token};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use vhost_user::SessionEnd;
use vring::Segment;

/// Requests of one connection that are in flight at most.
pub(super) const IN_FLIGHT_MAX: usize = 256;
/// Bytes of messages and replies that one connection keeps at most before it takes no more requests; the one that goes beyond it
/// is still served.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Requests taken in one turn, so that rings of one worker take turns.
const BATCH_MAX: usize = 64;
/// Replies that leave together while a batch goes on: the client works on them meanwhile.
const SEND_EVERY: usize = 8;
/// Bytes of replies that leave at once.
const SEND_BYTES: usize = 64 << 10;

/// The token of a receive.
const RECEIVE: Token = Token::other(0);
/// The token of a send that waits for the client.
const SEND: Token = Token::other(1);

/// One connection of a client that speaks 9P over a stream; what workers drive.
pub struct StreamRing {
    socket: OwnedFd,
    pub(super) session: Arc<Session>,
    pub(super) executor: Executor,
    pub(super) pace: Pace,
    inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) buffers: Buffers,
    /// Longest message now, in bytes.
    pub(super) largest: usize,
    pub(super) slots: Vec<Deferred>,
    /// Slots that are not used.
    pub(super) free: Vec<u16>,
    /// Bytes that requests in flight keep.
    pub(super) kept_bytes: usize,
    /// Requests that wait for locks.
    pub(super) locks: usize,
    /// The next message waits for all that is in flight.
    pub(super) waits_for_all: bool,
    /// A payload that is put together.
    pub(super) reply: Vec<u8>,
    /// Where file data goes to or comes from, for calls on the spot.
    pub(super) data: Vec<Segment>,
    /// The kernel receives.
    receiving: bool,
    /// Why no more requests are taken.
    end: Option<SessionEnd>,
    /// Nobody waits for room to send any more.
    stopping: bool,
    ends: Arc<Ends>,
    gate: Gate,
    pub(super) figures: RingFigures,
    pub(super) label: Label,
    /// Bytes that reads and writes asked for, as limits count them.
    pub(super) begun_bytes: u64,
    /// As [`Turns::look`](crate::calls::Turns).
    pub(super) look: bool,
    /// Requests answered in this turn that were taken in it.
    pub(super) fresh_done: u64,
    /// When the first of those was taken: rings of one worker have their turns one after the other.
    fresh_since_ns: u64,
    /// Replies since the last sending.
    pub(super) unsent: usize,
    /// Since when messages wait that did not fit into a batch, or that a limit holds up.
    backlog_since_ns: Option<u64>,
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
            socket,
            session,
            executor,
            pace: Pace::default(),
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            buffers: Buffers::default(),
            largest: 0,
            slots: Vec::new(),
            free: Vec::new(),
            kept_bytes: 0,
            locks: 0,
            waits_for_all: false,
            reply: Vec::new(),
            data: Vec::new(),
            receiving: false,
            end: None,
            stopping: false,
            ends,
            gate: Gate::default(),
            figures: RingFigures::new(&kind::NAMES),
            label,
            begun_bytes: 0,
            look: false,
            fresh_done: 0,
            fresh_since_ns: 0,
            unsent: 0,
            backlog_since_ns: None,
        };
        ring.learn_largest();
        ring
    }

    /// What was agreed on may have changed.
    pub(super) fn learn_largest(&mut self) {
        self.largest = self.session.msize().max(MSIZE_MIN) as usize;
        self.buffers.set_largest(self.largest);
    }

    /// Requests taken and not yet answered.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn gate_mut(&mut self) -> &mut Gate {
        &mut self.gate
    }

    /// The figures so far, but for those that the gate keeps. What was sent counts as notifications.
    pub(crate) fn figures(&self) -> &RingFigures {
        &self.figures
    }

    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    pub(crate) fn set_executor(&mut self, executor: Executor) {
        self.executor = executor;
        self.pace = Pace::default();
    }

    /// When the request was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC. Those that wait for a
    /// lock wait for another client, and do not count.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let slots = self.slots.iter().map(|deferred| &deferred.slot);
        slots.filter(|slot| slot.busy && slot.work != Work::Lock).map(|slot| slot.started_ns).min()
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

    /// A batch of the messages that are there.
    fn take_messages(&mut self, io: &mut Io<'_>) -> usize {
        let grant = match self.gate.ask(BATCH_MAX as u32, io.now_ns()) {
            Ask::Go(grant) => grant,
            Ask::Wait(deadline) => {
                self.backlog_since_ns.get_or_insert(io.now_ns());
                io.timer(deadline.token, deadline.at_ns);
                return 0;
            }
        };
        self.note_time(io);
        let begun_bytes = self.begun_bytes;
        let (mut taken, mut late) = (0, false);
        while !late
            && taken < grant.requests as usize
            && !grant.is_spent(self.begun_bytes - begun_bytes)
            && self.takes_more()
        {
            match self.inbox.front(self.largest) {
                Front::Message(bytes) => {
                    let mut inbox = std::mem::take(&mut self.inbox);
                    let started = self.start(&mut inbox, bytes, io);
                    self.inbox = inbox;
                    if !started {
                        break;
                    }
                    taken += 1;
                    late = turns::is_late(&mut self.look, taken, io);
                }
                Front::Part => break,
                Front::Impossible(bytes) => {
                    let (least, most) = (device::p9::HEADER_BYTES, self.largest);
                    let why = format!("the client sent a message of {bytes} bytes, and one has {least} to {most}");
                    self.finish(SessionEnd::Connection(io::Error::new(io::ErrorKind::InvalidData, why)));
                    break;
                }
            }
            if self.unsent >= SEND_EVERY || self.outbox.bytes() >= SEND_BYTES {
                self.send(io);
            }
        }
        self.gate.settle(grant, taken as u32, self.begun_bytes - begun_bytes);
        let waited_ns = self.backlog_since_ns.map_or(0, |since| io.now_ns().saturating_sub(since));
        self.figures.queued.record(waited_ns, taken as u64);
        let more = taken == BATCH_MAX
            || (late || grant.is_spent(self.begun_bytes - begun_bytes))
                && matches!(self.inbox.front(self.largest), Front::Message(_));
        self.backlog_since_ns = more.then(|| self.backlog_since_ns.unwrap_or(io.now_ns()));
        taken
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
        self.unsent = 0;
        let calls = &mut self.figures.notifications_sent;
        match self.outbox.send(self.socket.as_fd(), &mut self.buffers, calls) {
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
        for wait in self.slots.iter().filter_map(|deferred| deferred.slot.wait.as_ref()) {
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
            self.ends.tell(self.label.ring, why);
        }
    }
}

/// What its worker calls; see [`engine::Ring`].
impl StreamRing {
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        // While something is received there is not all of a message.
        !self.receiving && !self.gate.closed() && self.takes_more()
    }

    pub(crate) fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        if self.receiving {
            return 0;
        }
        let taken = match self.inbox.front(self.largest) {
            Front::Part => 0,
            Front::Message(_) | Front::Impossible(_) => self.take_messages(io),
        };
        if !self.gate.closed() {
            self.receive(io);
        }
        taken
    }

    pub(crate) fn complete(&mut self, Completion { token, result, .. }: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        self.note_time(io);
        match token {
            RECEIVE => self.received(result),
            SEND => self.sent(result),
            _ if is_deadline(token) => {
                let pending = self.inbox.front(self.largest) != Front::Part;
                if let Some(deadline) = self.gate.reached(token, pending, io.now_ns()) {
                    io.timer(deadline.token, deadline.at_ns);
                }
            }
            _ => match token.index() {
                Some(index) => self.conclude(index, result, io.now_ns()),
                None => debug_assert!(false, "completion of {token:?}, which nobody started"),
            },
        }
    }

    /// Before requests may be answered in the turn that takes them.
    fn note_time(&mut self, io: &Io<'_>) {
        if self.fresh_done == 0 {
            self.fresh_since_ns = io.now_ns();
        }
    }

    pub(crate) fn publish(&mut self, io: &mut Io<'_>) {
        self.figures.in_flight_max =
            self.figures.in_flight_max.max(self.requests_in_flight() + self.fresh_done as usize);
        self.send(io);
        let done = std::mem::take(&mut self.fresh_done);
        if done > 0 {
            // Requests that ended in the turn that took them share one reading of the clock.
            self.figures.served.record(io.clock_ns().saturating_sub(self.fresh_since_ns), done);
        }
        self.report_end();
    }

    /// Replies that are ready are still sent, as far as the client takes them at once.
    pub(crate) fn drain(&mut self, _io: &mut Io<'_>) {
        self.stopping = true;
        self.finish(SessionEnd::Stopped);
        self.hang_up(if self.outbox.lent() { Shutdown::Both } else { Shutdown::Read });
    }

    /// A client must not wait for a connection that nobody serves.
    pub(crate) fn lost(&mut self) {
        self.hang_up(Shutdown::Both);
    }

    /// What the kernel and others do for it.
    pub(crate) fn in_flight(&self) -> usize {
        self.requests_in_flight() + usize::from(self.receiving) + usize::from(self.outbox.lent())
    }
}
