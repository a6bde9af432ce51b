//! One connection of an NBD client: what its worker calls.
//!
//! It receives while it can take requests: not while the client does not read its replies, while too much of it is in flight, or
//! while a limit holds it up.

use super::clients::{Client, Offer};
use super::handshake::{Agreed, Next, Protection, haggle};
use super::slot::NbdRequest;
use super::status::Questions;
use crate::attachment::{self, Attachment};
use crate::disk::Kind;
use crate::label::Label;
use crate::queue::QueuePage;
use crate::stream::{Front, Handshakes, IN_FLIGHT_MAX, MORE, Pipe, RECEIVE, SEND, SHAKEN, Size};
use crate::turns::Turns;
use crate::virtqueue::Slot;
use device::nbd;
use engine::{Completion, Io};
use std::sync::Arc;
use storage::Storage;
use storage::kit::Jobs;
use tls::Certificates;
use vhost_user::SessionEnd;

/// Bytes that requests in flight and replies keep at most before no more are taken; the one that goes beyond it is still served.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Messages of the handshake that are answered in one turn.
const GREETINGS_MAX: usize = 16;

/// Where a client is in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has been greeted, and says what it knows.
    Flags,
    /// It chooses an export.
    Options,
    /// It makes the connection safe, and goes on to choose.
    Tls,
    /// It has one.
    Requests,
}

/// One connection of a client that speaks NBD.
pub(crate) struct NbdRing {
    pub(super) turns: Turns,
    pub(super) pipe: Pipe,
    pub(super) storage: Arc<dyn Storage>,
    pub(super) offer: Offer,
    client: Arc<Client>,
    /// What TLS is made of, where it has to come first.
    door: Option<Protected>,
    phase: Phase,
    pub(super) agreed: Agreed,
    pub(super) slots: Vec<Slot<NbdRequest>>,
    /// Slots that are not used.
    pub(super) free: Vec<u16>,
    /// Bytes that requests in flight keep.
    pub(super) kept_bytes: usize,
    pub(super) questions: Questions,
}

/// What TLS is made of.
pub(super) struct Protected {
    pub(super) certificates: Arc<Certificates>,
    /// Handshakes of the address's clients.
    pub(super) handshakes: Handshakes,
}

/// What the bytes at the front say of their message's size.
#[inline]
fn size(phase: Phase, payload_max: u32) -> impl Fn(&[u8]) -> Size {
    move |front| {
        let (size, known_at) = match phase {
            Phase::Flags => return Size::Known(nbd::CLIENT_FLAGS_BYTES),
            // There are none.
            Phase::Tls => return Size::Unknown(1),
            Phase::Options => (nbd::option_bytes(front), nbd::OPTION_HEADER_BYTES),
            Phase::Requests => (nbd::request_bytes(front, payload_max), nbd::REQUEST_BYTES),
        };
        match size {
            Ok(Some(bytes)) => Size::Known(bytes),
            Ok(None) => Size::Unknown(known_at),
            Err(_) => Size::Impossible,
        }
    }
}

impl NbdRing {
    /// A connection that has just been made: the server says the first word.
    pub(super) fn new(
        mut pipe: Pipe,
        (storage, looks): (Arc<dyn Storage>, Jobs),
        offer: Offer,
        (client, door): (Arc<Client>, Option<Protected>),
        label: Label,
    ) -> NbdRing {
        let protection = if door.is_some() { Protection::Required } else { Protection::Absent };
        pipe.be_patient();
        pipe.reply(nbd::greeting().to_vec());
        NbdRing {
            turns: Turns::new(&Kind::NAMES, IN_FLIGHT_MAX, label),
            pipe,
            storage,
            offer,
            client,
            door,
            phase: Phase::Flags,
            agreed: Agreed { protection, ..Agreed::default() },
            slots: Vec::new(),
            free: Vec::new(),
            kept_bytes: 0,
            questions: Questions::on(looks),
        }
    }

    /// What requests are checked against has changed.
    pub(crate) fn set_offer(&mut self, offer: Offer) {
        self.offer = offer;
    }

    /// Another storage, while nothing is in flight.
    pub(crate) fn set_storage(&mut self, storage: Arc<dyn Storage>) {
        self.storage = storage;
    }

    /// Whether another request may be begun.
    #[inline]
    fn takes_more(&self) -> bool {
        self.pipe.takes_more()
            && self.requests_in_flight() < IN_FLIGHT_MAX
            && self.kept_bytes + self.pipe.outbox.bytes() < KEPT_BYTES_MAX
    }

    #[inline]
    fn size(&self) -> impl Fn(&[u8]) -> Size + use<> {
        size(self.phase, self.offer.terms.payload_max)
    }

    #[inline]
    fn front(&self) -> Front {
        self.pipe.inbox.front(self.size())
    }

