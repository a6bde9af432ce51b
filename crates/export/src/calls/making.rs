//! The calls of one ring: where each is made, and what comes of it.

use super::protocol::{Protocol, Transfer, direction};
use super::request::{CallRequest, Job, Work, lock};
use super::{Answer, Care, Executor, Moved, Outcome, Scene, Syncing};
use engine::{Pool, Reply};
use passthrough::OpenFile;
use policy::{Chooser, Look, Route};
use rustix::io::Errno;
use std::sync::{Arc, Mutex};
use vring::Segment;

/// How a request is executed, with what that needs.
pub(crate) enum Way {
    /// On the worker.
    Here,
    /// By its io_uring.
    Uring(Arc<OpenFile>, Transfer, Option<Syncing>),
    /// On a thread.
    Thread(Arc<Pool>, Care),
    /// On a thread that waits for another client.
    Waiter,
}

/// A request that was executed on the worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Bytes of the answer.
    pub(crate) written: u32,
    pub(crate) failed: bool,
    pub(crate) moved: Moved,
}

/// Executes the requests of one ring.
pub(crate) struct Calls<P> {
    pub(crate) protocol: Arc<P>,
    executor: Executor,
    chooser: Chooser,
    /// The answer's payload.
    pub(crate) reply: Vec<u8>,
    /// Where file data goes to or comes from, for calls on the spot.
    data: Vec<Segment>,
}

/// A request that somebody may have to look at more closely.
struct Looked<'a, 'b, P: Protocol>(&'a P, &'a P::Request<'b>);

impl<P: Protocol> Look for Looked<'_, '_, P> {
    fn is_long(&self) -> bool {
        self.0.is_long(self.1)
    }

    fn is_past_the_cache(&self) -> bool {
        self.0.is_past_the_cache(self.1)
    }
}

impl<P: Protocol> Calls<P> {
    pub(crate) fn new(protocol: Arc<P>, executor: Executor) -> Calls<P> {
        let chooser = Chooser::new(executor.execution);
        Calls { protocol, executor, chooser, reply: Vec::new(), data: Vec::new() }
    }

    /// Where calls are made from now on.
    pub(crate) fn set_executor(&mut self, executor: Executor) {
        self.chooser = Chooser::new(executor.execution);
        self.executor = executor;
    }

    /// How to execute a request.
    #[inline]
    pub(crate) fn way(&mut self, asked: P::Asked, request: &P::Request<'_>) -> Way {
        let call = self.protocol.call(asked, request);
        match self.chooser.choose(call, &Looked(&*self.protocol, request)) {
            Route::Here => Way::Here,
            Route::Uring => self.by_uring(request).unwrap_or_else(|| self.aside(request)),
            Route::Pool => self.executor.pool.clone().map_or(Way::Here, |pool| Way::Thread(pool, Care::none())),
            Route::Aside => self.aside(request),
            Route::Waiter => Way::Waiter,
        }
    }

    fn by_uring(&self, request: &P::Request<'_>) -> Option<Way> {
        let transfer = self.protocol.transfer(request)?;
        let file = self.protocol.file_for_uring(request)?;
        let syncing = match transfer {
            Transfer::Sync { .. } => Some(self.executor.syncs.begin()?),
            Transfer::Read { bytes, .. } | Transfer::Write { bytes, .. } if bytes > 0 => None,
            Transfer::Read { .. } | Transfer::Write { .. } => return None,
        };
        Some(Way::Uring(file, transfer, syncing))
    }

    /// To a thread for long calls, or one of the pool; on the worker where there is none.
    pub(crate) fn aside(&self, request: &P::Request<'_>) -> Way {
        match self.executor.aside.as_ref().or(self.executor.pool.as_ref()) {
            Some(pool) => Way::Thread(Arc::clone(pool), self.protocol.leave(request)),
            None => Way::Here,
        }
    }

    /// On the spot. `Err` when the request would have to wait for another process there: a thread that can is in it.
    #[inline]
    pub(crate) fn perform(
        &mut self,
        asked: P::Asked,
        request: &P::Request<'_>,
        (readable, writable): (&[Segment], &[Segment]),
    ) -> Result<Done, Arc<Pool>> {
        self.reply.clear();
        let mut moved = Moved::default();
        let mut scene = Scene { readable, writable, reply: &mut self.reply, data: &mut self.data, moved: &mut moved };
        let mut perform = || self.protocol.perform(asked, request, &mut scene);
        let outcome = match &self.executor.aside {
            Some(aside) => passthrough::without_waiting(perform).ok_or_else(|| Arc::clone(aside))?,
            None => perform(),
        };
        if moved.took_ns > 0
            && let Some(direction) = direction(self.protocol.transfer(request))
        {
            self.chooser.took(direction, moved.took_ns, moved.read + moved.written);
        }
        let failed = P::is_failure(asked, &outcome);
        Ok(Done { written: P::answer(outcome, writable, asked, &mut self.reply), failed, moved })
    }

    /// On a thread of the pool: the request and where its answer goes are in the slot's job.
    pub(crate) fn leave(&self, request: &CallRequest<P::Asked>, (pool, care): (&Pool, Care), reply: Reply) {
        let (protocol, asked, job) = (Arc::clone(&self.protocol), request.asked, Arc::clone(&request.job));
        care.leave(pool, reply, move || run(&*protocol, asked, &job));
    }

    /// Waits for a lock without keeping anybody else waiting.
    pub(crate) fn wait_for_lock(&self, request: &mut CallRequest<P::Asked>, decoded: &P::Request<'_>, reply: Reply) {
        let done = move |outcome: Result<(), Errno>| {
            reply.complete(outcome.map_or_else(|error| -error.raw_os_error(), |()| 0));
        };
        let wait = || self.protocol.wait_for_lock(request.asked, decoded, done);
        request.wait = passthrough::without_waiting(wait).flatten();
    }

    /// What the completion of a request means that nobody has answered yet; the payload is in `reply`.
    pub(crate) fn outcome(&mut self, work: Work, asked: P::Asked, result: i32, moved: &mut Moved) -> Outcome {
        self.reply.clear();
        match work {
            Work::Lock => return self.protocol.lock_outcome(asked, result, &mut self.reply),
            // It has its answer, or there is none to wait for any more.
            Work::Other => {}
            _ if result < 0 => return Err(Errno::from_raw_os_error(result.saturating_neg())),
            Work::Read => {
                moved.read = result as u64;
                return Ok(Answer::Data(result as usize));
            }
            Work::Write => {
                moved.written = result as u64;
                P::written(&mut self.reply, result as u32);
            }
            Work::Here | Work::Sync | Work::Pool | Work::Turn => {}
        }
        Ok(Answer::Reply)
    }
}

/// On a thread of the pool. Returns how many bytes were written.
fn run<P: Protocol>(protocol: &P, asked: P::Asked, job: &Mutex<Job>) -> i32 {
    let mut job = lock(job);
    let readable_bytes = job.readable_bytes();
    let Job { request, readable, writable, reply, data, moved, failed } = &mut *job;
    let Some(request) = P::decode(asked, request, readable_bytes) else {
        return -libc::EIO;
    };
    let outcome = protocol.perform(asked, &request, &mut Scene { readable, writable, reply, data, moved });
    *failed = P::is_failure(asked, &outcome);
    P::answer(outcome, writable, asked, reply) as i32
}
