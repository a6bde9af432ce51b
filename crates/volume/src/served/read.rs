//! Reads, and discards: what goes to the lower storage, and what lies over it.
//!
//! Versions are pinned *before* the lower storage is read. A version that has left the cache by then is on the lower storage; one
//! that comes later belongs to a write that has no order with this read.

use super::LoggedStorage;
use super::cursor::Cursor;
use super::machine::Parts;
use super::overlay::{covered, lay_over, touched};
use super::poke::Wish;
use super::progress::Stage;
use super::reply::Event;
use crate::BLOCK_BYTES;
use engine::{Io, Token};
use std::ops::Range;
use storage::kit::ON_THE_SPOT_MAX;
use storage::ways::LINE;
use storage::{Operation, Step};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks that lie in the range of a discard, if any do.
fn discarded(operation: Operation) -> Option<Range<u64>> {
    let Operation::Discard { offset, len } = operation else { return None };
    let blocks = offset.div_ceil(BLOCK)..offset.saturating_add(len) / BLOCK;
    (!blocks.is_empty()).then_some(blocks)
}

impl LoggedStorage {
    pub(super) fn read(&self, parts: &mut Parts<'_>, offset: u64, len: u64, token: Token, io: &mut Io<'_>) -> Step {
        if len == 0 {
            return self.done(parts, Ok(()));
        }
        let cache = &self.shared.cache;
        let blocks = touched(offset, len);
        if cache.touches(blocks.clone()) {
            if len > ON_THE_SPOT_MAX {
                return self.read_in_parts(parts, offset, len, token, io);
            }
            let pins = parts.progress.overlay(cache);
            for block in blocks {
                cache.pin(block, pins);
            }
            if covered(pins, offset, offset + len) == len {
                // SAFETY: the buffers of a started task are mapped and writable.
                unsafe { lay_over(pins, parts.buffers, Cursor::default(), offset, offset + len) };
                pins.clear();
                self.shared.slots_freed();
                return self.done(parts, Ok(()));
            }
        }
        // The task below has the buffers until it has ended.
        let sub = &mut parts.progress.sub;
        std::mem::swap(&mut sub.buffers, parts.buffers);
        sub.begin(Operation::Read { offset: self.shared.layout.data_offset + offset });
        parts.progress.stage = Stage::Lower;
        let step = self.shared.lower.start(&mut parts.progress.sub, token, io);
        self.follow_lower(parts, step)
    }

    /// Forgets the blocks that lie in the range, and lets the lower storage give their space back. The edges stay as they
    /// are: what a discard leaves does not matter.
    pub(super) fn discard(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let Some(blocks) = discarded(parts.operation) else { return self.done(parts, Ok(())) };
        if (blocks.end - blocks.start) * BLOCK > ON_THE_SPOT_MAX && self.shared.cache.touches(blocks.clone()) {
            let shared = self.shared.clone();
            parts.progress.stage = Stage::Forget;
            self.shared.jobs.run(io, token.part(Event::Job.part()), move || {
                shared.cache.drop_range(blocks);
                shared.slots_freed();
                0
            });
            return Step::Pending;
        }
        self.shared.cache.drop_range(blocks);
        self.shared.slots_freed();
        self.forgotten(parts, token, io)
    }

    /// The cache has nothing of a discard any more.
    pub(super) fn forgotten(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let shared = &self.shared;
        if shared.passes.wait(|| io.reply_by(LINE, token.part(Event::Room.part()))) {
            parts.progress.stage = Stage::Pass;
            shared.poke.ask(Wish::PassEnd);
            if shared.is_dead() {
                shared.passes.end(-libc::EIO);
            }
            return Step::Pending;
        }
        self.discard_below(parts, token, io)
    }

    pub(super) fn discard_below(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let Some(blocks) = discarded(parts.operation) else { return self.done(parts, Ok(())) };
        let offset = self.shared.layout.data_offset + blocks.start * BLOCK;
        parts.progress.sub.begin(Operation::Discard { offset, len: (blocks.end - blocks.start) * BLOCK });
        parts.progress.stage = Stage::Lower;
        let step = self.shared.lower.start(&mut parts.progress.sub, token, io);
        self.follow_lower(parts, step)
    }

    pub(super) fn follow_lower(&self, parts: &mut Parts<'_>, step: Step) -> Step {
        let Step::Done(result) = step else { return Step::Pending };
        let progress = &mut *parts.progress;
        progress.stage = Stage::Idle;
        let Operation::Read { offset } = parts.operation else { return Step::Done(result) };
        std::mem::swap(&mut progress.sub.buffers, parts.buffers);
        let len = storage::kit::total(parts.buffers);
        if let Some(pins) = progress.pinned()
            && !pins.is_empty()
        {
            if result.is_ok() {
                // SAFETY: the buffers of a task in flight are mapped and writable.
                unsafe { lay_over(pins, parts.buffers, Cursor::default(), offset, offset + len) };
            }
            pins.clear();
            self.shared.slots_freed();
        }
        Step::Done(result)
    }
}
