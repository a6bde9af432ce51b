//! A virtio-9p ring and the directory behind it: the attachment. Kick to notification passes through this file.

use super::device::Siblings;
use super::kind;
use super::reply::{self, Asked};
use super::service::Session;
use crate::calls::{
    Answer, Care, Direction, Executor, Job, Moved, Pace, Requests, Scene, Slot, Turns, Work, data, lock, turns,
};
use crate::figures::RingFigures;
use crate::label::Label;
use crate::limit::Gate;
use crate::queue::{Broken, Queue};
use device::p9::{
    HEADER_BYTES, Header, Malformed, READ_HEAD_BYTES, Request, WRITE_HEAD_BYTES, decode, lock_out, lock_status,
    write_out,
};
use engine::{Completion, Execution, Io, Pool, Token};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use vring::{Chain, Memory, Segment};

/// One virtqueue of a directory that speaks 9P; what workers drive.
pub struct P9Ring {
    pub(super) turns: Turns,
    pub(super) session: Arc<Session>,
    siblings: Siblings,
    executor: Executor,
    /// One a descriptor, by head.
    pub(super) slots: Box<[Slot<Asked>]>,
    /// The request's own bytes.
    request: Vec<u8>,
    /// The answer's.
    reply: Vec<u8>,
    /// Where file data goes to or comes from, for calls on the spot.
    data: Vec<Segment>,
    pace: Pace,
    /// A limit holds requests up that come now.
    pub(super) closed: bool,
    /// Heads of those that it holds up, in the order in which they came.
    pub(super) held: VecDeque<u16>,
    /// Heads of versions that wait until all is given up that the client has had.
    pub(super) beginning: VecDeque<u16>,
    /// It takes no more turns.
    stopping: bool,
    /// Tags of the session that end with the next publication.
    answered: Vec<u16>,
}

/// What the driver gave with a request.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) readable: &'a [Segment],
    pub(super) writable: &'a [Segment],
}

/// How a request is executed.
enum Route {
    Here,
    Uring,
    Pool,
    /// To a thread for long calls.
    Aside,
    Lock,
    Flush,
    Begin,
}

