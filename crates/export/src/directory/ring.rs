//! A virtio-fs ring and the directory behind it: the attachment. Kick to notification passes through this file.

use super::data::SEGMENTS_MAX;
use super::kind;
use super::pace::Pace;
use super::service::{Moved, Scene, Service, counts_as_error, write_answer};
use super::slot::{Job, Slot, Work};
use super::{data, reply};
use crate::figures::RingFigures;
use crate::label::Label;
use crate::limit::{Ask, Gate, is_deadline};
use crate::queue::{Broken, Queue};
use device::fs::{Dialect, IN_HEADER_BYTES, InHeader, Malformed, Request, decode};
use engine::{Execution, File, Io, Pool, Reply, Token};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vring::{Chain, Segment};

/// Requests taken in one turn, so that rings of one worker take turns.
const BATCH_MAX: usize = 64;
/// Answers that are ready while the batch goes on are shown to the driver, which is told of them if it sleeps, in groups of
/// this size: it works on the first while we work on the next. A guest keeps some sixteen requests under way; larger groups
/// let the two take turns instead, smaller ones cost too many notifications (`docs/decisions/0006`).
const PUBLISH_EVERY: usize = 4;

/// Where the calls of one ring run.
#[derive(Clone, Default)]
pub(crate) struct Executor {
    pub(crate) execution: Execution,
    pub(crate) pool: Option<Arc<Pool>>,
}

/// One virtqueue of a directory; what workers drive.
pub struct DirectoryRing {
    queue: Queue,
    service: Arc<Service>,
    executor: Executor,
    /// What the session's INIT agreed on, as of the service's `epoch`.
    dialect: Option<Dialect>,
    dialect_of: u64,
    /// One a descriptor, by head.
    slots: Box<[Slot]>,
    chain: Chain,
    /// The request's own bytes.
    request: Vec<u8>,
    /// The answer's.
    reply: Vec<u8>,
    /// Where file data goes to or comes from, for calls on the spot.
    data: Vec<Segment>,
    pace: Pace,
    figures: RingFigures,
    /// Bytes that reads and writes asked for.
    begun_bytes: u64,
    /// Requests answered in this turn that were taken in it.
    fresh_done: u64,
    /// Pushed since the last publication.
    pushed: usize,
    /// Since when requests wait that did not fit into a batch, or that a limit holds up.
    backlog_since_ns: Option<u64>,
    gate: Gate,
    label: Label,
}

/// How a request is executed.
enum Route {
    Here,
    Uring,
    Pool,
    Lock,
}

impl DirectoryRing {
    pub(crate) fn new(
        start: link::RingStart,
        service: Arc<Service>,
        executor: Executor,
        label: Label,
    ) -> Result<Self, vring::RingError> {
        let queue = Queue::new(start)?;
        let slots = (0..queue.size()).map(|_| Slot::new()).collect();
        Ok(DirectoryRing {
            queue,
            service,
            executor,
            dialect: None,
            dialect_of: 0,
            slots,
            chain: Chain::default(),
            request: Vec::new(),
            reply: Vec::new(),
            data: Vec::new(),
            pace: Pace::default(),
            figures: RingFigures::new(&kind::NAMES),
            begun_bytes: 0,
            fresh_done: 0,
            pushed: 0,
            backlog_since_ns: None,
            gate: Gate::default(),
            label,
        })
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn gate_mut(&mut self) -> &mut Gate {
        &mut self.gate
    }

    pub(crate) fn set_executor(&mut self, executor: Executor) {
        self.executor = executor;
        self.pace = Pace::default();
    }

    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    /// When the request was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC. Looks at every slot:
    /// for whoever asks, not for the path of a request. Who waits for a lock waits for another guest, and does not count.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let waits = self.slots.iter().filter(|slot| slot.busy && slot.work != Work::Lock);
        waits.map(|slot| slot.started_ns).min()
    }

    /// The figures so far, but for those that the queue keeps.
    pub(crate) fn figures(&self) -> &RingFigures {
        &self.figures
    }

