//! One message: started on the spot, by io_uring or on a pool, and concluded.

use super::super::kind;
use super::super::reply::{self, Asked};
use super::super::ring::{direction_of, is_short};
use super::super::service::Session;
use super::inbox::Inbox;
use super::ring::StreamRing;
use super::slot::{Deferred, to_read, to_write};
use crate::calls::{Answer, Care, Job, Moved, Outcome, Scene, Syncing, Work, lock};
use device::p9::{
    HEADER_BYTES, Header, LockKind, LockRequest, Malformed, READ_HEAD_BYTES, Request, WRITE_HEAD_BYTES, bytes_wanted,
    decode, lock_out, lock_status, write_out,
};
use engine::{Execution, Io, Pool, Token};
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

/// What io_uring is to do.
enum Transfer {
    Read { offset: u64, bytes: usize },
    Write { offset: u64, bytes: usize },
    Sync { data_only: bool, syncing: Syncing },
}

/// How a request is executed.
enum Route {
    Here,
    Uring(Arc<OpenFile>, Transfer),
    /// To a thread.
    Pool(Arc<Pool>, Care),
}

impl StreamRing {
    /// Starts the message of `bytes` bytes at the front of the inbox. False when it has to stay there for now.
    pub(super) fn start(&mut self, inbox: &mut Inbox, bytes: usize, io: &mut Io<'_>) -> bool {
        let dialect = self.session.dialect();
        let message = inbox.peek(bytes);
        let front = bytes_wanted(message).map(|wanted| message.get(..wanted).unwrap_or(message));
        let (header, request) = match front.and_then(|front| decode(front, bytes as u64, dialect)) {
            Ok(decoded) => decoded,
            Err(malformed) => {
                self.refuse(&malformed);
                inbox.take(bytes);
                return true;
            }
        };
        let asked = Asked::new(&header, dialect);
        self.look |= !is_short(&request);
        match &request {
            Request::Version { .. } if self.requests_in_flight() > 0 => {
                // What it ends has to end first: nothing that came before may be answered behind it.
                self.waits_for_all = true;
                self.cancel_waits();
                return false;
            }
            // There is more to give up than fits into a turn: others of this worker have theirs in between.
            Request::Version { .. } if !self.session.begin_anew() => return false,
            Request::Flush { oldtag } => {
                let oldtag = *oldtag;
                inbox.take(bytes);
                self.flush(oldtag, asked);
                return true;
            }
            // Nobody waits to drop a lock, though Linux asks as if.
            Request::Lock(lock) if lock.waits() && lock.kind != LockKind::Unlock && self.locks < LOCKS_MAX => {
                self.wait_for_lock(lock, asked, io);
                inbox.take(bytes);
                return true;
            }
            // No more than can move, whatever the client says.
            Request::Read { count, .. } | Request::Write { count, .. } => {
                self.begun_bytes += (*count as usize).min(self.largest) as u64;
            }
            _ => {}
        }
        match self.route(&request) {
            Route::Here => {
                if self.perform(message, &header, &request, asked) {
                    inbox.take(bytes);
                } else if let Some(aside) = self.executor.aside.clone() {
                    let room = self.room_for(&request);
                    self.hand_over((inbox, bytes), (&aside, Care::none()), room, asked, io);
                }
            }
            Route::Uring(file, transfer) => self.submit((inbox, bytes), file, transfer, asked, io),
            Route::Pool(pool, care) => {
                let room = self.room_for(&request);
                self.hand_over((inbox, bytes), (&pool, care), room, asked, io);
            }
        }
        true
    }

    /// A request is refused before anybody has looked at what it wants.
    fn refuse(&mut self, malformed: &Malformed) {
        tracing::debug!(export = &*self.label.export, ring = self.label.ring, reason = %malformed, "a request is refused");
        if let Some(header) = &malformed.header {
            let asked = Asked::new(header, self.session.dialect());
            self.answer(Err(Errno::from_raw_os_error(malformed.errno())), asked);
        }
        self.count_here(kind::of_malformed(), true);
    }

