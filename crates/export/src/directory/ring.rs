//! A virtio-fs ring and the directory behind it: the attachment. Kick to notification passes through this file.

use super::kind;
use super::reply;
use super::service::{Service, counts_as_error, write_answer};
use crate::calls::{
    Care, Direction, Executor, Job, Moved, Pace, Requests, Scene, Slot, Turns, Work, data, lock, turns,
};
use crate::figures::RingFigures;
use crate::label::Label;
use crate::limit::Gate;
use crate::queue::{Broken, Queue};
use device::fs::{Dialect, IN_HEADER_BYTES, InHeader, OUT_HEADER_BYTES, Request, WRITE_HEAD_BYTES, decode};
use engine::{Completion, Execution, Io, Pool, Reply, Token};
use rustix::io::Errno;
use std::sync::Arc;
use vring::{Chain, Memory, Segment};

/// One virtqueue of a directory; what workers drive.
pub struct DirectoryRing {
    turns: Turns,
    service: Arc<Service>,
    executor: Executor,
    /// What the session's INIT agreed on, as of the service's `epoch`.
    dialect: Option<Dialect>,
    dialect_of: u64,
    /// One a descriptor, by head. Requests are named by their `unique`.
    slots: Box<[Slot<u64>]>,
    /// The request's own bytes.
    request: Vec<u8>,
    /// The answer's.
    reply: Vec<u8>,
    /// Where file data goes to or comes from, for calls on the spot.
    data: Vec<Segment>,
    pace: Pace,
    /// Another life of the ring follows this one at once, and takes again what waits for a lock.
    suspended: bool,
    /// Heads of what it takes again.
    owed: Vec<u16>,
}

/// Most bytes of a READ or WRITE: 256 pages, which is what Linux has at most, of 64 KiB. Whoever asks for more is no driver that this
/// server has agreed on anything with, and would have it move gigabytes.
const TRANSFER_BYTES_MAX: u32 = 16 << 20;

/// Most bytes of a READ or WRITE that a worker, or its io_uring, moves.
const TRANSFER_HERE_MAX: u32 = 2 << 20;

/// How a request is executed.
enum Route {
    Here,
    Uring,
    Pool,
    /// To a thread for long calls.
    Aside,
    Lock,
}

impl DirectoryRing {
    pub(crate) fn new(
        start: vhost_user::RingStart,
        service: Arc<Service>,
        executor: Executor,
        label: Label,
    ) -> Result<Self, Broken> {
        let turns = Turns::new(start, &kind::NAMES, label)?;
        Ok(DirectoryRing {
            slots: turns.slots(),
            turns,
            service,
            executor,
            dialect: None,
            dialect_of: 0,
            request: Vec::new(),
            reply: Vec::new(),
            data: Vec::new(),
            pace: Pace::default(),
            suspended: false,
            owed: Vec::new(),
        })
    }

    /// Requests in flight that wait for a lock.
    pub(crate) fn waiting(&self) -> usize {
        self.slots.iter().filter(|slot| slot.busy && slot.work == Work::Lock).count()
    }

    /// What waits for a lock is left to the ring's next life from now on.
    pub(crate) fn suspend(&mut self) {
        self.suspended = true;
    }