    /// Takes the popped chain apart and starts it.
    fn start(&mut self, chain: &Chain, (head, epoch): (u16, u64), io: &mut Io<'_>) {
        let slot = &mut self.slots[usize::from(head)];
        if slot.busy {
            self.queue.forget(epoch);
            self.queue.break_down(Broken::HeadInFlight(head));
            return;
        }
        slot.begin(epoch, io.now_ns());
        let generation = self.service.generation();
        if self.dialect_of != generation {
            (self.dialect, self.dialect_of) = (self.service.dialect(), generation);
        }
        let mut bytes = std::mem::take(&mut self.request);
        let fetched = fetch(chain, &mut bytes);
        match fetched.and_then(|readable| decode(&bytes, readable, self.dialect.unwrap_or_default())) {
            Ok((header, request)) => {
                let slot = &mut self.slots[usize::from(head)];
                (slot.unique, slot.kind) = (header.unique, kind::of(header.opcode));
                self.begun_bytes += match &request {
                    Request::Read(read) => u64::from(read.size),
                    Request::Write(write) => u64::from(write.size),
                    _ => 0,
                };
                self.execute(chain, head, (&bytes, &header, &request), io);
            }
            Err(malformed) => {
                let slot = &mut self.slots[usize::from(head)];
                (slot.unique, slot.kind) = (malformed.unique().unwrap_or_default(), kind::of_malformed(&malformed));
                let Label { export, ring, .. } = &self.label;
                tracing::debug!(export = &**export, ring, reason = %malformed, "a request is refused");
                let error = Errno::from_raw_os_error(malformed.errno());
                let written = reply::write(chain.writable_segments(), slot.unique, Err(error));
                self.finish(head, written, true);
            }
        }
        self.request = bytes;
    }

