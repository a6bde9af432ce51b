//! What differs between the protocols by which a tree is asked.

use super::{Cancel, Care, Outcome, Scene};
use passthrough::OpenFile;
use policy::{Call, Direction};
use rustix::io::Errno;
use std::sync::Arc;
use vring::Segment;

/// What a request does with an open file that io_uring can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// So many bytes from here to the client.
    Read { offset: u64, bytes: usize },
    /// So many bytes from the client to here.
    Write { offset: u64, bytes: usize },
    /// What was written becomes stable.
    Sync { data_only: bool },
}

/// A protocol, and the session that speaks it. Requests may be performed on any threads at the same time.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// A request, decoded.
    type Request<'a>;

    /// What an answer has to know of its request.
    type Asked: Copy + Default + Send + 'static;

    /// Bytes before the data in the answer to a read.
    const READ_HEAD_BYTES: usize;

    /// Bytes before the data in a write.
    const WRITE_HEAD_BYTES: usize;

    /// Decodes a request again that was decoded once, from the same bytes.
    fn decode(asked: Self::Asked, bytes: &[u8], readable_bytes: u64) -> Option<Self::Request<'_>>;

    /// What it asks the system for.
    fn call(&self, asked: Self::Asked, request: &Self::Request<'_>) -> Call;

    /// As [`policy::Look::is_long`].
    fn is_long(&self, request: &Self::Request<'_>) -> bool;

    /// As [`policy::Look::is_past_the_cache`].
    fn is_past_the_cache(&self, _request: &Self::Request<'_>) -> bool {
        false
    }

    /// What io_uring would have to do.
    fn transfer(&self, request: &Self::Request<'_>) -> Option<Transfer>;

    /// The file that it would do it with; `None` for what io_uring must not do.
    fn file_for_uring(&self, request: &Self::Request<'_>) -> Option<Arc<OpenFile>>;

    /// A request is left to a thread for long calls, with this.
    fn leave(&self, request: &Self::Request<'_>) -> Care;

    /// Executes a request here and now.
    ///
    /// # Errors
    /// What the client is to be told.
    fn perform(&self, asked: Self::Asked, request: &Self::Request<'_>, scene: &mut Scene<'_>) -> Outcome;

    /// Waits for a lock, on a thread of the tree's, or for a frontend that is asked to map something; `done` may be called before this
    /// returns.
    fn wait_for_lock(
        &self,
        asked: Self::Asked,
        request: &Self::Request<'_>,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Option<Arc<dyn Cancel>>;

    /// What the end of such a wait means: 0, or a negated errno.
    fn lock_outcome(&self, asked: Self::Asked, result: i32, reply: &mut Vec<u8>) -> Outcome;

    /// Puts the answer to a write of so many bytes together.
    fn written(reply: &mut Vec<u8>, bytes: u32);

    /// Writes an answer whose payload is in `reply`. Returns how many bytes were written.
    fn answer(outcome: Outcome, writable: &[Segment], asked: Self::Asked, reply: &mut Vec<u8>) -> u32;

    /// Whether figures count it as an error.
    fn is_failure(_asked: Self::Asked, outcome: &Outcome) -> bool {
        outcome.is_err()
    }

    /// The request will be answered later than in the turn that took it.
    fn deferred(&self, _asked: &mut Self::Asked) {}

    /// Whether somebody has to hear of it when the answer has been shown to the client.
    fn is_awaited(_asked: Self::Asked) -> bool {
        false
    }

    /// It has been.
    fn shown(&self, _asked: Self::Asked) {}
}

/// Which way a transfer moves data, if it does.
pub(super) fn direction(transfer: Option<Transfer>) -> Option<Direction> {
    match transfer? {
        Transfer::Read { .. } => Some(Direction::Read),
        Transfer::Write { .. } => Some(Direction::Write),
        Transfer::Sync { .. } => None,
    }
}
