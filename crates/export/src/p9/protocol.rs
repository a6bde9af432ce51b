//! 9P as one of the protocols by which a tree is asked.

use super::reply::{self, Asked};
use super::service::Session;
use crate::calls::{Answer, Cancel, Care, Outcome, Protocol, Scene, Transfer};
use device::p9::{
    Header, LockKind, READ_HEAD_BYTES, Request, WRITE_HEAD_BYTES, decode, lock_out, lock_status, write_out,
};
use passthrough::OpenFile;
use policy::{Call, Direction};
use rustix::io::Errno;
use std::sync::Arc;
use vring::Segment;

impl Protocol for Session {
    type Request<'a> = (Header, Request<'a>);
    type Asked = Asked;

    const READ_HEAD_BYTES: usize = READ_HEAD_BYTES;
    const WRITE_HEAD_BYTES: usize = WRITE_HEAD_BYTES;

    fn decode(asked: Asked, bytes: &[u8], readable_bytes: u64) -> Option<Self::Request<'_>> {
        decode(bytes, readable_bytes, asked.dialect).ok()
    }

    #[inline]
    fn call(&self, _asked: Asked, (_, request): &Self::Request<'_>) -> Call {
        match request {
            // What begins a session must not be overtaken by what it ends. Flushes that get here wait for nobody.
            Request::Version { .. } | Request::Auth(_) | Request::Unsupported(_) | Request::Flush { .. } => {
                Call::Immediate
            }
            // Nobody waits to drop a lock, though Linux asks as if.
            Request::Lock(lock) if lock.waits() && lock.kind != LockKind::Unlock => Call::Wait,
            Request::Fsync { .. } => Call::Sync,
            Request::Read { .. } => Call::Transfer(Direction::Read),
            Request::Write { .. } => Call::Transfer(Direction::Write),
            _ => Call::Other,
        }
    }

    fn is_long(&self, (_, request): &Self::Request<'_>) -> bool {
        Session::is_long(self, request)
    }

    fn transfer(&self, (_, request): &Self::Request<'_>) -> Option<Transfer> {
        let most = |head| (self.msize() as usize).saturating_sub(head);
        match *request {
            Request::Read { offset, count, .. } => {
                Some(Transfer::Read { offset, bytes: (count as usize).min(most(READ_HEAD_BYTES)) })
            }
            Request::Write { offset, count, .. } => {
                Some(Transfer::Write { offset, bytes: (count as usize).min(most(WRITE_HEAD_BYTES)) })
            }
            Request::Fsync { datasync, .. } => Some(Transfer::Sync { data_only: datasync }),
            _ => None,
        }
    }

    fn file_for_uring(&self, (_, request): &Self::Request<'_>) -> Option<Arc<OpenFile>> {
        Session::file_for_uring(self, request)
    }

    fn leave(&self, (_, request): &Self::Request<'_>) -> Care {
        Care { changing: self.changes(request), appends: self.appends(request) }
    }

    #[inline]
    fn perform(&self, _asked: Asked, (header, request): &Self::Request<'_>, scene: &mut Scene<'_>) -> Outcome {
        Session::perform(self, header, request, scene)
    }

    fn wait_for_lock(
        &self,
        asked: Asked,
        (_, request): &Self::Request<'_>,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Option<Arc<dyn Cancel>> {
        let Request::Lock(lock) = request else {
            done(Err(Errno::INVAL));
            return None;
        };
        let wait = self.wait_lock(lock, done);
        if let Some(wait) = wait.as_ref().filter(|_| asked.known) {
            self.tags().cancel_by(asked.tag, Arc::clone(wait));
        }
        Some(wait?)
    }

    fn lock_outcome(&self, _asked: Asked, result: i32, reply: &mut Vec<u8>) -> Outcome {
        match result {
            0.. => lock_out(reply, lock_status::SUCCESS),
            // The ring stops, or the fid is gone: a client that is still there asks again.
            _ if result == -libc::EINTR => lock_out(reply, lock_status::BLOCKED),
            _ => return Err(Errno::from_raw_os_error(result.saturating_neg())),
        }
        Ok(Answer::Reply)
    }

    fn written(reply: &mut Vec<u8>, bytes: u32) {
        write_out(reply, bytes);
    }

    #[inline]
    fn answer(outcome: Outcome, writable: &[Segment], asked: Asked, reply: &mut Vec<u8>) -> u32 {
        reply::write(outcome, writable, asked, reply)
    }

    /// Other requests can learn when this one has its answer. On a stream, its connection alone can tell.
    fn deferred(&self, asked: &mut Asked) {
        if !std::mem::replace(&mut asked.known, true) {
            self.tags().begin(asked.tag);
        }
    }

    fn is_awaited(asked: Asked) -> bool {
        asked.known
    }

    fn shown(&self, asked: Asked) {
        self.tags().end(asked.tag);
    }
}