    /// The message of `bytes` bytes at the front, which is no request.
    fn greet(&mut self, bytes: usize) {
        let message = self.pipe.inbox.peek(bytes);
        let mut tls = false;
        match self.phase {
            Phase::Flags => match message.first_chunk().map(nbd::decode_client_flags) {
                Some(Ok(flags)) => {
                    self.agreed.no_zeroes = flags.no_zeroes;
                    self.phase = Phase::Options;
                }
                Some(Err(malformed)) => self.pipe.misspoke(malformed.to_string()),
                None => {}
            },
            Phase::Options => {
                let mut out = Vec::new();
                let name = self.offer.name.as_deref().unwrap_or(&self.turns.label.export);
                let next = haggle(message, name, &self.offer, &mut self.agreed, &mut out);
                self.pipe.reply(out);
                match next {
                    Next::Option => {}
                    Next::Tls => tls = true,
                    Next::Requests => {
                        self.phase = Phase::Requests;
                        self.client.has_chosen();
                    }
                    Next::Leave => self.pipe.finish(SessionEnd::Disconnected),
                    Next::End(why) => self.pipe.misspoke(why),
                }
            }
            Phase::Tls | Phase::Requests => debug_assert!(false, "not said in a handshake"),
        }
        self.pipe.inbox.take(bytes);
        if tls {
            self.protect();
        }
    }

    /// The client may begin TLS. What lies behind its word for that was put there by somebody else, or by one who does not wait for the
    /// answer: it is no part of what is said behind TLS.
    fn protect(&mut self) {
        if self.pipe.inbox.bytes() > 0 {
            return self.pipe.misspoke("more came behind NBD_OPT_STARTTLS, before the answer to it".to_owned());
        }
        if let Some(Protected { certificates, handshakes }) = self.door.take() {
            self.pipe.protect(certificates, handshakes);
            self.phase = Phase::Tls;
        }
    }

    /// The handshake, as far as it has come: no limit holds that up.
    fn greet_all(&mut self) {
        for _ in 0..GREETINGS_MAX {
            match self.front() {
                _ if matches!(self.phase, Phase::Requests | Phase::Tls) || !self.takes_more() => return,
                Front::Message(bytes) => self.greet(bytes),
                Front::Part if self.pipe.open(self.size()) => {}
                Front::Part => return,
                Front::Impossible => return self.pipe.misspoke(self.fault()),
            }
        }
    }

    /// Whether a limit holds up what comes next.
    fn is_held_up(&self) -> bool {
        self.phase == Phase::Requests && self.turns.gate.closed()
    }

    /// Why the bytes at the front are no message.
    fn fault(&self) -> String {
        let (front, payload_max) = (self.pipe.inbox.all(), self.offer.terms.payload_max);
        let fault = match self.phase {
            Phase::Flags | Phase::Tls => None,
            Phase::Options => nbd::option_bytes(front).err(),
            Phase::Requests => nbd::request_bytes(front, payload_max).err(),
        };
        fault.map(|malformed| malformed.to_string()).unwrap_or_default()
    }
}

impl Attachment for NbdRing {
    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn page(&self) -> Arc<QueuePage> {
        self.pipe.page().clone()
    }

    fn next(&mut self, io: &mut Io<'_>) -> bool {
        if !self.takes_more() {
            return false;
        }
        loop {
            match self.front() {
                Front::Message(bytes) if self.is_for_nobody() => self.pipe.inbox.take(bytes),
                Front::Message(bytes) => {
                    self.start(bytes, io);
                    return true;
                }
                Front::Part if self.pipe.open(self.size()) => {}
                Front::Part => return false,
                Front::Impossible => {
                    let why = self.fault();
                    self.pipe.misspoke(why);
                    return false;
                }
            }
        }
    }

    fn is_waiting(&self) -> bool {
        self.front() != Front::Part
    }

    fn is_ready(&self) -> bool {
        // While something is received there is not all of a message.
        !self.pipe.receiving() && !self.pipe.is_elsewhere() && !self.is_held_up() && self.takes_more()
    }

    fn arm(&mut self) -> bool {
        self.is_ready() || self.pipe.will_send()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        if self.pipe.receiving() || self.pipe.is_elsewhere() {
            return 0;
        }
        self.greet_all();
        if self.phase == Phase::Tls {
            if !self.pipe.shake(io) {
                return 0;
            }
            self.phase = Phase::Options;
            self.greet_all();
        }
        let requests = self.phase == Phase::Requests && (self.is_waiting() || self.pipe.open(self.size()));
        let taken = if requests { attachment::serve(self, io) } else { 0 };
        if !self.is_held_up() && self.takes_more() {
            self.pipe.receive(self.size(), io);
        }
        taken
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        match completion.token {
            RECEIVE => self.pipe.received(completion.result),
            SEND => self.pipe.sent(completion.result),
            SHAKEN => self.pipe.shaken(),
            MORE => self.pipe.goes_on(),
            _ => self.go_on(completion, io),
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
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        self.leave_questions(io);
        self.pipe.drain();
    }

    /// Requests of other rings may stand behind those of this one.
    fn lost(&mut self, _is_dropped: bool) {
        self.pipe.lost();
        for slot in self.slots.iter_mut().filter(|slot| slot.busy) {
            slot.request.task.lost();
            slot.abandon();
        }
    }

    fn requests_in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.requests_in_flight() + self.pipe.in_flight()
    }
}
