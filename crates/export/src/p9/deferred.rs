//! Requests that are answered later than they could be: those that flush others, that wait for locks, that a limit holds up,
//! and versions of clients that have much to give up.

use super::ring::{Given, P9Ring};
use super::service::Flush;
use crate::calls::turns::BATCH_MAX;
use crate::calls::{Requests, Work, lock};
use device::p9::Request;
use engine::{Io, Reply, Token};
use rustix::io::Errno;

impl P9Ring {
    /// Tflush. What waits for a limit or a lock is given up: its chain goes back without an answer. Everything else ends by
    /// itself, and is answered before this is. Flushes themselves are not among the tags that can be waited for: those of a
    /// client that means harm would wait for each other.
    pub(super) fn flush(&mut self, given: Given<'_>, head: u16, request: &Request<'_>, io: &mut Io<'_>) {
        let &Request::Flush { oldtag } = request else {
            return;
        };
        let slots = &self.slots;
        if let Some(place) = self.held.iter().position(|&held| slots[usize::from(held)].id.tag == oldtag)
            && let Some(held) = self.held.remove(place)
        {
            self.finish(held, 0, false);
        }
        self.slot(head).defer(Work::Other, given.writable);
        match self.session.tags().flush(oldtag, io.reply(Token::request(head))) {
            Flush::Now(reply) => reply.complete(0),
            Flush::Later => {}
        }
    }

    /// Waits for a lock without keeping anybody else waiting.
    pub(super) fn wait_for_lock(&mut self, given: Given<'_>, head: u16, request: &Request<'_>, io: &mut Io<'_>) {
        let Request::Lock(lock) = request else {
            return;
        };
        self.make_known(head);
        self.slot(head).defer(Work::Lock, given.writable);
        let reply = io.reply(Token::request(head));
        let wait = || self.session.wait_lock(lock, move |outcome| answer_lock(reply, outcome));
        let wait = passthrough::without_waiting(wait).flatten();
        let slot = &mut self.slots[usize::from(head)];
        if let Some(wait) = &wait {
            self.session.tags().cancel_by(slot.id.tag, wait.clone());
        }
        slot.wait = wait;
    }

    /// A limit holds this request up.
    pub(super) fn hold_up(&mut self, head: u16, given: Given<'_>, bytes: &[u8]) {
        self.keep(head, given, bytes);
        self.held.push_back(head);
    }

    /// A version whose client has more to give up than fits into a turn: others of this worker have theirs in between.
    pub(super) fn begin_later(&mut self, head: u16, given: Given<'_>, bytes: &[u8]) {
        self.keep(head, given, bytes);
        self.beginning.push_back(head);
    }

    /// Gives up another part of what the client has had. With the last one its versions are answered.
    pub(super) fn go_on_beginning(&mut self, io: &mut Io<'_>) {
        if !self.beginning.is_empty() && self.session.begin_anew() {
            for head in std::mem::take(&mut self.beginning) {
                self.start_held(head, io);
            }
        }
    }

    /// The slot of a request keeps what it needs to start later.
    fn keep(&mut self, head: u16, given: Given<'_>, bytes: &[u8]) {
        self.make_known(head);
        let slot = self.slot(head);
        slot.defer(Work::Turn, given.writable);
        lock(&slot.job).load(bytes, given.readable, given.writable);
    }

    /// The gate is closed: takes what comes, does what limits are not for, and keeps the rest. What it can keep is bounded by
    /// the ring's size.
    pub(super) fn take_while_closed(&mut self, io: &mut Io<'_>) -> usize {
        self.closed = true;
        let mut taken = 0;
        while taken < BATCH_MAX && self.next_chain(io) {
            taken += 1;
        }
        self.closed = false;
        taken
    }

    /// A request goes on that was held up.
    pub(super) fn start_held(&mut self, head: u16, io: &mut Io<'_>) {
        let slot = self.slot(head);
        slot.resume(io.now_ns());
        let (request, readable, writable) = {
            let mut job = lock(&slot.job);
            let taken = std::mem::take(&mut *job);
            (taken.request, taken.readable, taken.writable)
        };
        self.begin(head, Given { readable: &readable, writable: &writable }, &request, io);
    }
}

fn answer_lock(reply: Reply, outcome: Result<(), Errno>) {
    reply.complete(outcome.map_or_else(|error| -error.raw_os_error(), |()| 0));
}
