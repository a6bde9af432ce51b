//! One connection of a 9P client: what its worker calls.
//!
//! It receives while it can take requests: not while the client does not read its replies, while too much of it is in flight, or
//! while a limit holds it up.

use super::super::kind;
use super::super::service::Session;
use super::slot::Deferred;
use crate::attachment::{self, Attachment};
use crate::calls::{Calls, Executor};
use crate::label::Label;
use crate::queue::QueuePage;
use crate::stream::{Front, IN_FLIGHT_MAX, Pipe, RECEIVE, SEND, Size};
use crate::turns::Turns;
use crate::virtqueue::Slot;
use device::p9::{HEADER_BYTES, MSIZE_MIN};
use engine::{Completion, Io};
use std::sync::Arc;

/// Bytes of messages and replies that one connection keeps at most before it takes no more requests; the one that goes beyond it
/// is still served.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// What the bytes at the front say of their message's size, where none has more than `largest`.
#[inline]
fn size(largest: usize) -> impl Fn(&[u8]) -> Size {
    move |front| match front.first_chunk().map(|size| u32::from_le_bytes(*size) as usize) {
        None => Size::Unknown(HEADER_BYTES),
        Some(bytes) if (HEADER_BYTES..=largest).contains(&bytes) => Size::Known(bytes),
        Some(_) => Size::Impossible,
    }
}

/// One connection of a client that speaks 9P over a stream.
pub(crate) struct StreamRing {
    pub(super) turns: Turns,
    pub(super) calls: Calls<Session>,
    pub(super) pipe: Pipe,
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
}

impl StreamRing {
    pub(crate) fn new(pipe: Pipe, session: Arc<Session>, executor: Executor, label: Label) -> StreamRing {
        let mut ring = StreamRing {
            turns: Turns::new(&kind::NAMES, IN_FLIGHT_MAX, label),
            calls: Calls::new(session, executor),
            pipe,
            largest: 0,
            slots: Vec::new(),
            free: Vec::new(),
            kept_bytes: 0,
            locks: 0,
            waits_for_all: false,
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
        self.pipe.buffers.set_largest(self.largest);
    }

    /// Whether another request may be begun.
    #[inline]
    fn takes_more(&self) -> bool {
        self.pipe.takes_more()
            && !self.waits_for_all
            && self.requests_in_flight() < IN_FLIGHT_MAX
            && self.kept_bytes + self.pipe.outbox.bytes() < KEPT_BYTES_MAX
    }

    pub(super) fn cancel_waits(&self) {
        for wait in self.slots.iter().filter_map(|slot| slot.request.call.wait.as_ref()) {
            wait.cancel();
        }
    }

    /// Nobody waits for locks whom nobody answers.
    fn follow_end(&self) {
        if self.pipe.is_over() {
            self.cancel_waits();
        }
    }

    fn front(&self) -> Front {
        self.pipe.inbox.front(size(self.largest))
    }
}

impl Attachment for StreamRing {
    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn page(&self) -> Arc<QueuePage> {
        self.pipe.page().clone()
    }

    fn set_executor(&mut self, executor: Executor) {
        self.calls.set_executor(executor);
    }

    fn next(&mut self, io: &mut Io<'_>) -> bool {
        if !self.takes_more() {
            return false;
        }
        match self.front() {
            Front::Message(bytes) => {
                let mut inbox = std::mem::take(&mut self.pipe.inbox);
                let started = self.start(&mut inbox, bytes, io);
                self.pipe.inbox = inbox;
                started
            }
            Front::Part => false,
            Front::Impossible => {
                let said = self.pipe.inbox.all().first_chunk().map_or(0, |size| u32::from_le_bytes(*size));
                let (least, most) = (HEADER_BYTES, self.largest);
                self.pipe.misspoke(format!("the client sent a message of {said} bytes, and one has {least} to {most}"));
                self.follow_end();
                false
            }
        }
    }

    fn is_waiting(&self) -> bool {
        self.front() != Front::Part
    }

    fn is_ready(&self) -> bool {
        // While something is received there is not all of a message.
        !self.pipe.receiving() && !self.turns.gate.closed() && self.takes_more()
    }

    fn arm(&mut self) -> bool {
        self.is_ready() || self.pipe.will_send()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        if self.pipe.receiving() {
            return 0;
        }
        let taken = if self.is_waiting() { attachment::serve(self, io) } else { 0 };
        if !self.turns.gate.closed() && self.takes_more() {
            self.pipe.receive(size(self.largest), io);
        }
        taken
    }

    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        attachment::complete(self, completion, io);
    }

    fn ended(&mut self, Completion { token, result, .. }: Completion, io: &mut Io<'_>) {
        match token {
            RECEIVE => {
                self.pipe.received(result);
                self.follow_end();
            }
            SEND => {
                self.pipe.sent(result);
                self.follow_end();
            }
            _ => match token.index() {
                Some(index) => self.conclude(index, result, io),
                None => debug_assert!(false, "completion of {token:?}, which nobody started"),
            },
        }
    }

    fn show_some(&mut self, io: &mut Io<'_>) {
        if self.pipe.send_some(self.turns.unshown, io) {
            self.turns.shown_some(io);
        }
    }

    fn show(&mut self, io: &mut Io<'_>) {
        let in_flight = self.requests_in_flight();
        // What was answered on the spot was in flight, too, though some of it has been sent.
        self.turns.figures.in_flight_max.raise(in_flight as u64 + self.turns.fresh_done);
        self.turns.unshown = 0;
        self.pipe.show(self.turns.label.ring, in_flight, io);
        self.follow_end();
    }

    fn drain(&mut self, _io: &mut Io<'_>) {
        self.pipe.drain();
        self.follow_end();
    }

    fn lost(&mut self, _is_dropped: bool) {
        self.pipe.lost();
        self.slots.iter_mut().for_each(Slot::abandon);
    }

    fn requests_in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.requests_in_flight() + self.pipe.in_flight()
    }
}