    /// What was left, and what an earlier life has left to this one and this one did not get to.
    pub(crate) fn take_owed(&mut self) -> Vec<u16> {
        let mut owed = std::mem::take(&mut self.owed);
        owed.extend(self.turns.queue.take_owed());
        owed
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

    /// Answers a request that is not executed with an error.
    fn refuse(&mut self, chain: &Chain, head: u16, error: Errno) {
        let unique = self.slots[usize::from(head)].id;
        let written = reply::write(chain.writable_segments(), unique, Err(error));
        self.finish(head, written, true);
    }

    fn execute(
        &mut self,
        chain: &Chain,
        head: u16,
        (bytes, header, request): (&[u8], &InHeader, &Request<'_>),
        io: &mut Io<'_>,
    ) {
        match self.route(header, request) {
            Route::Uring if self.submit(chain, head, header, request, io) => {}
            Route::Pool if self.hand_over(self.executor.pool.clone(), Care::none(), chain, head, bytes, io) => {}
            // What io_uring does not take waits as long.
            Route::Aside | Route::Uring if self.leave(chain, head, (bytes, header, request), io) => {}
            Route::Lock => self.wait_for_lock(chain, head, header, request, io),
            Route::Here | Route::Uring | Route::Pool | Route::Aside => {
                if !self.perform(chain, head, header, request) {
                    self.hand_over(self.executor.aside.clone(), Care::none(), chain, head, bytes, io);
                }
            }
        }
    }

    fn route(&mut self, header: &InHeader, request: &Request<'_>) -> Route {
        if self.dialect.is_none() {
            return Route::Here;
        }
        match request {
            // A guest waits for these before it asks for anything else. To forget much takes its time.
            Request::Init(_) | Request::Destroy if self.service.knows_much() => return Route::Aside,
            // What ends or begins things must not be overtaken by what it ends, and costs no time.
            Request::Init(_)
            | Request::Destroy
            | Request::Forget { .. }
            | Request::BatchForget(_)
            | Request::Interrupt { .. } => return Route::Here,
            Request::SetLkw(_) => return Route::Lock,
            _ => {}
        }
        let transfer = direction_of(request);
        match self.executor.execution {
            Execution::Inline => Route::Here,
            Execution::Pool(_) => Route::Pool,
            // A sync waits for a disk, whoever asks.
            Execution::Uring | Execution::Auto if matches!(request, Request::Fsync(_)) => Route::Uring,
            Execution::Uring | Execution::Auto if self.is_long(header, request) => Route::Aside,
            Execution::Uring if transfer.is_some() => Route::Uring,
            // What memory can answer is answered soonest by a call on the spot. What waits for a disk must not keep the
            // others waiting.
            Execution::Auto => match transfer {
                Some(direction) if self.service.past_the_cache(request) || !self.pace.quick(direction) => Route::Uring,
                _ => Route::Here,
            },
            Execution::Uring => Route::Here,
        }
    }

    /// Whether a request may take a device's time, free much, or copy gigabytes.
    fn is_long(&self, header: &InHeader, request: &Request<'_>) -> bool {
        // Of guests with larger pages than ours.
        transfer_bytes(request) > TRANSFER_HERE_MAX || self.service.is_long(header, request)
    }

    /// On the spot. False when the request would have to wait for another process there, and there are threads that can.
    fn perform(&mut self, chain: &Chain, head: u16, header: &InHeader, request: &Request<'_>) -> bool {
        self.reply.clear();
        let mut moved = Moved::default();
        let mut scene = Scene {
            readable: chain.readable_segments(),
            writable: chain.writable_segments(),
            reply: &mut self.reply,
            data: &mut self.data,
            moved: &mut moved,
        };
        let watched = direction_of(request).filter(|_| self.executor.execution == Execution::Auto);
        let mut perform = || self.service.perform(self.dialect, header, request, &mut scene);
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
        let failed = outcome.is_err() && counts_as_error(header.opcode);
        let written = write_answer(outcome, chain.writable_segments(), header.unique, &self.reply);
        self.finish(head, written, failed);
        true
    }

    /// By io_uring. False when the request has to be executed otherwise.
    fn submit(&mut self, chain: &Chain, head: u16, header: &InHeader, request: &Request<'_>, io: &mut Io<'_>) -> bool {
        let Some(file) = passthrough::without_waiting(|| self.service.file_for_uring(header, request)).flatten() else {
            return false;
        };
        let slot = &mut self.slots[usize::from(head)];
        let (work, writable) = ((io, Token::request(head)), chain.writable_segments());
        match request {
            Request::Read(read) => slot.read(work, file, read.offset, (writable, OUT_HEADER_BYTES, read.size as usize)),
            Request::Write(write) => {
                let from = (chain.readable_segments(), WRITE_HEAD_BYTES, write.size as usize);
                slot.write(work, file, write.offset, from, writable)
            }
            Request::Fsync(sync) => {
                let Some(syncing) = self.executor.syncs.begin() else { return false };
                slot.sync(work, file, (sync.data_only, syncing), writable);
                true
            }
            _ => false,
        }
    }

    /// To a thread for long calls, or one of the pool. False when there is none.
    fn leave(
        &mut self,
        chain: &Chain,
        head: u16,
        (bytes, header, request): (&[u8], &InHeader, &Request<'_>),
        io: &mut Io<'_>,
    ) -> bool {
        let Some(pool) = self.executor.aside.clone().or_else(|| self.executor.pool.clone()) else { return false };
        if let Request::Release(release) = request {
            self.service.unlock_for_release(release);
        }
        let care = Care { changing: self.service.changes(header, request), appends: self.service.appends(request) };
        self.hand_over(Some(pool), care, chain, head, bytes, io)
    }

    /// To a thread of the pool. False when there is none any more.
    fn hand_over(
        &mut self,
        pool: Option<Arc<Pool>>,
        care: Care,
        chain: &Chain,
        head: u16,
        bytes: &[u8],
        io: &mut Io<'_>,
    ) -> bool {
        let Some(pool) = pool else { return false };
        let slot = &mut self.slots[usize::from(head)];
        slot.defer(Work::Pool, chain.writable_segments());
        lock(&slot.job).load(bytes, chain.readable_segments(), chain.writable_segments());
        let (service, job, dialect) = (self.service.clone(), slot.job.clone(), self.dialect);
        let reply = io.reply(Token::request(head));
        care.leave(&pool, reply, move || run_job(&service, dialect, &mut lock(&job)));
        true
    }

    /// Waits for a lock without keeping anybody else waiting.
    fn wait_for_lock(&mut self, chain: &Chain, head: u16, header: &InHeader, request: &Request<'_>, io: &mut Io<'_>) {
        let Request::SetLkw(lock) = request else {
            self.perform(chain, head, header, request);
            return;
        };
        let slot = &mut self.slots[usize::from(head)];
        slot.defer(Work::Lock, chain.writable_segments());
        let reply = io.reply(Token::request(head));
        let wait = || self.service.wait_lock(header, lock, move |outcome| answer_lock(reply, outcome));
        slot.wait = passthrough::without_waiting(wait).flatten();
    }

    fn count(&mut self, moved: Moved) {
        self.turns.figures.bytes_read += moved.read;
        self.turns.figures.bytes_written += moved.written;
    }
}

impl Requests for DirectoryRing {
    type Id = u64;

    #[inline]
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    #[inline]
    fn slots(&mut self) -> &mut [Slot<u64>] {
        &mut self.slots
    }

    fn start(&mut self, chain: &Chain, place: (u16, u64), io: &mut Io<'_>) {
        let head = place.0;
        if !self.turns.begin(&mut self.slots[usize::from(head)], place, io.now_ns()) {
            return;
        }
        let generation = self.service.generation();
        if self.dialect_of != generation {
            (self.dialect, self.dialect_of) = (self.service.dialect(), generation);
        }
        let mut bytes = std::mem::take(&mut self.request);
        let fetched = data::fetch(chain.readable_segments(), IN_HEADER_BYTES, device::fs::bytes_wanted, &mut bytes);
        let dialect = self.dialect.unwrap_or_default();
        match fetched.and_then(|()| decode(&bytes, chain.readable_bytes(), dialect)) {
            Ok((header, request)) => {
                let slot = &mut self.slots[usize::from(head)];
                (slot.id, slot.kind) = (header.unique, kind::of(header.opcode));
                self.turns.look |= !is_short(&request);
                let transfer = transfer_bytes(&request);
                if transfer <= TRANSFER_BYTES_MAX {
                    // A guest may ask for more than it has room for: its limits, and those of its group, count what can move.
                    self.turns.begun_bytes += match &request {
                        Request::Read(_) => data::room(chain.writable_segments()).min(transfer as usize) as u64,
                        _ => u64::from(transfer),
                    };
                    self.execute(chain, head, (&bytes, &header, &request), io);
                } else {
                    self.refuse(chain, head, Errno::INVAL);
                }
            }
            Err(malformed) => {
                self.turns.look = true;
                let slot = &mut self.slots[usize::from(head)];
                (slot.id, slot.kind) = (malformed.unique().unwrap_or_default(), kind::of_malformed(&malformed));
                self.turns.report_refusal(&malformed);
                self.refuse(chain, head, Errno::from_raw_os_error(malformed.errno()));
            }
        }
        self.request = bytes;
    }

    #[inline]
    fn finish(&mut self, head: u16, written: u32, failed: bool) {
        self.turns.finish(&mut self.slots[usize::from(head)], head, written, failed);
    }

    /// A wait that is given up because the ring is suspended, and not because its guest wants it so.
    fn put_off(&mut self, head: u16, result: i32) -> bool {
        let slot = &mut self.slots[usize::from(head)];
        let given_up = self.suspended && slot.work == Work::Lock && result == -libc::EINTR;
        if !given_up || !self.service.put_lock_wait_off(slot.id) {
            return false;
        }
        self.turns.put_off(slot);
        self.owed.push(head);
        true
    }

    fn conclude(&mut self, head: u16, result: i32) -> (u32, bool) {
        let slot = &mut self.slots[usize::from(head)];
        if slot.work == Work::Pool && result >= 0 {
            let (moved, failed) = lock(&slot.job).conclude();
            self.count(moved);
            return (result as u32, failed);
        }
        if slot.work == Work::Lock {
            self.service.lock_wait_ended(slot.id);
        }
        if result < 0 {
            let error = Errno::from_raw_os_error(-result);
            return (reply::write(&slot.writable, slot.id, Err(error)), true);
        }
        let written = match slot.work {
            Work::Read => {
                self.turns.figures.bytes_read += result as u64;
                reply::write_before_data(&slot.writable, slot.id, result as usize)
            }
            Work::Write => {
                self.turns.figures.bytes_written += result as u64;
                self.reply.clear();
                device::fs::write_out(&mut self.reply, result as u32);
                reply::write(&slot.writable, slot.id, Ok(&self.reply))
            }
            _ => reply::write(&slot.writable, slot.id, Ok(&[])),
        };
        (written, false)
    }
}

/// What its worker calls; see [`engine::Ring`].
impl DirectoryRing {
    pub(crate) fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        turns::serve(self, io)
    }

    pub(crate) fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        turns::complete(self, completion, io);
    }

    pub(crate) fn publish(&mut self, io: &mut Io<'_>) {
        turns::publish(self, io);
    }

    /// A guest that stops its rings no longer waits for locks; EINTR tells those that come back to ask again. What an earlier
    /// life owes is done before, unless another one follows.
    pub(crate) fn drain(&mut self, io: &mut Io<'_>) {
        let mut chain = Chain::default();
        while !self.suspended
            && let Some(place) = self.turns.queue.pop_owed(&mut chain)
        {
            self.start(&chain, place, io);
        }
        for wait in self.slots.iter().filter_map(|slot| slot.wait.as_ref()) {
            wait.cancel();
        }
    }
}

/// On a thread of the pool. Returns how many bytes were written.
fn run_job(service: &Service, dialect: Option<Dialect>, job: &mut Job) -> i32 {
    let readable_bytes = job.readable_bytes();
    let Job { request, readable, writable, reply, data, moved, failed } = job;
    let decoded = decode(request, readable_bytes, dialect.unwrap_or_default());
    let Ok((header, request)) = decoded else {
        // It was decoded once already, from the same bytes.
        return -libc::EIO;
    };
    let mut scene = Scene { readable, writable, reply, data, moved };
    let outcome = service.perform(dialect, &header, &request, &mut scene);
    *failed = outcome.is_err() && counts_as_error(header.opcode);
    write_answer(outcome, writable, header.unique, reply) as i32
}

/// Bytes of file data that a request asks to move to or from the guest.
fn transfer_bytes(request: &Request<'_>) -> u32 {
    match request {
        Request::Read(read) => read.size,
        Request::Write(write) => write.size,
        _ => 0,
    }
}

/// Whether a turn goes on without a look at the clock behind a request: those that guests send most, and that are short.
fn is_short(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Lookup { .. }
            | Request::GetAttr { .. }
            | Request::Forget { .. }
            | Request::Read(_)
            | Request::Write(_)
            | Request::Open(_)
            | Request::Release(_)
            | Request::Flush { .. }
            | Request::Access { .. }
            | Request::GetXattr { .. }
    )
}

/// Which way a request moves file data, if it does.
fn direction_of(request: &Request<'_>) -> Option<Direction> {
    match request {
        Request::Read(_) => Some(Direction::Read),
        Request::Write(_) => Some(Direction::Write),
        _ => None,
    }
}

fn answer_lock(reply: Reply, outcome: Result<(), Errno>) {
    reply.complete(outcome.map_or_else(|error| -error.raw_os_error(), |()| 0));
}
