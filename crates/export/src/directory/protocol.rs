//! FUSE as one of the protocols by which a tree is asked.

use super::reply;
use super::service::{Service, counts_as_error};
use crate::calls::{Answer, Cancel, Care, Outcome, Protocol, Scene, Transfer};
use device::fs::{Dialect, InHeader, OUT_HEADER_BYTES, Request, WRITE_HEAD_BYTES, decode};
use passthrough::OpenFile;
use policy::{Call, Direction};
use rustix::io::Errno;
use std::sync::Arc;
use vring::Segment;

/// Most bytes of a READ or WRITE that a worker, or its io_uring, moves: guests with larger pages than ours may ask for more.
const TRANSFER_HERE_MAX: u32 = 2 << 20;

/// What an answer has to know of its request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) unique: u64,
    pub(crate) opcode: u32,
    /// What the session's INIT had agreed on when the request came; `None` before it.
    pub(crate) dialect: Option<Dialect>,
}

/// Bytes of file data that a request asks to move to or from the guest.
pub(super) fn transfer_bytes(request: &Request<'_>) -> u32 {
    match request {
        Request::Read(read) => read.size,
        Request::Write(write) => write.size,
        _ => 0,
    }
}

impl Protocol for Service {
    type Request<'a> = (InHeader, Request<'a>);
    type Asked = Asked;

    const READ_HEAD_BYTES: usize = OUT_HEADER_BYTES;
    const WRITE_HEAD_BYTES: usize = WRITE_HEAD_BYTES;

    fn decode(asked: Asked, bytes: &[u8], readable_bytes: u64) -> Option<Self::Request<'_>> {
        decode(bytes, readable_bytes, asked.dialect.unwrap_or_default()).ok()
    }

    #[inline]
    fn call(&self, asked: Asked, (_, request): &Self::Request<'_>) -> Call {
        if asked.dialect.is_none() {
            return Call::Immediate;
        }
        match request {
            // A guest waits for these before it asks for anything else. To forget much takes its time.
            Request::Init(_) | Request::Destroy if self.knows_much() => Call::Long,
            Request::SetupMapping(_) | Request::RemoveMapping(_) | Request::Destroy if self.maps(asked.dialect) => {
                Call::Wait
            }
            // What ends or begins things must not be overtaken by what it ends, and costs no time.
            Request::Init(_)
            | Request::Destroy
            | Request::Forget { .. }
            | Request::BatchForget(_)
            | Request::Interrupt { .. } => Call::Immediate,
            Request::SetLkw(_) => Call::Wait,
            Request::Fsync(_) => Call::Sync,
            Request::Read(_) => Call::Transfer(Direction::Read),
            Request::Write(_) => Call::Transfer(Direction::Write),
            _ => Call::Other,
        }
    }

    fn is_long(&self, (header, request): &Self::Request<'_>) -> bool {
        transfer_bytes(request) > TRANSFER_HERE_MAX || Service::is_long(self, header, request)
    }

    fn is_past_the_cache(&self, (_, request): &Self::Request<'_>) -> bool {
        self.past_the_cache(request)
    }

    fn transfer(&self, (_, request): &Self::Request<'_>) -> Option<Transfer> {
        match request {
            Request::Read(read) => Some(Transfer::Read { offset: read.offset, bytes: read.size as usize }),
            Request::Write(write) => Some(Transfer::Write { offset: write.offset, bytes: write.size as usize }),
            Request::Fsync(sync) => Some(Transfer::Sync { data_only: sync.data_only }),
            _ => None,
        }
    }

    fn file_for_uring(&self, (header, request): &Self::Request<'_>) -> Option<Arc<OpenFile>> {
        passthrough::without_waiting(|| Service::file_for_uring(self, header, request)).flatten()
    }

    fn leave(&self, (header, request): &Self::Request<'_>) -> Care {
        if let Request::Release(release) = request {
            self.unlock_for_release(release);
        }
        Care { changing: self.changes(header, request), appends: self.appends(request) }
    }

    #[inline]
    fn perform(&self, asked: Asked, (header, request): &Self::Request<'_>, scene: &mut Scene<'_>) -> Outcome {
        Service::perform(self, asked.dialect, header, request, scene)
    }

    fn wait_for_lock(
        &self,
        _asked: Asked,
        (header, request): &Self::Request<'_>,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Option<Arc<dyn Cancel>> {
        match request {
            Request::SetLkw(lock) => Some(self.wait_lock(header, lock, done)?),
            _ => self.wait_for_window(header, request, done),
        }
    }

    fn lock_outcome(&self, asked: Asked, result: i32, _reply: &mut Vec<u8>) -> Outcome {
        self.lock_wait_ended(asked.unique);
        if result < 0 { Err(Errno::from_raw_os_error(result.saturating_neg())) } else { Ok(Answer::Reply) }
    }

    fn written(reply: &mut Vec<u8>, bytes: u32) {
        device::fs::write_out(reply, bytes);
    }

    #[inline]
    fn answer(outcome: Outcome, writable: &[Segment], asked: Asked, reply: &mut Vec<u8>) -> u32 {
        match outcome {
            Ok(Answer::Reply) => reply::write(writable, asked.unique, Ok(reply)),
            Ok(Answer::Data(bytes)) => reply::write_before_data(writable, asked.unique, bytes),
            Ok(Answer::Silence) => 0,
            Err(error) => reply::write(writable, asked.unique, Err(error)),
        }
    }

    fn is_failure(asked: Asked, outcome: &Outcome) -> bool {
        outcome.is_err() && counts_as_error(asked.opcode)
    }
}