    fn route(&mut self, request: &Request<'_>) -> Route {
        // What begins a session must not be overtaken by what it ends, and costs no time.
        if matches!(request, Request::Version { .. } | Request::Auth(_) | Request::Unsupported(_)) {
            return Route::Here;
        }
        let transfer = match request {
            Request::Read { offset, count, .. } => {
                let bytes = (*count as usize).min(self.largest.saturating_sub(READ_HEAD_BYTES));
                (bytes > 0).then_some(Transfer::Read { offset: *offset, bytes })
            }
            Request::Write { offset, count, .. } => {
                let bytes = *count as usize;
                (bytes > 0).then_some(Transfer::Write { offset: *offset, bytes })
            }
            Request::Fsync { datasync, .. } => {
                self.executor.syncs.begin().map(|syncing| Transfer::Sync { data_only: *datasync, syncing })
            }
            _ => None,
        };
        let by_uring = match self.executor.execution {
            Execution::Inline => None,
            Execution::Pool(_) => {
                return self.executor.pool.clone().map_or(Route::Here, |pool| Route::Pool(pool, Care::none()));
            }
            // A sync waits for a disk, whoever asks.
            Execution::Uring | Execution::Auto if matches!(transfer, Some(Transfer::Sync { .. })) => transfer,
            Execution::Uring | Execution::Auto if self.session.is_long(request) => return self.aside(request),
            Execution::Uring => transfer,
            // What memory can answer is answered soonest by a call on the spot. What waits for a disk must not keep the
            // others waiting.
            Execution::Auto => {
                transfer.filter(|_| direction_of(request).is_some_and(|direction| !self.pace.quick(direction)))
            }
        };
        let Some(transfer) = by_uring else { return Route::Here };
        match self.session.file_for_uring(request) {
            Some(file) => Route::Uring(file, transfer),
            // It waits as long.
            None => self.aside(request),
        }
    }

    fn aside(&self, request: &Request<'_>) -> Route {
        let Some(aside) = self.executor.aside.clone() else { return Route::Here };
        let care = Care { changing: self.session.changes(request), appends: self.session.appends(request) };
        Route::Pool(aside, care)
    }

    /// Bytes that the answer may have, header and all.
    fn room_for(&self, request: &Request<'_>) -> usize {
        let room = match request {
            Request::Read { count, .. } | Request::ReadDir { count, .. } => READ_HEAD_BYTES + *count as usize,
            _ => ANSWER_BYTES,
        };
        room.min(self.largest)
    }

    /// On the spot. Data is written from where it was received, and read to where it is sent from.
    /// False when the request would have to wait for another process, and there are threads that can.
    fn perform(&mut self, message: &[u8], header: &Header, request: &Request<'_>, asked: Asked) -> bool {
        self.reply.clear();
        let room = self.room_for(request);
        let (place, room) = self.outbox.room(room, &mut self.buffers);
        // SAFETY: the message is borrowed until this returns, and the room is the outbox's, which nobody else uses before
        // `written`.
        let (readable, writable) = unsafe { ([to_read(message)], [Segment::from_raw_parts(place, room)]) };
        let mut moved = Moved::default();
        let mut scene = Scene {
            readable: &readable,
            writable: &writable,
            reply: &mut self.reply,
            data: &mut self.data,
            moved: &mut moved,
        };
        let mut perform = || self.session.perform(header, request, &mut scene);
        let outcome = match self.executor.aside {
            Some(_) => passthrough::without_waiting(perform),
            None => Some(perform()),
        };
        let Some(outcome) = outcome else { return false };
        if let Some(direction) = direction_of(request)
            && self.executor.execution == Execution::Auto
        {
            self.pace.took(direction, moved.took_ns, (moved.read + moved.written) as usize);
        }
        self.count_moved(moved);
        let failed = outcome.is_err();
        let written = reply::write(outcome, &writable, asked, &mut self.reply);
        // SAFETY: so many bytes are the answer: its head, and behind that payload or the data that was read.
        unsafe { self.outbox.written(written as usize) };
        if matches!(request, Request::Version { .. }) {
            self.learn_largest();
        }
        self.count_here(kind::of(header.kind), failed);
        true
    }

