//! A virtqueue whose requests are calls.

use super::making::{Calls, Way};
use super::protocol::{Protocol, Transfer};
use super::request::{CallRequest, Work, lock};
use super::{Answer, Care, Executor, Moved, Syncing};
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::trace::LOCK;
use crate::turns::Turns;
use crate::virtqueue::Virtqueue;
use engine::{Completion, Io, Pool, Token};
use passthrough::OpenFile;
use rustix::io::Errno;
use std::sync::Arc;
use vring::Segment;

/// Answers that are ready while the batch goes on are shown to the driver, which is told of them if it sleeps, in groups of
/// this size: it works on the first while we work on the next. A guest keeps some sixteen requests under way; larger groups
/// let the two take turns instead, smaller ones cost too many notifications (`docs/decisions/0006`).
const PUBLISH_EVERY: usize = 4;

/// What the driver gave with a request.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) readable: &'a [Segment],
    pub(crate) writable: &'a [Segment],
}

/// What rings of directories are made of, whatever protocol they speak.
pub(crate) struct CallQueue<P: Protocol> {
    pub(crate) turns: Turns,
    pub(crate) ring: Virtqueue<CallRequest<P::Asked>>,
    pub(crate) calls: Calls<P>,
    /// The bytes of the request that is being started, without the data of a write.
    pub(crate) bytes: Vec<u8>,
    /// Answers that somebody waits for who is no driver, since the last publication.
    answered: Vec<P::Asked>,
}

