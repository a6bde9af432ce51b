//! Requests that are answered later than they could be: those that flush others, that a limit holds up, and versions of clients
//! that have much to give up.

use super::ring::P9Ring;
use super::service::Flush;
use crate::calls::{Given, Work, lock};
use crate::trace::OTHER;
use engine::{Io, Token};

impl P9Ring {
    /// Tflush. What waits for a limit or a lock is given up: its chain goes back without an answer. Everything else ends by
    /// itself, and is answered before this is. Flushes themselves are not among the tags that can be waited for: those of a
    /// client that means harm would wait for each other.
    pub(super) fn flush(&mut self, head: u16, given: Given<'_>, oldtag: u16, io: &mut Io<'_>) {
        let slots = &self.queue.ring.slots;
        if let Some(place) = self.held.iter().position(|&held| slots[usize::from(held)].request.asked.tag == oldtag)
            && let Some(held) = self.held.remove(place)
        {
            self.queue.finish(held, 0, false, io);
        }
        self.queue.defer(head, given, Work::Other);
        match self.session().tags().flush(oldtag, io.reply_by(OTHER, Token::request(head))) {
            Flush::Now(reply) => reply.complete(0),
            Flush::Later => {}
        }
        self.queue.turns.trace.pending(head, io);
    }

    /// A limit holds this request up.
    pub(super) fn hold_up(&mut self, head: u16, given: Given<'_>, bytes: &[u8]) {
        self.queue.keep(head, given, bytes, Work::Turn);
        self.queue.turns.trace.put_aside(head);
        self.held.push_back(head);
    }

    /// A version whose client has more to give up than fits into a turn: others of this worker have theirs in between.
    pub(super) fn begin_later(&mut self, head: u16, given: Given<'_>, bytes: &[u8]) {
        self.queue.keep(head, given, bytes, Work::Turn);
        self.queue.turns.trace.put_aside(head);
        self.beginning.push_back(head);
    }

    /// Gives up another part of what the client has had. With the last one its versions are answered.
    pub(super) fn go_on_beginning(&mut self, io: &mut Io<'_>) {
        if !self.beginning.is_empty() && self.session().begin_anew() {
            for head in std::mem::take(&mut self.beginning) {
                self.start_held(head, io);
            }
        }
    }

    /// A request goes on that was held up.
    pub(super) fn start_held(&mut self, head: u16, io: &mut Io<'_>) {
        self.queue.turns.trace.taken_up(head, io);
        let slot = self.queue.ring.slot(head);
        slot.restart(io.now_ns());
        slot.request.work = Work::Here;
        let (request, readable, writable) = {
            let mut job = lock(&slot.request.job);
            let taken = std::mem::take(&mut *job);
            (taken.request, taken.readable, taken.writable)
        };
        self.begin(head, Given { readable: &readable, writable: &writable }, &request, io);
    }
}