    /// A place for a request that is answered later.
    fn reserve(&mut self, asked: Asked, work: Work, now_ns: u64) -> (u16, &mut Deferred) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Deferred::new());
            // There are `IN_FLIGHT_MAX` at most.
            (self.slots.len() - 1) as u16
        });
        let deferred = &mut self.slots[usize::from(index)];
        deferred.slot.begin(0, now_ns);
        (deferred.slot.id, deferred.slot.kind) = (asked, kind::of(asked.kind));
        deferred.slot.defer(work, &[]);
        (index, deferred)
    }

    /// By io_uring. The data of a write goes along with the request, and that of a read gets a place of its own.
    fn submit(
        &mut self,
        (inbox, bytes): (&mut Inbox, usize),
        file: Arc<OpenFile>,
        transfer: Transfer,
        asked: Asked,
        io: &mut Io<'_>,
    ) {
        let request = match transfer {
            Transfer::Write { .. } => inbox.take_out(bytes, &mut self.buffers),
            Transfer::Read { .. } | Transfer::Sync { .. } => {
                inbox.take(bytes);
                Default::default()
            }
        };
        let reply = match transfer {
            Transfer::Read { bytes, .. } => self.buffers.take(READ_HEAD_BYTES + bytes),
            Transfer::Write { .. } | Transfer::Sync { .. } => Vec::new(),
        };
        let (index, deferred) = self.reserve(asked, Work::Sync, io.now_ns());
        let message = deferred.keep(request, reply, bytes);
        let work = (io, Token::request(index));
        let begun = match transfer {
            Transfer::Read { offset, bytes } => {
                // SAFETY: the buffer is the slot's, which nobody touches before the completion.
                let writable = [unsafe { to_write(&mut deferred.reply, READ_HEAD_BYTES + bytes) }];
                deferred.slot.read(work, file, offset, (&writable, READ_HEAD_BYTES, bytes))
            }
            Transfer::Write { offset, bytes } => {
                deferred.slot.write(work, file, offset, (&[message], WRITE_HEAD_BYTES, bytes), &[])
            }
            Transfer::Sync { data_only, syncing } => {
                deferred.slot.sync(work, file, (data_only, syncing), &[]);
                true
            }
        };
        debug_assert!(begun, "one segment that is not empty");
        self.kept_bytes += deferred_bytes(&self.slots, index);
        if !begun {
            self.conclude(index, -libc::EIO, 0);
        }
    }

    /// To a thread of the pool, with all that the request needs.
    fn hand_over(
        &mut self,
        (inbox, bytes): (&mut Inbox, usize),
        (pool, care): (&Pool, Care),
        room: usize,
        asked: Asked,
        io: &mut Io<'_>,
    ) {
        let request = inbox.take_out(bytes, &mut self.buffers);
        let reply = self.buffers.take(room);
        let (index, deferred) = self.reserve(asked, Work::Pool, io.now_ns());
        let message = deferred.keep(request, reply, bytes);
        // SAFETY: the buffer is the slot's, which nobody touches before the completion.
        let writable = unsafe { to_write(&mut deferred.reply, room) };
        {
            let own = deferred.message(bytes);
            let wanted = bytes_wanted(own).unwrap_or(HEADER_BYTES);
            lock(&deferred.slot.job).load(own.get(..wanted).unwrap_or(own), &[message], &[writable]);
        }
        let (session, job) = (self.session.clone(), self.slots[usize::from(index)].slot.job.clone());
        self.kept_bytes += deferred_bytes(&self.slots, index);
        let reply = io.reply(Token::request(index));
        care.leave(pool, reply, move || run_job(&session, asked, &mut lock(&job)));
    }

    /// Waits for a lock without keeping anybody else waiting.
    fn wait_for_lock(&mut self, lock: &LockRequest<'_>, asked: Asked, io: &mut Io<'_>) {
        let (index, _) = self.reserve(asked, Work::Lock, io.now_ns());
        self.locks += 1;
        let reply = io.reply(Token::request(index));
        let done = move |outcome: Result<(), Errno>| {
            reply.complete(outcome.map_or_else(|error| -error.raw_os_error(), |()| 0));
        };
        let wait = passthrough::without_waiting(|| self.session.wait_lock(lock, done)).flatten();
        self.slots[usize::from(index)].slot.wait = wait;
    }

    /// Tflush. What is not in flight has its answer; what waits for a lock is given up; everything else ends by itself, and is
    /// answered before this is.
    fn flush(&mut self, oldtag: u16, asked: Asked) {
        let flushed = self.slots.iter_mut().find(|deferred| deferred.has_tag(oldtag));
        match flushed {
            Some(deferred) if deferred.flushes.len() < FLUSHES_MAX => {
                deferred.flushes.push(asked);
                if let Some(wait) = &deferred.slot.wait {
                    wait.cancel();
                }
            }
            Some(_) => {
                self.answer(Err(Errno::BUSY), asked);
                self.count_here(kind::of(asked.kind), true);
            }
            None => {
                self.reply.clear();
                self.answer(Ok(Answer::Reply), asked);
                self.count_here(kind::of(asked.kind), false);
            }
        }
    }

    /// Puts an answer behind all others whose payload, if it has one, is in `self.reply`.
    fn answer(&mut self, outcome: Outcome, asked: Asked) {
        let (place, room) = self.outbox.room(ANSWER_BYTES.min(self.largest), &mut self.buffers);
        // SAFETY: the room is the outbox's, which nobody else uses before `written`.
        let writable = [unsafe { Segment::from_raw_parts(place, room) }];
        let written = reply::write(outcome, &writable, asked, &mut self.reply);
        // SAFETY: so many bytes were written.
        unsafe { self.outbox.written(written as usize) };
    }

    /// What was started for the request in slot `index` has ended.
    pub(super) fn conclude(&mut self, index: u16, result: i32, now_ns: u64) {
        let Some(deferred) = self.slots.get_mut(usize::from(index)).filter(|deferred| deferred.slot.busy) else {
            debug_assert!(false, "completion of request {index}, which is not in flight");
            return;
        };
        let held_bytes = std::mem::take(&mut deferred.held_bytes);
        let (asked, work, kind) = (deferred.slot.id, deferred.slot.work, deferred.slot.kind);
        let (started_ns, flushes) = (deferred.slot.started_ns, std::mem::take(&mut deferred.flushes));
        let (request, reply) = (std::mem::take(&mut deferred.request), std::mem::take(&mut deferred.reply));
        let job = (work == Work::Pool).then(|| {
            let mut job = lock(&deferred.slot.job);
            // Slots are many, and listings of directories long.
            job.reply.clear();
            job.reply.shrink_to(ANSWER_BYTES);
            (job.moved, job.failed)
        });
        deferred.slot.end();
        self.free.push(index);
        self.kept_bytes -= held_bytes;
        self.locks -= usize::from(work == Work::Lock);
        self.buffers.give(request);
        self.waits_for_all &= self.requests_in_flight() > 0;

        self.reply.clear();
        let failed = match work {
            Work::Pool | Work::Read if result >= 0 => {
                let (moved, failed) = job.unwrap_or((Moved { read: result as u64, ..Moved::default() }, false));
                self.count_moved(moved);
                self.answer_with(reply, work, result as usize, asked);
                failed
            }
            _ => {
                self.buffers.give(reply);
                let outcome = self.outcome(work, result, !flushes.is_empty());
                self.answer(outcome, asked);
                outcome.is_err()
            }
        };
        self.figures.requests.count(kind);
        self.figures.errors += u64::from(failed);
        self.figures.served.record(now_ns.saturating_sub(started_ns), 1);
        self.unsent += 1;
        for flush in flushes {
            self.reply.clear();
            self.answer(Ok(Answer::Reply), flush);
            self.count_here(kind::of(flush.kind), false);
        }
    }

    /// Answers with a reply that was written to a buffer of its own: its data alone by io_uring, all of it on a pool.
    fn answer_with(&mut self, mut reply: Vec<u8>, work: Work, result: usize, asked: Asked) {
        let written = if work == Work::Read {
            // SAFETY: the buffer is ours again, and moved nowhere before the segment is gone.
            let writable = [unsafe { to_write(&mut reply, READ_HEAD_BYTES + result) }];
            reply::write(Ok(Answer::Data(result)), &writable, asked, &mut self.reply) as usize
        } else {
            result
        };
        // SAFETY: the answer was written to the room behind the buffer's end, which is its beginning: so many bytes of it.
        unsafe { reply.set_len(written.min(reply.capacity())) };
        self.outbox.push(reply, &mut self.buffers);
    }

    /// What the completion of a request means whose answer is still to be put together.
    fn outcome(&mut self, work: Work, result: i32, flushed: bool) -> Outcome {
        match work {
            Work::Lock if result == 0 => lock_out(&mut self.reply, lock_status::SUCCESS),
            // A client that flushed it waits for no other answer than that to the flush.
            Work::Lock if result == -libc::EINTR && flushed => return Ok(Answer::Silence),
            // The connection ends, or the fid is gone: a client that is still there asks again.
            Work::Lock if result == -libc::EINTR => lock_out(&mut self.reply, lock_status::BLOCKED),
            _ if result < 0 => return Err(Errno::from_raw_os_error(result.saturating_neg())),
            Work::Write => {
                self.figures.bytes_written += result as u64;
                write_out(&mut self.reply, result as u32);
            }
            _ => {}
        }
        Ok(Answer::Reply)
    }

    fn count_moved(&mut self, moved: Moved) {
        self.figures.bytes_read += moved.read;
        self.figures.bytes_written += moved.written;
    }

    /// A request was answered in the turn that took it.
    fn count_here(&mut self, kind: usize, failed: bool) {
        self.figures.requests.count(kind);
        self.figures.errors += u64::from(failed);
        self.fresh_done += 1;
        self.unsent += 1;
    }
}

fn deferred_bytes(slots: &[Deferred], index: u16) -> usize {
    slots.get(usize::from(index)).map_or(0, |deferred| deferred.held_bytes)
}

/// On a thread of the pool. Returns how many bytes the answer has.
fn run_job(session: &Session, asked: Asked, job: &mut Job) -> i32 {
    let readable_bytes = job.readable_bytes();
    let Job { request, readable, writable, reply, data, moved, failed } = job;
    let Ok((header, request)) = decode(request, readable_bytes, asked.dialect) else {
        // It was decoded once already, from the same bytes.
        return -libc::EIO;
    };
    let mut scene = Scene { readable, writable, reply, data, moved };
    let outcome = session.perform(&header, &request, &mut scene);
    *failed = outcome.is_err();
    reply::write(outcome, writable, asked, reply) as i32
}
