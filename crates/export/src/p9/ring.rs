//! A virtio-9p ring and the directory behind it.

use super::kind;
use super::reply::Asked;
use super::service::Session;
use super::siblings::Siblings;
use crate::attachment::{self, Attachment};
use crate::calls::{CallQueue, Executor, Given, Work, data};
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::trace::{Object, Wait, What};
use crate::turns::{BATCH_MAX, Turns};
use device::p9::{HEADER_BYTES, Malformed, Request, decode};
use engine::{Completion, Io};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// One virtqueue of a directory that speaks 9P.
pub(crate) struct P9Ring {
    pub(super) queue: CallQueue<Session>,
    siblings: Siblings,
    /// A limit holds requests up that come now.
    pub(super) closed: bool,
    /// Heads of those that it holds up, in the order in which they came.
    pub(super) held: VecDeque<u16>,
    /// Heads of versions that wait until all is given up that the client has had.
    pub(super) beginning: VecDeque<u16>,
    /// It takes no more turns.
    stopping: bool,
}

impl P9Ring {
    pub(crate) fn new(
        start: vhost_user::RingStart,
        (session, siblings): (Arc<Session>, Siblings),
        executor: Executor,
        label: Label,
    ) -> Result<Self, Broken> {
        let queue = CallQueue::new(start, session, executor, &kind::NAMES, label)?;
        let (held, beginning) = (VecDeque::new(), VecDeque::new());
        Ok(P9Ring { queue, siblings, closed: false, held, beginning, stopping: false })
    }

    /// The client.
    pub(super) fn session(&self) -> &Session {
        &self.queue.calls.protocol
    }

    /// Takes the chain apart that was taken last, and starts its request.
    fn start(&mut self, head: u16, io: &mut Io<'_>) {
        self.queue.turns.trace.taken(Some(head), io);
        let chain = std::mem::take(&mut self.queue.ring.queue.chain);
        let mut bytes = std::mem::take(&mut self.queue.bytes);
        let given = Given { readable: chain.readable_segments(), writable: chain.writable_segments() };
        self.queue.identify(head, Asked::default(), kind::of_malformed());
        match data::fetch(given.readable, HEADER_BYTES, device::p9::bytes_wanted, &mut bytes) {
            Ok(()) => self.begin(head, given, &bytes, io),
            Err(malformed) => self.refuse(head, given, &malformed, io),
        }
        self.queue.bytes = bytes;
        self.queue.ring.queue.chain = chain;
    }

    /// Decodes a request and executes it, or holds it up.
    pub(super) fn begin(&mut self, head: u16, given: Given<'_>, bytes: &[u8], io: &mut Io<'_>) {
        let dialect = self.session().dialect();
        let (header, request) = match decode(bytes, data::room(given.readable) as u64, dialect) {
            Ok(decoded) => decoded,
            Err(malformed) => return self.refuse(head, given, &malformed, io),
        };
        let known = self.queue.request(head).asked.known;
        self.queue.identify(head, Asked { known, ..Asked::new(&header, dialect) }, kind::of(header.kind));
        self.queue.turns.trace.asks(about(&request, bytes));
        self.queue.turns.look |= !is_short(&request);
        if self.siblings.any() && !matches!(request, Request::Flush { .. }) {
            self.queue.deferred(head);
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
        self.queue.turns.begun_bytes += most.min(self.session().msize() as usize) as u64;
        match request {
            Request::Version { .. } if !self.may_begin() => self.begin_later(head, given, bytes),
            // Who waits for himself waits for ever.
            Request::Flush { oldtag } if oldtag != header.tag => self.flush(head, given, oldtag, io),
            request => self.queue.execute(head, given, (bytes, &(header, request)), io),
        }
    }

    fn refuse(&mut self, head: u16, given: Given<'_>, malformed: &Malformed, io: &Io<'_>) {
        self.queue.turns.look = true;
        self.queue.turns.report_refusal(malformed);
        let known = self.queue.request(head).asked.known;
        match &malformed.header {
            Some(header) => {
                let asked = Asked { known, ..Asked::new(header, self.session().dialect()) };
                self.queue.identify(head, asked, kind::of_malformed());
                self.queue.refuse(head, given.writable, Errno::from_raw_os_error(malformed.errno()), io);
            }
            None => self.queue.finish(head, 0, true, io),
        }
    }

    /// Whether a version can be answered now: nothing is left of what the client has had. One part a turn is given up, however
    /// many versions come. A ring that stops leaves the rest to whoever comes next.
    fn may_begin(&self) -> bool {
        self.stopping || (self.beginning.is_empty() && self.session().begin_anew())
    }

    /// Starts the next request of the virtqueue. False when there is none.
    #[inline]
    fn next_chain(&mut self, io: &mut Io<'_>) -> bool {
        let popped = self.queue.ring.pop(io.now_ns());
        if let Some(head) = popped {
            // A limit lets it wait here, and not in the virtqueue.
            self.queue.turns.trace.waited(io.looked_before_ns(), Wait::Worker);
            self.start(head, io);
        }
        popped.is_some()
    }

    /// Whether a request that was kept can go on.
    #[inline]
    fn has_kept(&self) -> bool {
        !self.beginning.is_empty() || (!self.held.is_empty() && !self.queue.turns.gate.closed())
    }

    /// Requests in flight.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn waiting(&self) -> Vec<engine::Token> {
        self.queue.ring.busy().map(|(head, _)| engine::Token::request(head)).collect()
    }
}

