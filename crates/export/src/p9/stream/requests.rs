//! One message: started on the spot, by io_uring or on a pool, and concluded.

use super::super::kind;
use super::super::reply::Asked;
use super::super::ring::{about, is_short};
use super::super::service::Session;
use super::ring::StreamRing;
use super::slot::{Deferred, to_read, to_write};
use crate::attachment::Attachment;
use crate::calls::{Answer, Care, Moved, Outcome, Protocol, Syncing, Transfer, Way, Work, lock};
use crate::stream::Inbox;
use crate::trace::LOCK;
use crate::virtqueue::Slot;
use device::p9::{HEADER_BYTES, Header, Malformed, READ_HEAD_BYTES, Request, bytes_wanted, decode};
use engine::{Io, Pool, Token};
use passthrough::OpenFile;
use rustix::io::Errno;
use std::sync::Arc;
use vring::Segment;

/// Room for any answer but those whose request says how long they may be, in bytes.
const ANSWER_BYTES: usize = 8 << 10;
/// Requests that wait for locks at most: others must find a place, for those that drop locks are among them, and other clients
/// of the tree want to wait too. Beyond it a client is told to ask again.
const LOCKS_MAX: usize = 32;
/// Flushes that wait for one request at most. Nobody needs a second one.
const FLUSHES_MAX: usize = 16;

impl StreamRing {
    /// Starts the message of `bytes` bytes at the front of the inbox. False when it has to stay there for now.
    pub(super) fn start(&mut self, inbox: &mut Inbox, bytes: usize, io: &mut Io<'_>) -> bool {
        self.turns.trace.taken(None, io);
        let dialect = self.session().dialect();
        let message = inbox.peek(bytes);
        let front = bytes_wanted(message).map(|wanted| message.get(..wanted).unwrap_or(message));
        let decoded = match front.and_then(|front| decode(front, bytes as u64, dialect)) {
            Ok(decoded) => decoded,
            Err(malformed) => {
                self.refuse(&malformed, io);
                inbox.take(bytes);
                return true;
            }
        };
        let (header, request) = &decoded;
        let asked = Asked::new(header, dialect);
        self.turns.trace.asks(about(request, message));
        self.turns.look |= !is_short(request);
        match *request {
            Request::Version { .. } if self.requests_in_flight() > 0 => {
                // What it ends has to end first: nothing that came before may be answered behind it.
                self.waits_for_all = true;
                self.cancel_waits();
                return false;
            }
            // There is more to give up than fits into a turn: others of this worker have theirs in between.
            Request::Version { .. } if !self.session().begin_anew() => return false,
            Request::Flush { oldtag } => {
                inbox.take(bytes);
                self.flush(oldtag, asked, io);
                return true;
            }
            // No more than can move, whatever the client says.
            Request::Read { count, .. } | Request::Write { count, .. } => {
                self.turns.begun_bytes += (count as usize).min(self.largest) as u64;
            }
            _ => {}
        }
        let room = self.room_for(request);
        match self.calls.way(asked, &decoded) {
            Way::Uring(file, transfer, syncing) => {
                self.submit((inbox, bytes), file, (transfer, syncing), asked, io);
            }
            Way::Thread(pool, care) => self.leave((inbox, bytes), (&pool, care), room, asked, io),
            Way::Waiter if self.locks < LOCKS_MAX => {
                self.wait_for_lock(&decoded, asked, io);
                inbox.take(bytes);
            }
            Way::Here | Way::Waiter => match self.perform(message, &decoded, asked, io) {
                Ok(()) => inbox.take(bytes),
                Err(pool) => self.leave((inbox, bytes), (&pool, Care::none()), room, asked, io),
            },
        }
        true
    }

    /// A request is refused before anybody has looked at what it wants.
    fn refuse(&mut self, malformed: &Malformed, io: &Io<'_>) {
        self.turns.report_refusal(malformed);
        if let Some(header) = &malformed.header {
            let asked = Asked::new(header, self.session().dialect());
            self.answer(Err(Errno::from_raw_os_error(malformed.errno())), asked);
        }
        self.turns.answered_at_once(kind::of_malformed(), true, io);
    }

    /// Bytes that the answer may have, header and all.
    fn room_for(&self, request: &Request<'_>) -> usize {
        let room = match request {
            Request::Read { count, .. } | Request::ReadDir { count, .. } => READ_HEAD_BYTES + *count as usize,
            _ => ANSWER_BYTES,
        };
        room.min(self.largest)
    }

