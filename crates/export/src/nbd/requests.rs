//! One request: started, gone on with, answered.

use super::ring::NbdRing;
use super::slot::NbdRequest;
use super::status::Question;
use crate::disk::Kind;
use crate::label::Label;
use crate::trace::What;
use crate::virtqueue::Slot;
use device::nbd::spec::errno::{ENOMEM, ESHUTDOWN};
use device::nbd::{
    Command, DATA_HEAD_BYTES, REQUEST_BYTES, Refusal, Request, Terms, Work, data_head, decode_request, errno_of,
    error_chunk, none_chunk, simple_reply,
};
use engine::{Completion, Io, Token};
use libc::iovec;
use storage::{Operation, Step, StorageError};
use vhost_user::SessionEnd;

/// Moving more bytes may take a turn's time.
const LONG_BYTES: u64 = 256 << 10;
/// Messages up to this length, in bytes, are copied out of what they were received with.
const COPIED_BYTES_MAX: usize = 32 << 10;
/// Bytes of a trim or write zeroes that the storage is asked for at once: what a virtio disk is.
const RANGE_BYTES_MAX: u64 = 2 << 30;

impl NbdRing {
    /// Whether the message at the front asks for what nobody will read: that is not found out, and costs no limit.
    pub(super) fn is_for_nobody(&self) -> bool {
        self.pipe.is_unread()
            && self.pipe.inbox.all().first_chunk::<REQUEST_BYTES>().is_some_and(|bytes| {
                let request = decode_request(bytes);
                request.is_ok_and(|request| matches!(request.command, Command::Read | Command::BlockStatus))
            })
    }

    /// Starts the message of `bytes` bytes at the front of the inbox.
    pub(super) fn start(&mut self, bytes: usize, io: &mut Io<'_>) {
        let request = match self.pipe.inbox.all().first_chunk::<REQUEST_BYTES>().map(decode_request) {
            Some(Ok(request)) => request,
            Some(Err(malformed)) => return self.pipe.misspoke(malformed.to_string()),
            None => return,
        };
        self.turns.trace.taken(None, io);
        let terms = Terms { block_status: self.agreed.contexts.some(), ..self.offer.terms };
        let work = match request.check(&terms) {
            Ok(work) => work,
            Err(refusal) => {
                self.pipe.inbox.take(bytes);
                return self.refuse(&request, &refusal, io);
            }
        };
        let (kind, moved) = match work {
            Work::Disconnect => {
                self.pipe.inbox.take(bytes);
                return self.pipe.finish(SessionEnd::Disconnected);
            }
            Work::Read { len, .. } => (Kind::Read, u64::from(len)),
            Work::Write { len, .. } => (Kind::Write, u64::from(len)),
            Work::Flush => (Kind::Flush, 0),
            Work::Trim { .. } => (Kind::Discard, 0),
            Work::WriteZeroes { .. } => (Kind::WriteZeroes, 0),
            Work::BlockStatus { .. } => (Kind::BlockStatus, 0),
        };
        self.turns.trace.asks(asked(&work));
        self.turns.begun_bytes += moved;
        self.turns.look |= moved > LONG_BYTES;
        let (buffer, data) = match work {
            Work::Write { .. } => {
                let (message, start) = self.take_out(bytes);
                (message, start + REQUEST_BYTES)
            }
            Work::Read { offset, len } => {
                self.pipe.inbox.take(bytes);
                let Some(buffer) = self.room_for_read(request.cookie, offset, len) else {
                    self.answer_error(true, ENOMEM, request.cookie, "there is no memory for the reply");
                    return self.turns.answered_at_once(kind as usize, true, io);
                };
                let head = buffer.len();
                (buffer, head)
            }
            _ => {
                self.pipe.inbox.take(bytes);
                Default::default()
            }
        };
        self.kept_bytes += buffer.capacity();
        let durable = self.offer.write_through;
        let (index, slot) = self.reserve();
        slot.begin(io.now_ns());
        slot.kind = kind as usize;
        let deferred = &mut slot.request;
        deferred.begin(work, request.cookie, buffer);
        if moved > 0 {
            // Reads go to the room behind the reply's head, writes come from what was received.
            let iov_base = deferred.buffer.as_mut_ptr().wrapping_add(data).cast();
            deferred.task.buffers.push(iovec { iov_base, iov_len: moved as usize });
        }
        match work {
            Work::Read { offset, .. } => deferred.task.begin(Operation::Read { offset }),
            Work::Write { offset, fua, .. } => {
                deferred.task.begin(Operation::Write { offset, durable: fua || durable });
            }
            Work::Flush => deferred.task.begin(Operation::Flush),
            Work::BlockStatus { offset, len, one } => {
                let range = offset..offset + u64::from(len);
                let bitmap = self.offer.bitmap.clone().filter(|_| self.agreed.contexts.bitmap);
                let allocation = self.agreed.contexts.allocation;
                let question = Question { range, one, allocation, bitmap, token: Token::request(index) };
                self.questions.ask(question, &self.storage, io);
                return self.turns.trace.pending(index, io);
            }
            Work::Trim { .. } | Work::WriteZeroes { .. } | Work::Disconnect => {
                return self.next_range(index, io);
            }
        }
        self.submit(index, moved > 0 || work == Work::Flush, io);
    }