impl Attachment for P9Ring {
    fn turns(&self) -> &Turns {
        &self.queue.turns
    }

    fn turns_mut(&mut self) -> &mut Turns {
        &mut self.queue.turns
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.queue.ring.queue)
    }

    fn queue_mut(&mut self) -> Option<&mut Queue> {
        Some(&mut self.queue.ring.queue)
    }

    fn note_in_flight(&mut self, from: u16) -> Option<u16> {
        self.queue.ring.note_in_flight(from)
    }

    fn set_executor(&mut self, executor: Executor) {
        self.queue.calls.set_executor(executor);
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

    fn is_waiting(&self) -> bool {
        self.queue.ring.queue.ready() || !self.held.is_empty()
    }

    /// Takes what comes, does what limits are not for, and keeps the rest. What it can keep is bounded by the ring's size.
    fn held_up(&mut self, io: &mut Io<'_>) -> usize {
        self.closed = true;
        let mut taken = 0;
        while taken < BATCH_MAX && self.next_chain(io) {
            taken += 1;
        }
        self.closed = false;
        taken
    }

    /// While its gate is closed it takes what must not wait, and is not in the way of the others.
    #[inline]
    fn is_ready(&self) -> bool {
        self.queue.ring.queue.ready() || self.has_kept()
    }

    fn arm(&mut self) -> bool {
        self.queue.ring.queue.arm() || self.has_kept()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        self.go_on_beginning(io);
        attachment::serve(self, io)
    }

    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        attachment::complete(self, completion, io);
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        let Some(head) = self.queue.head_of(completion, io) else { return };
        // Linux knows that it has flushed the request by the answer to the flush, and looks for no other.
        let request = self.queue.request(head);
        let (work, tag) = (request.work, request.asked.tag);
        let flushed = work == Work::Lock && self.session().tags().is_flushed(tag);
        self.queue.conclude(head, completion.result, flushed, io);
    }

    #[inline]
    fn show_some(&mut self, io: &mut Io<'_>) {
        self.queue.show_some(io);
    }

    fn show(&mut self, io: &mut Io<'_>) {
        self.queue.show(io);
    }

    /// What was held up is done after all, and locks are waited for no longer.
    fn drain(&mut self, io: &mut Io<'_>) {
        self.stopping = true;
        while let Some(head) = self.beginning.pop_front().or_else(|| self.held.pop_front()) {
            self.start_held(head, io);
        }
        self.queue.cancel_waits();
    }

    fn lost(&mut self, _is_dropped: bool) {
        for (_, slot) in self.queue.ring.busy().filter(|(_, slot)| slot.request.asked.known) {
            self.session().tags().end(slot.request.asked.tag);
        }
        self.queue.shown();
        self.queue.ring.abandon();
    }
}

/// What a request is about, for those who trace it.
pub(super) fn about(request: &Request<'_>, message: &[u8]) -> What {
    let range = match request {
        Request::Read { offset, count, .. } | Request::Write { offset, count, .. } => {
            Some((*offset, u64::from(*count)))
        }
        _ => None,
    };
    let fid = match request {
        Request::Version { .. } | Request::Flush { .. } | Request::Unsupported(_) => None,
        // The first field of all others is a fid (9P2000.L, each message's layout).
        _ => message.get(HEADER_BYTES..).and_then(|fields| fields.first_chunk()).map(|fid| u32::from_le_bytes(*fid)),
    };
    What { object: fid.map(Object::Fid), range }
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

/// Whether limits are not for it: what ends things must not wait behind what it ends.
fn passes_limits(request: &Request<'_>) -> bool {
    matches!(request, Request::Flush { .. } | Request::Clunk { .. })
}