impl P9Ring {
    pub(crate) fn new(
        start: vhost_user::RingStart,
        (session, siblings): (Arc<Session>, Siblings),
        executor: Executor,
        label: Label,
    ) -> Result<Self, Broken> {
        let turns = Turns::new(start, &kind::NAMES, label)?;
        Ok(P9Ring {
            slots: turns.slots(),
            turns,
            session,
            siblings,
            executor,
            request: Vec::new(),
            reply: Vec::new(),
            data: Vec::new(),
            pace: Pace::default(),
            closed: false,
            held: VecDeque::new(),
            beginning: VecDeque::new(),
            stopping: false,
            answered: Vec::new(),
        })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.turns.queue
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        &mut self.turns.queue
    }

    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
        self.turns.set_memory(memory);
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.turns.gate
    }

    pub(crate) fn gate_mut(&mut self) -> &mut Gate {
        &mut self.turns.gate
    }

    pub(crate) fn set_executor(&mut self, executor: Executor) {
        self.executor = executor;
        self.pace = Pace::default();
    }

    pub(crate) fn label(&self) -> &Label {
        self.turns.queue.label()
    }

    /// As [`Slot::oldest_ns`].
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        Slot::oldest_ns(&self.slots)
    }

    /// The figures so far, but for those that the queue keeps.
    pub(crate) fn figures(&self) -> &RingFigures {
        &self.turns.figures
    }

    /// Requests in flight.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn waiting(&self) -> Vec<Token> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.busy).map(|(head, _)| Token::request(head)).collect()
    }

    pub(super) fn slot(&mut self, head: u16) -> &mut Slot<Asked> {
        &mut self.slots[usize::from(head)]
    }

    /// Decodes a request and executes it, or holds it up.
    pub(super) fn begin(&mut self, head: u16, given: Given<'_>, bytes: &[u8], io: &mut Io<'_>) {
        let dialect = self.session.dialect();
        match decode(bytes, data::room(given.readable) as u64, dialect) {
            Ok((header, request)) => {
                let slot = self.slot(head);
                let known = slot.id.known;
                slot.id = Asked { known, ..Asked::new(&header, dialect) };
                slot.kind = kind::of(header.kind);
                self.turns.look |= !is_short(&request);
                if self.siblings.any() && !matches!(request, Request::Flush { .. }) {
                    self.make_known(head);
                }
                if self.closed && !passes_limits(&request) {
                    return self.hold_up(head, given, bytes);
                }
                // A client may ask for more than it could get: its limits, and those of its group, count what can move.
                let most = match request {
                    Request::Read { count, .. } => data::room(given.writable).min(count as usize),
                    Request::Write { count, .. } => count as usize,
                    _ => 0,
                };
                self.turns.begun_bytes += most.min(self.session.msize() as usize) as u64;
                self.execute(given, head, (bytes, &header, &request), io);
            }
            Err(malformed) => self.refuse(head, given, &malformed),
        }
    }

    fn refuse(&mut self, head: u16, given: Given<'_>, malformed: &Malformed) {
        self.turns.look = true;
        self.turns.report_refusal(malformed);
        let dialect = self.session.dialect();
        let slot = self.slot(head);
        slot.kind = kind::of_malformed();
        let known = slot.id.known;
        let written = malformed.header.map_or(0, |header| {
            let asked = Asked { known, ..Asked::new(&header, dialect) };
            let error = Errno::from_raw_os_error(malformed.errno());
            reply::write(Err(error), given.writable, asked, &mut self.reply)
        });
        self.finish(head, written, true);
    }

    fn execute(
        &mut self,
        given: Given<'_>,
        head: u16,
        (bytes, header, request): (&[u8], &Header, &Request<'_>),
        io: &mut Io<'_>,
    ) {
        match self.route(header, request) {
            Route::Uring if self.submit(given, head, request, io) => {}
            Route::Pool if self.hand_over(self.executor.pool.clone(), Care::none(), given, head, bytes, io) => {}
            // What io_uring does not take waits as long.
            Route::Aside | Route::Uring if self.leave(given, head, (bytes, request), io) => {}
            Route::Lock => self.wait_for_lock(given, head, request, io),
            Route::Flush => self.flush(given, head, request, io),
            Route::Begin if !self.may_begin() => self.begin_later(head, given, bytes),
            Route::Here | Route::Uring | Route::Pool | Route::Aside | Route::Begin => {
                if !self.perform(given, head, header, request) {
                    self.hand_over(self.executor.aside.clone(), Care::none(), given, head, bytes, io);
                }
            }
        }
    }

    /// Whether a version can be answered now: nothing is left of what the client has had. One part a turn is given up, however
    /// many versions come. A ring that stops leaves the rest to whoever comes next.
    fn may_begin(&self) -> bool {
        self.stopping || (self.beginning.is_empty() && self.session.begin_anew())
    }

    fn route(&mut self, header: &Header, request: &Request<'_>) -> Route {
        match request {
            // What begins a session must not be overtaken by what it ends.
            Request::Version { .. } => return Route::Begin,
            // These cost no time.
            Request::Auth(_) | Request::Unsupported(_) => return Route::Here,
            // Who waits for himself waits for ever.
            Request::Flush { oldtag } if *oldtag == header.tag => return Route::Here,
            Request::Flush { .. } => return Route::Flush,
            Request::Lock(lock) if lock.waits() => return Route::Lock,
            _ => {}
        }
        let transfer = direction_of(request);
        match self.executor.execution {
            Execution::Inline => Route::Here,
            Execution::Pool(_) => Route::Pool,
            // A sync waits for a disk, whoever asks.
            Execution::Uring | Execution::Auto if matches!(request, Request::Fsync { .. }) => Route::Uring,
            Execution::Uring | Execution::Auto if self.session.is_long(request) => Route::Aside,
            Execution::Uring if transfer.is_some() => Route::Uring,
            // What memory can answer is answered soonest by a call on the spot. What waits for a disk must not keep the
            // others waiting.
            Execution::Auto => match transfer {
                Some(direction) if !self.pace.quick(direction) => Route::Uring,
                _ => Route::Here,
            },
            Execution::Uring => Route::Here,
        }
    }

    /// On the spot. False when the request would have to wait for another process there, and there are threads that can.
    fn perform(&mut self, given: Given<'_>, head: u16, header: &Header, request: &Request<'_>) -> bool {
        self.reply.clear();
        let mut moved = Moved::default();
        let mut scene = Scene {
            readable: given.readable,
            writable: given.writable,
            reply: &mut self.reply,
            data: &mut self.data,
            moved: &mut moved,
        };
        let watched = direction_of(request).filter(|_| self.executor.execution == Execution::Auto);
        let mut perform = || self.session.perform(header, request, &mut scene);
        let outcome = match self.executor.aside {
            Some(_) => passthrough::without_waiting(perform),
            None => Some(perform()),
        };
        let Some(outcome) = outcome else { return false };
        if let Some(direction) = watched {
            let bytes = (moved.read + moved.written) as usize;
            self.pace.took(direction, moved.took_ns, bytes);
        }
        self.count(moved);
        let failed = outcome.is_err();
        let asked = self.slots[usize::from(head)].id;
        let written = reply::write(outcome, given.writable, asked, &mut self.reply);
        self.finish(head, written, failed);
        true
    }

    /// By io_uring. False when the request has to be executed otherwise.
    fn submit(&mut self, given: Given<'_>, head: u16, request: &Request<'_>, io: &mut Io<'_>) -> bool {
        let Some(file) = self.session.file_for_uring(request) else {
            return false;
        };
        let message_max = self.session.msize() as usize;
        let slot = &mut self.slots[usize::from(head)];
        let work = (io, Token::request(head));
        let submitted = match request {
            Request::Read { offset, count, .. } => {
                let bytes = (*count as usize).min(message_max.saturating_sub(READ_HEAD_BYTES));
                slot.read(work, file, *offset, (given.writable, READ_HEAD_BYTES, bytes))
            }
            Request::Write { offset, count, .. } => {
                let bytes = (*count as usize).min(message_max.saturating_sub(WRITE_HEAD_BYTES));
                slot.write(work, file, *offset, (given.readable, WRITE_HEAD_BYTES, bytes), given.writable)
            }
            Request::Fsync { datasync, .. } => match self.executor.syncs.begin() {
                Some(syncing) => {
                    slot.sync(work, file, (*datasync, syncing), given.writable);
                    true
                }
                None => false,
            },
            _ => false,
        };
        if submitted {
            self.make_known(head);
        }
        submitted
    }

    /// To a thread for long calls. False when there is none.
    fn leave(&mut self, given: Given<'_>, head: u16, (bytes, request): (&[u8], &Request<'_>), io: &mut Io<'_>) -> bool {
        let Some(aside) = self.executor.aside.clone() else { return false };
        let care = Care { changing: self.session.changes(request), appends: self.session.appends(request) };
        self.hand_over(Some(aside), care, given, head, bytes, io)
    }

    /// To a thread of the pool. False when there is none any more.
    fn hand_over(
        &mut self,
        pool: Option<Arc<Pool>>,
        care: Care,
        given: Given<'_>,
        head: u16,
        bytes: &[u8],
        io: &mut Io<'_>,
    ) -> bool {
        let Some(pool) = pool else { return false };
        self.make_known(head);
        let slot = &mut self.slots[usize::from(head)];
        slot.defer(Work::Pool, given.writable);
        lock(&slot.job).load(bytes, given.readable, given.writable);
        let (session, job, asked) = (self.session.clone(), slot.job.clone(), slot.id);
        let reply = io.reply(Token::request(head));
        care.leave(&pool, reply, move || run_job(&session, asked, &mut lock(&job)));
        true
    }

    /// The answer to this request comes later: whoever flushes it has to wait for that.
    pub(super) fn make_known(&mut self, head: u16) {
        let id = &mut self.slots[usize::from(head)].id;
        if !std::mem::replace(&mut id.known, true) {
            self.session.tags().begin(id.tag);
        }
    }

    fn count(&mut self, moved: Moved) {
        self.turns.figures.bytes_read += moved.read;
        self.turns.figures.bytes_written += moved.written;
    }
}

