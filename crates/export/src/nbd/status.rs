//! Where a disk has data, and what of it is dirty, for clients that ask (NBD protocol, "Metadata contexts").

use super::DirtyBitmap;
use super::handshake::{ALLOCATION, BITMAP};
use device::nbd::spec::{chunk_flag, dirty, state};
use device::nbd::status_chunk;
use engine::{Io, Token};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use storage::{Action, Extent, Storage, StorageError, extent, kit::Jobs};

/// Extents of one context in a reply at most: who has asked for more asks again.
const EXTENTS_MAX: usize = 2048;

/// What a client wants to know.
pub(super) struct Question {
    pub(super) range: Range<u64>,
    /// One extent of each is enough.
    pub(super) one: bool,
    /// Where there is data.
    pub(super) allocation: bool,
    /// What is dirty.
    pub(super) bitmap: Option<Arc<DirtyBitmap>>,
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
    pub(super) fn answer(&mut self) -> Result<Answer, StorageError> {
        let answer = self.asked.take().and_then(|Asked(place)| Arc::into_inner(place)).and_then(OnceLock::into_inner);
        answer.unwrap_or_else(|| Err(StorageError::errno(Action::Look, libc::EIO)))
    }
}

/// A question that somebody works at, and the place for its answer.
struct Asked(Arc<OnceLock<Result<Answer, StorageError>>>);

impl Asked {
    fn begin(question: Question, storage: &Arc<dyn Storage>, looks: &Jobs, io: &mut Io<'_>) -> Asked {
        let Question { range, one, allocation, bitmap, token } = question;
        let place = Arc::new(OnceLock::new());
        let (storage, answer) = (storage.clone(), place.clone());
        looks.run(io, token, move || {
            let most = if one { 1 } else { EXTENTS_MAX };
            let bitmap = bitmap.map(|bitmap| bitmap.extents(range.clone(), most));
            let allocation = allocation.then(|| extent::ask(&*storage, range, most)).transpose();
            // Nothing else can have been put there.
            let _first = answer.set(allocation.map(|allocation| Answer { allocation, bitmap }));
            // Before the answer is seen: who has it may close the storage, and take the place's contents.
            drop((storage, answer));
            0
        });
        Asked(place)
    }
}

/// Extents of each context that was chosen.
pub(super) struct Answer {
    allocation: Option<Vec<Extent>>,
    /// Dirty is data.
    bitmap: Option<Vec<Extent>>,
}

impl Answer {
    /// The same in blocks of `block_bytes`.
    pub(super) fn in_blocks(self, block_bytes: u64) -> Answer {
        let blocks = |list: Vec<Extent>| extent::in_blocks(&list, block_bytes);
        Answer { allocation: self.allocation.map(blocks), bitmap: self.bitmap.map(blocks) }
    }

    /// The reply: a chunk for each.
    pub(super) fn reply(&self, cookie: u64) -> Vec<u8> {
        let hole = state::HOLE | state::ZERO;
        let all = [(ALLOCATION, &self.allocation, 0, hole), (BITMAP, &self.bitmap, dirty::DIRTY, 0)];
        let mut chunks = all
            .into_iter()
            .filter_map(|(context, list, data, other)| {
                let flags = move |extent: &Extent| if extent.data { data } else { other };
                // None is longer than the request, whose length has 32 bits.
                let pairs = list.as_ref()?.iter().map(|extent| (extent.bytes as u32, flags(extent)));
                Some((context, pairs.collect::<Vec<_>>()))
            })
            .peekable();
        let mut out = Vec::new();
        while let Some((context, extents)) = chunks.next() {
            let last = if chunks.peek().is_none() { chunk_flag::DONE } else { 0 };
            status_chunk(&mut out, last, cookie, context, &extents);
        }
        out
    }
}