    /// On the spot. Data is written from where it was received, and read to where it is sent from. `Err` when the request would
    /// have to wait for another process.
    fn perform(
        &mut self,
        message: &[u8],
        decoded: &(Header, Request<'_>),
        asked: Asked,
        io: &Io<'_>,
    ) -> Result<(), Arc<Pool>> {
        let (header, request) = decoded;
        let (place, room) = self.pipe.outbox.room(self.room_for(request), &mut self.pipe.buffers);
        // SAFETY: the message is borrowed until this returns, and the room is the outbox's, which nobody else uses before
        // `written`.
        let (readable, writable) = unsafe { ([to_read(message)], [Segment::from_raw_parts(place, room)]) };
        let done = self.calls.perform(asked, decoded, (&readable, &writable))?;
        self.count_moved(done.moved);
        // SAFETY: so many bytes are the answer: its head, and behind that payload or the data that was read.
        unsafe { self.pipe.outbox.written(done.written as usize) };
        if matches!(request, Request::Version { .. }) {
            self.learn_largest();
        }
        self.turns.answered_at_once(kind::of(header.kind), done.failed, io);
        Ok(())
    }

    /// A place for a request that is answered later.
    fn reserve(&mut self, asked: Asked, work: Work, now_ns: u64) -> (u16, &mut Deferred) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len();
            self.slots.push(Slot::new(self.turns.figures.stamp(index), Deferred::new()));
            // There are `IN_FLIGHT_MAX` at most.
            index as u16
        });
        let slot = &mut self.slots[usize::from(index)];
        slot.begin(now_ns);
        // It is answered in another turn, whenever that is.
        slot.fresh = false;
        slot.kind = kind::of(asked.kind);
        if !work.is_ours() {
            slot.waits();
        }
        (slot.request.call.asked, slot.request.call.work) = (asked, work);
        self.turns.trace.placed(index);
        (index, &mut slot.request)
    }

    /// By io_uring. The data of a write goes along with the request, and that of a read gets a place of its own.
    fn submit(
        &mut self,
        (inbox, bytes): (&mut Inbox, usize),
        file: Arc<OpenFile>,
        (transfer, syncing): (Transfer, Option<Syncing>),
        asked: Asked,
        io: &mut Io<'_>,
    ) {
        let request = match transfer {
            Transfer::Write { .. } => inbox.take_out(bytes, &mut self.pipe.buffers),
            Transfer::Read { .. } | Transfer::Sync { .. } => {
                inbox.take(bytes);
                Default::default()
            }
        };
        let room = match transfer {
            Transfer::Read { bytes, .. } => READ_HEAD_BYTES + bytes,
            Transfer::Write { .. } | Transfer::Sync { .. } => 0,
        };
        let reply = if room > 0 { self.pipe.buffers.take(room) } else { Vec::new() };
        let (index, deferred) = self.reserve(asked, Work::Here, io.now_ns());
        let message = deferred.keep(request, reply, bytes);
        // SAFETY: the buffer is the slot's, which nobody touches before the completion.
        let writable = [unsafe { to_write(&mut deferred.reply, room) }];
        let work = (&mut *io, Token::request(index));
        let begun = deferred.call.submit::<Session>(work, file, (transfer, syncing), (&[message], &writable));
        debug_assert!(begun, "one segment that is not empty");
        self.kept_bytes += deferred.held_bytes;
        if begun {
            self.turns.trace.pending(index, io);
        } else {
            self.conclude(index, -libc::EIO, io);
        }
    }

    /// To a thread of the pool, with all that the request needs.
    fn leave(
        &mut self,
        (inbox, bytes): (&mut Inbox, usize),
        thread: (&Pool, Care),
        room: usize,
        asked: Asked,
        io: &mut Io<'_>,
    ) {
        let request = inbox.take_out(bytes, &mut self.pipe.buffers);
        let reply = self.pipe.buffers.take(room);
        let (index, deferred) = self.reserve(asked, Work::Pool, io.now_ns());
        let message = deferred.keep(request, reply, bytes);
        // SAFETY: the buffer is the slot's, which nobody touches before the completion.
        let writable = unsafe { to_write(&mut deferred.reply, room) };
        let own = deferred.message(bytes);
        let wanted = bytes_wanted(own).unwrap_or(HEADER_BYTES);
        lock(&deferred.call.job).load(own.get(..wanted).unwrap_or(own), &[message], &[writable]);
        self.kept_bytes += deferred.held_bytes;
        let call = &self.slots[usize::from(index)].request.call;
        self.calls.leave(call, thread, io.reply(Token::request(index)));
        self.turns.trace.pending(index, io);
    }

    /// Waits for a lock without keeping anybody else waiting.
    fn wait_for_lock(&mut self, decoded: &(Header, Request<'_>), asked: Asked, io: &mut Io<'_>) {
        let (index, _) = self.reserve(asked, Work::Lock, io.now_ns());
        self.locks += 1;
        let call = &mut self.slots[usize::from(index)].request.call;
        self.calls.wait_for_lock(call, decoded, io.reply_by(LOCK, Token::request(index)));
        self.turns.trace.pending(index, io);
    }

    /// Tflush. What is not in flight has its answer; what waits for a lock is given up; everything else ends by itself, and is
    /// answered before this is.
    fn flush(&mut self, oldtag: u16, asked: Asked, io: &Io<'_>) {
        let mut in_flight = self.slots.iter_mut().filter(|slot| slot.busy).map(|slot| &mut slot.request);
        let outcome = match in_flight.find(|deferred| deferred.has_tag(oldtag)) {
            Some(deferred) if deferred.flushes.len() < FLUSHES_MAX => {
                deferred.flushes.push(asked);
                if let Some(wait) = &deferred.call.wait {
                    wait.cancel();
                }
                self.turns.trace.leave();
                return;
            }
            Some(_) => Err(Errno::BUSY),
            None => Ok(Answer::Reply),
        };
        self.answer_flush(outcome, asked, io);
    }

    fn answer_flush(&mut self, outcome: Outcome, asked: Asked, io: &Io<'_>) {
        self.calls.reply.clear();
        self.answer(outcome, asked);
        self.turns.answered_at_once(kind::of(asked.kind), outcome.is_err(), io);
    }

    /// Puts an answer behind all others whose payload, if it has one, is in the calls' reply.
    fn answer(&mut self, outcome: Outcome, asked: Asked) {
        let (place, room) = self.pipe.outbox.room(ANSWER_BYTES.min(self.largest), &mut self.pipe.buffers);
        // SAFETY: the room is the outbox's, which nobody else uses before `written`.
        let writable = [unsafe { Segment::from_raw_parts(place, room) }];
        let written = Session::answer(outcome, &writable, asked, &mut self.calls.reply);
        // SAFETY: so many bytes were written.
        unsafe { self.pipe.outbox.written(written as usize) };
    }

    /// What was started for the request in slot `index` has ended.
    pub(super) fn conclude(&mut self, index: u16, result: i32, io: &mut Io<'_>) {
        let Some(slot) = self.slots.get_mut(usize::from(index)).filter(|slot| slot.busy) else {
            debug_assert!(false, "completion of request {index}, which is not in flight");
            return;
        };
        slot.end();
        self.turns.trace.ended(index, io);
        let deferred = &mut slot.request;
        self.kept_bytes -= std::mem::take(&mut deferred.held_bytes);
        let (asked, work) = (deferred.call.asked, deferred.call.work);
        let flushes = std::mem::take(&mut deferred.flushes);
        let (request, reply) = (std::mem::take(&mut deferred.request), std::mem::take(&mut deferred.reply));
        let job = (work == Work::Pool).then(|| lock(&deferred.call.job).conclude());
        deferred.call.end();
        self.free.push(index);
        self.locks -= usize::from(work == Work::Lock);
        self.pipe.buffers.give(request);
        self.waits_for_all &= self.requests_in_flight() > 0;

        let failed = match job {
            Some((moved, failed)) if result >= 0 => {
                self.count_moved(moved);
                self.push(reply, result as usize);
                failed
            }
            _ => {
                let mut moved = Moved::default();
                let outcome = match work {
                    // A client that flushed it waits for no other answer than that to the flush.
                    Work::Lock if result == -libc::EINTR && !flushes.is_empty() => Ok(Answer::Silence),
                    _ => self.calls.outcome(work, asked, result, &mut moved),
                };
                self.count_moved(moved);
                self.answer_with(outcome, asked, reply);
                outcome.is_err()
            }
        };
        self.turns.answered(&self.slots[usize::from(index)], failed, io);
        for flush in flushes {
            // What is being started, if anything, is another request.
            self.turns.trace.leave();
            self.answer_flush(Ok(Answer::Reply), flush, io);
        }
    }

    /// Answers a request that has a buffer of its own, where what it has read is.
    fn answer_with(&mut self, outcome: Outcome, asked: Asked, mut own: Vec<u8>) {
        let Ok(Answer::Data(bytes)) = outcome else {
            self.pipe.buffers.give(own);
            return self.answer(outcome, asked);
        };
        // SAFETY: the buffer is ours again, and moved nowhere before the segment is gone.
        let writable = [unsafe { to_write(&mut own, READ_HEAD_BYTES + bytes) }];
        let written = Session::answer(outcome, &writable, asked, &mut self.calls.reply);
        self.push(own, written as usize);
    }

    /// Puts an answer behind all others whose `bytes` bytes were written to the room of this empty buffer.
    fn push(&mut self, mut own: Vec<u8>, bytes: usize) {
        // SAFETY: the answer was written to the room behind the buffer's end, which is its beginning: so many bytes of it.
        unsafe { own.set_len(bytes.min(own.capacity())) };
        self.pipe.outbox.push(own, &mut self.pipe.buffers);
    }

    fn count_moved(&mut self, moved: Moved) {
        self.turns.figures.bytes_read.add(moved.read);
        self.turns.figures.bytes_written.add(moved.written);
    }
}
