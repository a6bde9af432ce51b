//! Where a disk has data, for clients that ask (NBD protocol, "Metadata contexts", under `base:allocation`).

use super::handshake::ALLOCATION;
use device::nbd::{spec::state, status_chunk};
use engine::{Io, Token};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use storage::{Action, Extent, Storage, StorageError, extent, kit::Jobs};

/// Extents of one reply at most: who has asked for more asks again.
const EXTENTS_MAX: usize = 2048;

/// What a client wants to know.
pub(super) struct Question {
    pub(super) range: Range<u64>,
    /// One extent is enough.
    pub(super) one: bool,
    /// Completes with the answer.
    pub(super) token: Token,
}

/// Questions of a connection. The storage is asked one after the other, on threads that are those of all disks.
pub(super) struct Questions {
    looks: Jobs,
    asked: Option<Asked>,
    line: VecDeque<Question>,
}

impl Questions {
    /// None yet, of a disk whose questions these are.
    pub(super) fn on(looks: Jobs) -> Questions {
        Questions { looks, asked: None, line: VecDeque::new() }
    }

    /// Asks, now or later.
    pub(super) fn ask(&mut self, question: Question, storage: &Arc<dyn Storage>, io: &mut Io<'_>) {
        self.line.push_back(question);
        self.ask_next(storage, io);
    }

    /// Asks who is next in the line, unless something is asked.
    pub(super) fn ask_next(&mut self, storage: &Arc<dyn Storage>, io: &mut Io<'_>) {
        if self.asked.is_none()
            && let Some(question) = self.line.pop_front()
        {
            self.asked = Some(Asked::begin(question, storage, &self.looks, io));
        }
    }

    /// Nobody waits for the answers any more: those who wait in the line, by their tokens.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = Token> + use<> {
        std::mem::take(&mut self.line).into_iter().map(|question| question.token)
    }

    /// What the storage has said, whose token has completed. There is nothing when its thread panicked.
    pub(super) fn answer(&mut self) -> Result<Vec<Extent>, StorageError> {
        let answer = self.asked.take().and_then(|Asked(place)| Arc::into_inner(place)).and_then(OnceLock::into_inner);
        answer.unwrap_or_else(|| Err(StorageError::errno(Action::Look, libc::EIO)))
    }
}

/// A question that somebody works at, and the place for its answer.
struct Asked(Arc<OnceLock<Result<Vec<Extent>, StorageError>>>);

impl Asked {
    fn begin(question: Question, storage: &Arc<dyn Storage>, looks: &Jobs, io: &mut Io<'_>) -> Asked {
        let Question { range, one, token } = question;
        let place = Arc::new(OnceLock::new());
        let (storage, answer) = (storage.clone(), place.clone());
        looks.run(io, token, move || {
            let most = if one { 1 } else { EXTENTS_MAX };
            // Nothing else can have been put there.
            let _first = answer.set(extent::ask(&*storage, range, most));
            // Before the answer is seen: who has it may close the storage, and take the place's contents.
            drop((storage, answer));
            0
        });
        Asked(place)
    }
}

/// The reply that has these extents.
pub(super) fn reply(cookie: u64, extents: &[Extent]) -> Vec<u8> {
    let flags = |extent: &Extent| if extent.data { 0 } else { state::HOLE | state::ZERO };
    // None is longer than the request, whose length has 32 bits.
    let extents: Vec<_> = extents.iter().map(|extent| (extent.bytes as u32, flags(extent))).collect();
    let mut out = Vec::new();
    status_chunk(&mut out, cookie, ALLOCATION, &extents);
    out
}
