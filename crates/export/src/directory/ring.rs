//! A virtio-fs ring and the directory behind it.

use super::kind;
use super::protocol::{Asked, transfer_bytes};
use super::service::Service;
use crate::attachment::{self, Attachment};
use crate::calls::{CallQueue, Executor, Given, Work, data};
use crate::label::Label;
use crate::queue::{Broken, Queue};
use crate::trace::{Object, What};
use crate::turns::Turns;
use device::fs::{Dialect, IN_HEADER_BYTES, Request, decode};
use engine::{Completion, Io};
use rustix::io::Errno;
use std::sync::Arc;
use vring::Chain;

/// Most bytes of a READ or WRITE: 256 pages, which is what Linux has at most, of 64 KiB. Whoever asks for more is no driver that this
/// server has agreed on anything with, and would have it move gigabytes.
const TRANSFER_BYTES_MAX: u32 = 16 << 20;

/// One virtqueue of a directory.
pub(crate) struct DirectoryRing {
    queue: CallQueue<Service>,
    /// What the session's INIT agreed on, as of the service's `generation`.
    dialect: Option<Dialect>,
    dialect_of: u64,
    /// Another life of the ring follows this one at once, and takes again what waits for a lock.
    suspended: bool,
    /// Heads of what it takes again.
    owed: Vec<u16>,
}

impl DirectoryRing {
    pub(crate) fn new(
        start: vhost_user::RingStart,
        service: Arc<Service>,
        executor: Executor,
        label: Label,
    ) -> Result<Self, Broken> {
        let queue = CallQueue::new(start, service, executor, &kind::NAMES, label)?;
        Ok(DirectoryRing { queue, dialect: None, dialect_of: 0, suspended: false, owed: Vec::new() })
    }

    /// Takes the chain apart that was taken last, and starts its request.
    fn start(&mut self, head: u16, io: &mut Io<'_>) {
        self.queue.turns.trace.taken(Some(head), io);
        let chain = std::mem::take(&mut self.queue.ring.queue.chain);
        let mut bytes = std::mem::take(&mut self.queue.bytes);
        self.begin(head, &chain, &mut bytes, io);
        self.queue.bytes = bytes;
        self.queue.ring.queue.chain = chain;
    }

    fn begin(&mut self, head: u16, chain: &Chain, bytes: &mut Vec<u8>, io: &mut Io<'_>) {
        let generation = self.queue.calls.protocol.generation();
        if self.dialect_of != generation {
            (self.dialect, self.dialect_of) = (self.queue.calls.protocol.dialect(), generation);
        }
        let dialect = self.dialect;
        let given = Given { readable: chain.readable_segments(), writable: chain.writable_segments() };
        let fetched = data::fetch(given.readable, IN_HEADER_BYTES, device::fs::bytes_wanted, bytes);
        let decoded = fetched.and_then(|()| decode(bytes, chain.readable_bytes(), dialect.unwrap_or_default()));
        let (header, request) = match decoded {
            Ok(decoded) => decoded,
            Err(malformed) => {
                let unique = malformed.unique().unwrap_or_default();
                self.queue.identify(head, Asked { unique, dialect, opcode: 0 }, kind::of_malformed(&malformed));
                self.queue.turns.look = true;
                self.queue.turns.report_refusal(&malformed);
                let error = Errno::from_raw_os_error(malformed.errno());
                return self.queue.refuse(head, given.writable, error, io);
            }
        };
        let asked = Asked { unique: header.unique, opcode: header.opcode, dialect };
        self.queue.identify(head, asked, kind::of(header.opcode));
        self.queue.turns.trace.asks(What { object: Some(Object::Node(header.nodeid)), range: range(&request) });
        self.queue.turns.look |= !is_short(&request);
        let transfer = transfer_bytes(&request);
        if transfer > TRANSFER_BYTES_MAX {
            return self.queue.refuse(head, given.writable, Errno::INVAL, io);
        }
        // A guest may ask for more than it has room for: its limits, and those of its group, count what can move.
        self.queue.turns.begun_bytes += match &request {
            Request::Read(_) => data::room(given.writable).min(transfer as usize) as u64,
            _ => u64::from(transfer),
        };
        self.queue.execute(head, given, (bytes, &(header, request)), io);
    }

    /// A wait that is given up because the ring is suspended, and not because its guest wants it so, is the next life's.
    fn put_off(&mut self, head: u16, result: i32) -> bool {
        let request = self.queue.request(head);
        let (asked, given_up) = (request.asked, request.work == Work::Lock && result == -libc::EINTR);
        if !self.suspended || !given_up || !self.queue.calls.protocol.put_lock_wait_off(asked.unique) {
            return false;
        }
        self.queue.put_off(head);
        self.owed.push(head);
        true
    }
}

impl Attachment for DirectoryRing {
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

    #[inline]
    fn next(&mut self, io: &mut Io<'_>) -> bool {
        let popped = self.queue.ring.pop(io.now_ns());
        if let Some(head) = popped {
            self.start(head, io);
        }
        popped.is_some()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        passthrough::serves_others();
        attachment::serve(self, io)
    }

    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        passthrough::serves_others();
        attachment::complete(self, completion, io);
    }

    fn ended(&mut self, completion: Completion, io: &mut Io<'_>) {
        if let Some(head) = self.queue.head_of(completion, io)
            && !self.put_off(head, completion.result)
        {
            self.queue.conclude(head, completion.result, false, io);
        }
    }

    #[inline]
    fn show_some(&mut self, io: &mut Io<'_>) {
        self.queue.show_some(io);
    }

    fn show(&mut self, io: &mut Io<'_>) {
        self.queue.show(io);
    }

    /// A guest that stops its rings no longer waits for locks; EINTR tells those that come back to ask again. What an earlier
    /// life owes is done before, unless another one follows.
    fn drain(&mut self, io: &mut Io<'_>) {
        while !self.suspended
            && let Some(head) = self.queue.ring.pop_owed(io.now_ns())
        {
            self.start(head, io);
        }
        self.queue.cancel_waits();
    }

    fn lost(&mut self, _is_dropped: bool) {
        self.queue.ring.abandon();
    }

    fn requests_to_leave(&self) -> usize {
        self.queue.ring.busy().filter(|(_, slot)| slot.request.work == Work::Lock).count()
    }

    fn suspend(&mut self) {
        self.suspended = true;
    }

    /// What was left, and what an earlier life has left to this one and this one did not get to.
    fn take_owed(&mut self) -> Vec<u16> {
        let mut owed = std::mem::take(&mut self.owed);
        owed.extend(self.queue.ring.queue.take_owed());
        owed
    }
}

/// What of its node a request is about, for those who trace it.
fn range(request: &Request<'_>) -> Option<(u64, u64)> {
    match request {
        Request::Read(read) => Some((read.offset, read.size.into())),
        Request::Write(write) => Some((write.offset, write.size.into())),
        _ => None,
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