impl Requests for P9Ring {
    type Id = Asked;

    #[inline]
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    #[inline]
    fn slots(&mut self) -> &mut [Slot<Asked>] {
        &mut self.slots
    }

    fn start(&mut self, chain: &Chain, place: (u16, u64), io: &mut Io<'_>) {
        let head = place.0;
        if !self.turns.begin(&mut self.slots[usize::from(head)], place, io.now_ns()) {
            return;
        }
        let given = Given { readable: chain.readable_segments(), writable: chain.writable_segments() };
        let mut bytes = std::mem::take(&mut self.request);
        match data::fetch(given.readable, HEADER_BYTES, device::p9::bytes_wanted, &mut bytes) {
            Ok(()) => self.begin(head, given, &bytes, io),
            Err(malformed) => self.refuse(head, given, &malformed),
        }
        self.request = bytes;
    }

    /// What a limit held up goes first.
    #[inline]
    fn next(&mut self, io: &mut Io<'_>) -> bool {
        match self.held.pop_front() {
            Some(head) => {
                self.start_held(head, io);
                true
            }
            None => self.next_chain(io),
        }
    }

    fn held_up(&mut self, io: &mut Io<'_>) -> usize {
        self.take_while_closed(io)
    }

    fn pending(&mut self) -> bool {
        self.turns.queue.ready() || !self.held.is_empty()
    }