impl<P: Protocol> CallQueue<P> {
    /// `kinds` are the names of the protocol's requests.
    ///
    /// # Errors
    /// As for [`Queue::new`].
    pub(crate) fn new(
        start: vhost_user::RingStart,
        protocol: Arc<P>,
        executor: Executor,
        kinds: &'static [&'static str],
        label: Label,
    ) -> Result<CallQueue<P>, Broken> {
        let queue = Queue::new(start, label.clone())?;
        let turns = Turns::new(kinds, queue.size().into(), label);
        let ring = Virtqueue::new(queue, &turns.figures, CallRequest::new);
        let calls = Calls::new(protocol, executor);
        Ok(CallQueue { turns, ring, calls, bytes: Vec::new(), answered: Vec::new() })
    }

    #[inline]
    pub(crate) fn request(&mut self, head: u16) -> &mut CallRequest<P::Asked> {
        &mut self.ring.slot(head).request
    }

    /// Notes what a request is: what its answer has to know, and what figures count it as.
    #[inline]
    pub(crate) fn identify(&mut self, head: u16, asked: P::Asked, kind: usize) {
        let slot = self.ring.slot(head);
        (slot.kind, slot.request.asked) = (kind, asked);
    }

    /// Executes a request, or has it executed.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        head: u16,
        given: Given<'_>,
        (bytes, request): (&[u8], &P::Request<'_>),
        io: &mut Io<'_>,
    ) {
        let asked = self.request(head).asked;
        let mut way = self.calls.way(asked, request);
        if let Way::Uring(file, transfer, syncing) = way {
            if self.submit(head, given, file, (transfer, syncing), io) {
                return self.turns.trace.pending(head, io);
            }
            // It waits as long.
            way = self.calls.aside(request);
        }
        match way {
            Way::Thread(pool, care) => self.leave(head, given, bytes, (&pool, care), io),
            Way::Waiter => self.wait_for_lock(head, given, request, io),
            Way::Here | Way::Uring(..) => match self.calls.perform(asked, request, (given.readable, given.writable)) {
                Ok(done) => {
                    self.count(done.moved);
                    self.finish(head, done.written, done.failed, io);
                }
                Err(pool) => self.leave(head, given, bytes, (&pool, Care::none()), io),
            },
        }
    }

    fn submit(
        &mut self,
        head: u16,
        given: Given<'_>,
        file: Arc<OpenFile>,
        transfer: (Transfer, Option<Syncing>),
        io: &mut Io<'_>,
    ) -> bool {
        let memory = (given.readable, given.writable);
        let submitted = self.request(head).submit::<P>((io, Token::request(head)), file, transfer, memory);
        if submitted {
            self.deferred(head);
        }
        submitted
    }

    fn leave(&mut self, head: u16, given: Given<'_>, bytes: &[u8], thread: (&Pool, Care), io: &mut Io<'_>) {
        self.keep(head, given, bytes, Work::Pool);
        let request = &self.ring.slot(head).request;
        self.calls.leave(request, thread, io.reply(Token::request(head)));
        self.turns.trace.pending(head, io);
    }

    fn wait_for_lock(&mut self, head: u16, given: Given<'_>, request: &P::Request<'_>, io: &mut Io<'_>) {
        self.deferred(head);
        self.defer(head, given, Work::Lock);
        self.calls.wait_for_lock(&mut self.ring.slot(head).request, request, io.reply_by(LOCK, Token::request(head)));
        self.turns.trace.pending(head, io);
    }

    /// The slot of a request keeps what it needs to be executed elsewhere, or later.
    pub(crate) fn keep(&mut self, head: u16, given: Given<'_>, bytes: &[u8], work: Work) {
        self.deferred(head);
        self.defer(head, given, work);
        lock(&self.request(head).job).load(bytes, given.readable, given.writable);
    }

    /// The request waits for something.
    pub(crate) fn defer(&mut self, head: u16, given: Given<'_>, work: Work) {
        let slot = self.ring.slot(head);
        slot.request.defer(work, given.writable);
        if !work.is_ours() {
            slot.waits();
        }
    }

    /// The request is answered later.
    pub(crate) fn deferred(&mut self, head: u16) {
        self.calls.protocol.deferred(&mut self.ring.slot(head).request.asked);
    }

    /// Answers a request that is not executed with an error.
    pub(crate) fn refuse(&mut self, head: u16, writable: &[Segment], error: Errno, io: &Io<'_>) {
        let asked = self.request(head).asked;
        let written = P::answer(Err(error), writable, asked, &mut self.calls.reply);
        self.finish(head, written, true, io);
    }

    /// Ends a request: its answer is written.
    #[inline]
    pub(crate) fn finish(&mut self, head: u16, written: u32, failed: bool, io: &Io<'_>) {
        let slot = self.ring.slot(head);
        if P::is_awaited(slot.request.asked) {
            self.answered.push(slot.request.asked);
        }
        slot.request.end();
        self.turns.answered(slot, failed, io);
        self.ring.finish(head, written);
    }

    /// Ends a request without an answer: the ring's next life takes it again.
    pub(crate) fn put_off(&mut self, head: u16) {
        self.request(head).end();
        self.ring.put_off(head);
        self.turns.trace.put_off(head);
    }

    /// The head of the request that work has ended for, which was started in an earlier turn.
    pub(crate) fn head_of(&mut self, completion: Completion, io: &mut Io<'_>) -> Option<u16> {
        let head = self.ring.in_flight(completion.token.index());
        debug_assert!(head.is_some(), "completion of {:?}, which is not in flight", completion.token);
        self.ring.slot(head?).fresh = false;
        self.turns.trace.ended(head?, io);
        head
    }

    /// The work of a request has ended. `flushed`: its client waits for no answer any more.
    pub(crate) fn conclude(&mut self, head: u16, result: i32, flushed: bool, io: &Io<'_>) {
        let request = &self.ring.slot(head).request;
        let (work, asked) = (request.work, request.asked);
        if work == Work::Pool && result >= 0 {
            let (moved, failed) = lock(&request.job).conclude();
            self.count(moved);
            return self.finish(head, result as u32, failed, io);
        }
        let mut moved = Moved::default();
        let outcome = match work {
            Work::Lock if flushed && result == -libc::EINTR => Ok(Answer::Silence),
            _ => self.calls.outcome(work, asked, result, &mut moved),
        };
        self.count(moved);
        let failed = P::is_failure(asked, &outcome);
        let writable = &self.ring.slot(head).request.writable;
        let written = P::answer(outcome, writable, asked, &mut self.calls.reply);
        self.finish(head, written, failed, io);
    }

    fn count(&mut self, moved: Moved) {
        self.turns.figures.bytes_read.add(moved.read);
        self.turns.figures.bytes_written.add(moved.written);
    }

    /// Shows the driver what is ready while the turn goes on.
    #[inline]
    pub(crate) fn show_some(&mut self, io: &mut Io<'_>) {
        if self.turns.unshown >= PUBLISH_EVERY {
            self.ring.queue.publish();
            self.ring.queue.notify_now(io);
            self.turns.shown_some(io);
            self.shown();
        }
    }

    /// Shows the driver what is ready, and tells it.
    pub(crate) fn show(&mut self, io: &mut Io<'_>) {
        self.ring.queue.publish();
        self.ring.queue.notify(io);
        self.shown();
    }

    /// Nothing is answered any more that was not shown.
    #[inline]
    pub(crate) fn shown(&mut self) {
        for asked in self.answered.drain(..) {
            self.calls.protocol.shown(asked);
        }
    }

    /// Locks are waited for no longer.
    pub(crate) fn cancel_waits(&self) {
        for wait in self.ring.busy().filter_map(|(_, slot)| slot.request.wait.as_ref()) {
            wait.cancel();
        }
    }
}