    /// Takes the message at the front out of the inbox, into a buffer that has little more than it. Returns where it begins, too.
    fn take_out(&mut self, bytes: usize) -> (Vec<u8>, usize) {
        if bytes > COPIED_BYTES_MAX {
            return self.pipe.inbox.take_out(bytes, &mut self.pipe.buffers);
        }
        let message = self.pipe.inbox.peek(bytes).to_vec();
        self.pipe.inbox.take(bytes);
        (message, 0)
    }

    /// A buffer with the head of a read's reply, and room for its data; `None` where there is no memory.
    fn room_for_read(&self, cookie: u64, offset: u64, len: u32) -> Option<Vec<u8>> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(DATA_HEAD_BYTES + len as usize).ok()?;
        match (self.agreed.structured, len) {
            (false, _) => buffer.extend_from_slice(&simple_reply(0, cookie)),
            (true, 0) => buffer.extend_from_slice(&none_chunk(cookie)),
            (true, _) => buffer.extend_from_slice(&data_head(cookie, offset, len)),
        }
        if self.offer.clears {
            let head = buffer.len();
            buffer.resize(head + len as usize, 0);
            buffer.truncate(head);
        }
        Some(buffer)
    }

    /// A place for a request.
    fn reserve(&mut self) -> (u16, &mut Slot<NbdRequest>) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len();
            self.slots.push(Slot::new(self.turns.figures.stamp(index), NbdRequest::new()));
            // There are `IN_FLIGHT_MAX` at most.
            index as u16
        });
        self.turns.trace.placed(index);
        (index, &mut self.slots[usize::from(index)])
    }

    /// Hands the slot's task to the storage. Nothing to move is nothing to do.
    fn submit(&mut self, index: u16, something: bool, io: &mut Io<'_>) {
        let task = &mut self.slots[usize::from(index)].request.task;
        let step = if something { self.storage.start(task, Token::request(index), io) } else { Step::Done(Ok(())) };
        self.follow(index, step, io);
    }

    /// Starts the next part of a trim or write zeroes, or the flush that a trim has to have behind it.
    fn next_range(&mut self, index: u16, io: &mut Io<'_>) {
        let durable = self.offer.write_through;
        let deferred = &mut self.slots[usize::from(index)].request;
        let (offset, len) = match deferred.work {
            Work::Trim { offset, len, .. } | Work::WriteZeroes { offset, len, .. } => (offset, u64::from(len)),
            _ => (0, 0),
        };
        let (offset, left) = (offset + deferred.begun, len - deferred.begun);
        let len = left.min(RANGE_BYTES_MAX);
        deferred.begun += len;
        match deferred.work {
            Work::Trim { .. } if len > 0 => deferred.task.begin(Operation::Discard { offset, len }),
            Work::Trim { fua: true, .. } if !deferred.flushing => {
                deferred.flushing = true;
                deferred.task.begin(Operation::Flush);
            }
            Work::WriteZeroes { unmap, fua, .. } if len > 0 => {
                deferred.task.begin(Operation::WriteZeroes { offset, len, unmap, durable: fua || durable });
            }
            _ => return self.finish(index, None, io),
        }
        self.submit(index, true, io);
    }

    fn follow(&mut self, index: u16, step: Step, io: &mut Io<'_>) {
        match step {
            Step::Pending => self.turns.trace.pending(index, io),
            Step::Done(Ok(())) => match self.slots[usize::from(index)].request.work {
                Work::Trim { .. } | Work::WriteZeroes { .. } => self.next_range(index, io),
                _ => self.finish(index, None, io),
            },
            Step::Done(Err(error)) => {
                let Label { export, ring, .. } = &self.turns.label;
                tracing::debug!(export = &**export, ring, %error, "a request failed");
                self.finish(index, Some(Failure::Storage(errno(&error))), io);
            }
        }
    }

    /// What was started for a request has ended, or part of it.
    pub(super) fn go_on(&mut self, completion: Completion, io: &mut Io<'_>) {
        let index = completion.token.index().filter(|index| self.is_busy(*index));
        let Some(index) = index else {
            debug_assert!(false, "completion of {:?}, which is not in flight", completion.token);
            return;
        };
        self.turns.trace.ended(index, io);
        let slot = &mut self.slots[usize::from(index)];
        slot.fresh = false;
        if let Work::BlockStatus { .. } = slot.request.work {
            return self.say_status(index, io);
        }
        let step = self.storage.resume(&mut slot.request.task, completion, io);
        self.follow(index, step, io);
    }

    /// Answers a block status.
    fn say_status(&mut self, index: u16, io: &mut Io<'_>) {
        let step = self.questions.answer().map(|answer| {
            let answer = answer.in_blocks(self.offer.terms.block_bytes.into());
            let deferred = &mut self.slots[usize::from(index)].request;
            deferred.buffer = answer.reply(deferred.cookie);
            self.kept_bytes += deferred.buffer.capacity();
        });
        self.follow(index, Step::Done(step), io);
        if self.pipe.is_unread() {
            self.leave_questions(io);
        }
        self.questions.ask_next(&self.storage, io);
    }

    /// The client has left or is to go: what it wanted to know is not looked for any more.
    pub(super) fn leave_questions(&mut self, io: &Io<'_>) {
        for index in self.questions.leave().filter_map(Token::index) {
            self.finish(index, Some(Failure::Ends), io);
        }
    }

    fn is_busy(&self, index: u16) -> bool {
        self.slots.get(usize::from(index)).is_some_and(|slot| slot.busy)
    }

    fn finish(&mut self, index: u16, failure: Option<Failure>, io: &Io<'_>) {
        let slot = &mut self.slots[usize::from(index)];
        slot.end();
        let deferred = &mut slot.request;
        deferred.task.rest();
        let (work, cookie, mut buffer) = (deferred.work, deferred.cookie, std::mem::take(&mut deferred.buffer));
        self.kept_bytes -= buffer.capacity();
        self.free.push(index);
        let reads = matches!(work, Work::Read { .. } | Work::BlockStatus { .. });
        match (work, failure) {
            (Work::Read { len, .. }, None) => {
                // SAFETY: behind the head there was room for as many bytes, and the storage has filled them, or they were cleared before.
                unsafe { buffer.set_len(buffer.len() + len as usize) };
                self.pipe.reply(buffer);
                self.turns.figures.bytes_read.add(len.into());
            }
            (Work::BlockStatus { .. }, None) => self.pipe.reply(buffer),
            (_, None) => {
                if let Work::Write { len, .. } = work {
                    self.turns.figures.bytes_written.add(len.into());
                }
                self.pipe.buffers.give(buffer);
                self.pipe.say(&simple_reply(0, cookie));
            }
            (_, Some(Failure::Storage(errno))) => {
                self.pipe.buffers.give(buffer);
                // What the daemon knows of its files is not for clients.
                self.answer_error(reads, errno, cookie, "the storage behind the disk has failed");
            }
            (_, Some(Failure::Ends)) => self.answer_error(reads, ESHUTDOWN, cookie, "the export ends"),
        }
        let is_error = matches!(failure, Some(Failure::Storage(_)));
        self.turns.answered(&self.slots[usize::from(index)], is_error, io);
    }

    /// A request is refused before anybody has looked at the storage.
    fn refuse(&mut self, request: &Request, refusal: &Refusal, io: &Io<'_>) {
        self.turns.report_refusal(&refusal.reason);
        let reads = matches!(request.command, Command::Read | Command::BlockStatus);
        self.answer_error(reads, refusal.errno, request.cookie, &refusal.reason.to_string());
        self.turns.answered_at_once(Kind::Refused as usize, true, io);
    }

    /// An error of what is answered by chunks goes into one where those were agreed on (NBD protocol, "Structured reply chunk message").
    fn answer_error(&mut self, reads: bool, errno: u32, cookie: u64, why: &str) {
        if reads && self.agreed.structured {
            let mut chunk = Vec::new();
            error_chunk(&mut chunk, errno, cookie, why);
            self.pipe.say(&chunk);
        } else {
            self.pipe.say(&simple_reply(errno, cookie));
        }
    }
}

/// What a request asks for, for those who trace it.
fn asked(work: &Work) -> What {
    match *work {
        Work::Read { offset, len }
        | Work::Write { offset, len, .. }
        | Work::Trim { offset, len, .. }
        | Work::WriteZeroes { offset, len, .. }
        | Work::BlockStatus { offset, len, .. } => What::range(offset, len.into()),
        Work::Flush | Work::Disconnect => What::default(),
    }
}

/// Why a request was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// By the storage; what the client is told.
    Storage(u32),
    /// The export ends, or nobody is there to read the answer.
    Ends,
}

/// What the client is told of an error.
fn errno(error: &StorageError) -> u32 {
    errno_of(match error {
        StorageError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        StorageError::ReadOnly(_) => libc::EPERM,
        StorageError::Unsupported(_) => libc::ENOTSUP,
        StorageError::OutOfRange(_) => libc::EINVAL,
        _ => libc::EIO,
    })
}