    #[inline]
    fn finish(&mut self, head: u16, written: u32, failed: bool) {
        let slot = &mut self.slots[usize::from(head)];
        if slot.id.known {
            self.answered.push(slot.id.tag);
        }
        self.turns.finish(slot, head, written, failed);
    }

    #[inline]
    fn published(&mut self) {
        for tag in self.answered.drain(..) {
            self.session.tags().end(tag);
        }
    }

    fn conclude(&mut self, head: u16, result: i32) -> (u32, bool) {
        let slot = &self.slots[usize::from(head)];
        let (work, asked) = (slot.work, slot.id);
        self.reply.clear();
        let failed = |result: i32| Err(Errno::from_raw_os_error(result.saturating_neg()));
        let outcome = match work {
            Work::Pool if result >= 0 => {
                let (moved, failed) = lock(&slot.job).conclude();
                self.count(moved);
                return (result as u32, failed);
            }
            // It has its answer, or there is none to wait for any more.
            Work::Other => Ok(Answer::Reply),
            Work::Lock => match result {
                0 => {
                    lock_out(&mut self.reply, lock_status::SUCCESS);
                    Ok(Answer::Reply)
                }
                // Linux knows that it has flushed the request by the answer to the flush, and looks for no other.
                _ if result == -libc::EINTR && self.session.tags().is_flushed(asked.tag) => Ok(Answer::Silence),
                // The ring stops, or the fid is gone: a client that is still there asks again.
                _ if result == -libc::EINTR => {
                    lock_out(&mut self.reply, lock_status::BLOCKED);
                    Ok(Answer::Reply)
                }
                _ => failed(result),
            },
            _ if result < 0 => failed(result),
            Work::Read => {
                self.turns.figures.bytes_read += result as u64;
                Ok(Answer::Data(result as usize))
            }
            Work::Write => {
                self.turns.figures.bytes_written += result as u64;
                write_out(&mut self.reply, result as u32);
                Ok(Answer::Reply)
            }
            _ => Ok(Answer::Reply),
        };
        let failed = outcome.is_err();
        let slot = &self.slots[usize::from(head)];
        (reply::write(outcome, &slot.writable, asked, &mut self.reply), failed)
    }
}

/// What its worker calls; see [`engine::Ring`].
impl P9Ring {
    /// While its gate is closed it takes what must not wait, and is not in the way of the others.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.turns.queue.ready() || self.has_kept()
    }

    pub(crate) fn arm(&mut self) -> bool {
        self.turns.queue.arm() || self.has_kept()
    }

    /// Whether a request that was kept can go on.
    #[inline]
    fn has_kept(&self) -> bool {
        !self.beginning.is_empty() || (!self.held.is_empty() && !self.turns.gate.closed())
    }

    pub(crate) fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        self.go_on_beginning(io);
        turns::serve(self, io)
    }

    pub(crate) fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        turns::complete(self, completion, io);
    }

    pub(crate) fn publish(&mut self, io: &mut Io<'_>) {
        turns::publish(self, io);
    }

    /// What was held up is done after all, and locks are waited for no longer.
    pub(crate) fn drain(&mut self, io: &mut Io<'_>) {
        self.stopping = true;
        while let Some(head) = self.beginning.pop_front().or_else(|| self.held.pop_front()) {
            self.start_held(head, io);
        }
        for wait in self.slots.iter().filter_map(|slot| slot.wait.as_ref()) {
            wait.cancel();
        }
    }

    /// It serves nothing any more: nobody must wait for its answers.
    pub(crate) fn lost(&mut self) {
        for slot in self.slots.iter().filter(|slot| slot.busy && slot.id.known) {
            self.session.tags().end(slot.id.tag);
        }
        self.published();
    }
}

/// On a thread of the pool. Returns how many bytes were written.
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

/// Whether a turn goes on without a look at the clock behind a request: those that clients send most, and that are short.
pub(super) fn is_short(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Walk { .. }
            | Request::GetAttr { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Lopen { .. }
            | Request::Clunk { .. }
            | Request::Flush { .. }
    )
}

/// Which way a request moves file data, if it does.
pub(super) fn direction_of(request: &Request<'_>) -> Option<Direction> {
    match request {
        Request::Read { .. } => Some(Direction::Read),
        Request::Write { .. } => Some(Direction::Write),
        _ => None,
    }
}

/// Whether limits are not for it: what ends things must not wait behind what it ends.
fn passes_limits(request: &Request<'_>) -> bool {
    matches!(request, Request::Flush { .. } | Request::Clunk { .. })
}