    fn execute(
        &mut self,
        chain: &Chain,
        head: u16,
        (bytes, header, request): (&[u8], &InHeader, &Request<'_>),
        io: &mut Io<'_>,
    ) {
        match self.route(request) {
            Route::Uring if self.submit(chain, head, header, request, io) => {}
            Route::Pool if self.hand_over(chain, head, bytes, io) => {}
            Route::Lock => self.wait_for_lock(chain, head, header, request, io),
            Route::Here | Route::Uring | Route::Pool => self.perform(chain, head, header, request),
        }
    }

    fn route(&mut self, request: &Request<'_>) -> Route {
        if self.dialect.is_none() {
            return Route::Here;
        }
        match request {
            // What ends or begins things must not be overtaken by what it ends, and costs no time.
            Request::Init(_)
            | Request::Destroy
            | Request::Forget { .. }
            | Request::BatchForget(_)
            | Request::Interrupt { .. } => return Route::Here,
            Request::SetLkw(_) => return Route::Lock,
            _ => {}
        }
        let transfer = matches!(request, Request::Read(_) | Request::Write(_));
        match self.executor.execution {
            Execution::Inline => Route::Here,
            Execution::Pool(_) => Route::Pool,
            // A sync waits for a disk, whoever asks.
            Execution::Uring | Execution::Auto if matches!(request, Request::Fsync(_)) => Route::Uring,
            Execution::Uring if transfer => Route::Uring,
            // What memory can answer is answered soonest by a call on the spot. What waits for a disk must not keep the
            // others waiting.
            Execution::Auto if transfer && (self.service.past_the_cache(request) || !self.pace.quick()) => Route::Uring,
            Execution::Uring | Execution::Auto => Route::Here,
        }
    }

    /// On the spot.
    fn perform(&mut self, chain: &Chain, head: u16, header: &InHeader, request: &Request<'_>) {
        self.reply.clear();
        let mut moved = Moved::default();
        let mut scene = Scene {
            readable: chain.readable_segments(),
            writable: chain.writable_segments(),
            reply: &mut self.reply,
            data: &mut self.data,
            moved: &mut moved,
        };
        let watched =
            matches!(request, Request::Read(_) | Request::Write(_)) && self.executor.execution == Execution::Auto;
        let outcome = self.service.perform(self.dialect, header, request, &mut scene);
        if watched {
            let bytes = (moved.read + moved.written) as usize;
            self.pace.took(moved.took_ns, bytes);
        }
        self.count(moved);
        let failed = outcome.is_err() && counts_as_error(header.opcode);
        let written = write_answer(outcome, chain.writable_segments(), header.unique, &self.reply);
        self.finish(head, written, failed);
    }

    /// By io_uring. False when the request has to be executed otherwise.
    fn submit(&mut self, chain: &Chain, head: u16, header: &InHeader, request: &Request<'_>, io: &mut Io<'_>) -> bool {
        let Some(file) = self.service.file_for_uring(header, request) else {
            return false;
        };
        let slot = &mut self.slots[usize::from(head)];
        let token = Token::from(head);
        match request {
            Request::Read(read) => {
                reply::data_part(chain.writable_segments(), read.size as usize, &mut slot.data);
                if slot.data.is_empty() || slot.data.len() > SEGMENTS_MAX {
                    return false;
                }
                slot.defer(Work::Read, chain.writable_segments());
                let file = slot.file.insert(file);
                // SAFETY: the segments lie in guest memory that the request's epoch keeps mapped, and the slot keeps the
                // list in place until the completion.
                unsafe { io.read(token, File::Plain(file.as_fd()), Segment::as_iovecs(&slot.data), read.offset) };
            }
            Request::Write(write) => {
                data::payload(chain.readable_segments(), write.size as usize, &mut slot.data);
                if slot.data.is_empty() || slot.data.len() > SEGMENTS_MAX {
                    return false;
                }
                slot.defer(Work::Write, chain.writable_segments());
                let file = slot.file.insert(file);
                let list = Segment::as_iovecs(&slot.data);
                // SAFETY: as for reading.
                unsafe { io.write(token, File::Plain(file.as_fd()), list, write.offset, false) };
            }
            Request::Fsync(sync) => {
                slot.defer(Work::Sync, chain.writable_segments());
                let file = slot.file.insert(file);
                io.sync(token, File::Plain(file.as_fd()), sync.data_only);
            }
            _ => return false,
        }
        true
    }

    /// To a thread of the pool. False when there is none any more.
    fn hand_over(&mut self, chain: &Chain, head: u16, bytes: &[u8], io: &mut Io<'_>) -> bool {
        let Some(pool) = self.executor.pool.clone() else {
            return false;
        };
        let slot = &mut self.slots[usize::from(head)];
        slot.defer(Work::Pool, chain.writable_segments());
        {
            let mut job = lock(&slot.job);
            job.request.clear();
            job.request.extend_from_slice(bytes);
            job.readable.clear();
            job.readable.extend_from_slice(chain.readable_segments());
            job.writable.clear();
            job.writable.extend_from_slice(chain.writable_segments());
            job.readable_bytes = chain.readable_bytes();
        }
        let (service, job, dialect) = (self.service.clone(), slot.job.clone(), self.dialect);
        let reply = io.reply(Token::from(head));
        pool.run(reply, move || run_job(&service, dialect, &mut lock(&job)));
        true
    }

    /// Waits for a lock without keeping anybody else waiting.
    fn wait_for_lock(&mut self, chain: &Chain, head: u16, header: &InHeader, request: &Request<'_>, io: &mut Io<'_>) {
        let Request::SetLkw(lock) = request else {
            return self.perform(chain, head, header, request);
        };
        let slot = &mut self.slots[usize::from(head)];
        slot.defer(Work::Lock, chain.writable_segments());
        let reply = io.reply(Token::from(head));
        slot.wait = self.service.wait_lock(header, lock, move |outcome| answer_lock(reply, outcome));
    }

    /// Ends a request: its answer is written.
    fn finish(&mut self, head: u16, written: u32, failed: bool) {
        let slot = &mut self.slots[usize::from(head)];
        self.figures.requests.count(slot.kind);
        self.figures.errors += u64::from(failed);
        slot.end();
        self.fresh_done += u64::from(slot.fresh);
        let epoch = slot.epoch;
        self.queue.push(head, written, epoch);
        self.pushed += 1;
    }

    fn count(&mut self, moved: Moved) {
        self.figures.bytes_read += moved.read;
        self.figures.bytes_written += moved.written;
    }

    /// Bytes of the reads and writes begun so far, as limits count them.
    fn moved_bytes(&self) -> u64 {
        self.begun_bytes
    }

    /// A deadline that the gate had set: requests may be taken again.
    fn gate_reached(&mut self, token: Token, io: &mut Io<'_>) {
        if let Some(deadline) = self.gate.reached(token, self.queue.ready(), io.now_ns()) {
            io.timer(deadline.token, deadline.at_ns);
        }
    }

    /// Says once, in the log, that the ring broke.
    fn report_break(&self, was_broken: bool) {
        if !was_broken && let Some(why) = self.queue.broken() {
            let Label { export, ring, .. } = &self.label;
            tracing::warn!(export = &**export, ring, reason = %why, "the ring is broken and stopped");
        }
    }

    /// What a deferred request's completion means: the answer's length, and whether it is an error.
    fn conclude(&mut self, head: u16, result: i32) -> (u32, bool) {
        let slot = &mut self.slots[usize::from(head)];
        if slot.work == Work::Pool && result >= 0 {
            let (moved, failed) = {
                let job = lock(&slot.job);
                (job.moved, job.failed)
            };
            self.count(moved);
            return (result as u32, failed);
        }
        if slot.work == Work::Lock {
            self.service.lock_wait_ended(slot.unique);
        }
        if result < 0 {
            return (slot.answer(Err(Errno::from_raw_os_error(-result))), true);
        }
        let written = match slot.work {
            Work::Read => {
                self.figures.bytes_read += result as u64;
                reply::write_before_data(&slot.writable, slot.unique, result as usize)
            }
            Work::Write => {
                self.figures.bytes_written += result as u64;
                self.reply.clear();
                device::fs::write_out(&mut self.reply, result as u32);
                slot.answer(Ok(&self.reply))
            }
            _ => slot.answer(Ok(&[])),
        };
        (written, false)
    }
}

/// What its worker calls; see [`engine::Ring`].
impl DirectoryRing {
    pub(crate) fn serve(&mut self, io: &mut Io<'_>) -> usize {
        let was_broken = self.queue.broken().is_some();
        let grant = match self.gate.ask(BATCH_MAX as u32, io.now_ns()) {
            Ask::Go(grant) => grant,
            Ask::Wait(deadline) => {
                self.backlog_since_ns.get_or_insert(io.now_ns());
                io.timer(deadline.token, deadline.at_ns);
                return 0;
            }
        };
        let moved = self.moved_bytes();
        let mut taken = 0;
        while taken < grant.requests as usize && !grant.is_spent(|| self.moved_bytes() - moved) {
            let mut chain = std::mem::take(&mut self.chain);
            if let Some(place) = self.queue.pop(&mut chain) {
                self.start(&chain, place, io);
                taken += 1;
                self.chain = chain;
            } else {
                self.chain = chain;
                break;
            }
            if self.pushed >= PUBLISH_EVERY {
                self.pushed = 0;
                self.queue.publish();
                self.queue.notify_now(io);
            }
        }
        self.gate.settle(grant, taken as u32, self.moved_bytes() - moved);
        let waited_ns = self.backlog_since_ns.map_or(0, |since| io.now_ns().saturating_sub(since));
        self.figures.queued.record(waited_ns, taken as u64);
        self.backlog_since_ns = (taken == BATCH_MAX).then(|| self.backlog_since_ns.unwrap_or(io.now_ns()));
        self.figures.in_flight_max = self.figures.in_flight_max.max(self.queue.in_flight() + self.pushed);
        self.report_break(was_broken);
        taken
    }

    pub(crate) fn complete(&mut self, token: Token, result: i32, io: &mut Io<'_>) {
        let Some(slot) = self.slots.get_mut(token as usize).filter(|slot| slot.busy) else {
            if is_deadline(token) {
                return self.gate_reached(token, io);
            }
            debug_assert!(false, "completion of request {token}, which is not in flight");
            return;
        };
        slot.fresh = false;
        let (head, started_ns) = (token as u16, slot.started_ns);
        let (written, failed) = self.conclude(head, result);
        self.finish(head, written, failed);
        self.figures.served.record(io.now_ns().saturating_sub(started_ns), 1);
    }

    pub(crate) fn publish(&mut self, io: &mut Io<'_>) {
        self.pushed = 0;
        self.queue.publish();
        self.queue.notify(io);
        let done = std::mem::take(&mut self.fresh_done);
        if done > 0 {
            // Requests that ended in the turn that took them share one reading of the clock.
            self.figures.served.record(io.clock_ns().saturating_sub(io.now_ns()), done);
        }
    }

    /// A guest that stops its rings no longer waits for locks; EINTR tells those that come back to ask again.
    pub(crate) fn drain(&mut self, _io: &mut Io<'_>) {
        for wait in self.slots.iter().filter_map(|slot| slot.wait.as_ref()) {
            wait.cancel();
        }
    }
}

/// Copies the request's own bytes, without the data of a write. Returns how many readable bytes there are in all.
fn fetch(chain: &Chain, bytes: &mut Vec<u8>) -> Result<u64, Malformed> {
    let readable = chain.readable_segments();
    let readable_bytes = chain.readable_bytes();
    bytes.resize(IN_HEADER_BYTES, 0);
    let there = vring::copy::read_at(readable, 0, bytes);
    bytes.truncate(there);
    let wanted = device::fs::bytes_wanted(bytes)?;
    if wanted > bytes.len() {
        bytes.resize(wanted, 0);
        let there = vring::copy::read_at(readable, IN_HEADER_BYTES as u64, &mut bytes[IN_HEADER_BYTES..]);
        bytes.truncate(IN_HEADER_BYTES + there);
    }
    Ok(readable_bytes)
}

/// On a thread of the pool. Returns how many bytes were written.
fn run_job(service: &Service, dialect: Option<Dialect>, job: &mut Job) -> i32 {
    let Job { request, readable, writable, readable_bytes, reply, data, moved, failed } = job;
    reply.clear();
    *moved = Moved::default();
    let decoded = decode(request, *readable_bytes, dialect.unwrap_or_default());
    let Ok((header, request)) = decoded else {
        // It was decoded once already, from the same bytes.
        return -libc::EIO;
    };
    let mut scene = Scene { readable, writable, reply, data, moved };
    let outcome = service.perform(dialect, &header, &request, &mut scene);
    *failed = outcome.is_err() && counts_as_error(header.opcode);
    write_answer(outcome, writable, header.unique, reply) as i32
}

fn answer_lock(reply: Reply, outcome: Result<(), Errno>) {
    reply.complete(outcome.map_or_else(|error| -error.raw_os_error(), |()| 0));
}

fn lock(job: &Mutex<Job>) -> MutexGuard<'_, Job> {
    job.lock().unwrap_or_else(PoisonError::into_inner)
}
